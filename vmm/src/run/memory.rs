//! Memory of the host that guests may take.

use crate::guest::memory::Memory;
use crate::host::error::{MEMORY_LIMITS, RunError};
use crate::image::file::Image;
use crate::run::asked::{Engine, OurGuest};

/// Whether the host has the memory that all guests together may touch: found out before, not by its out-of-memory killer.
pub(crate) fn check_memory(
    of_each: impl Iterator<Item = u64>,
    available: Option<u64>,
) -> Result<(), RunError> {
    let needed = of_each.fold(0, u64::saturating_add);
    let Some(available) = available.filter(|available| needed > *available) else { return Ok(()) };
    Err(RunError::usage(format!(
        "the guests may take {} MiB together, and there are {} MiB to be had (see /proc/meminfo, and {MEMORY_LIMITS}): use fewer guests \
         or vCPUs, or less --memory",
        needed >> 20,
        available >> 20
    )))
}

/// The memory that this process has for itself, in bytes, less what it shares with other processes.
const OWN_BYTES: u64 = 12 << 20;
/// Memory that each vCPU takes, in bytes: thread, stacks, area.
const VCPU_BYTES: u64 = 64 << 10;
/// Memory that each vCPU takes on KVM, in bytes: a cache of 40 pages when it first runs, and a second one where KVM shadows page tables.
const KVM_VCPU_BYTES: u64 = 512 << 10;

/// Memory that a run takes for a guest of `vcpus` vCPUs in addition to the guest's own, in bytes.
pub(crate) fn own_bytes(engine: &Engine, vcpus: u32) -> u64 {
    let each = if *engine == Engine::Kvm { KVM_VCPU_BYTES } else { VCPU_BYTES };
    OWN_BYTES + u64::from(vcpus) * each
}

/// Most of the host's memory that a guest with a pool of `pool_bytes` can make the run take, in bytes: its pool, what the run needs
/// besides, and of a simulated machine all of its memory with what is known of each of its lines, and decoded code.
pub(crate) fn most_bytes(asked: OurGuest<'_>, image: &Image, pool_bytes: u64) -> u64 {
    let own_bytes = own_bytes(&asked.run.engine, asked.guest.vcpus);
    let Some(machine) = asked.run.engine.machine() else { return pool_bytes.saturating_add(own_bytes) };
    // A guest whose memory has no valid size is refused elsewhere, so it counts as zero bytes.
    let guest = Memory::bytes_of(image.end, asked.guest.vcpus, pool_bytes).unwrap_or(0);
    guest.saturating_add(own_bytes).saturating_add(haltkick_sim::board::most_bytes(guest, machine))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::run::asked::Run;

    #[test]
    fn a_simulated_guest_takes_more_than_its_memory() {
        let image = Image::embedded();
        let machine = haltkick_sim::machine::presets()[0].machine();
        const POOL: u64 = 512 << 20;
        let kvm = Run::default();
        let sim = Run { engine: Engine::Sim(Arc::new(machine)), ..Run::default() };
        assert_eq!(most_bytes(kvm.our(0), &image, POOL), POOL + own_bytes(&Engine::Kvm, kvm.guests[0].vcpus));
        let of_sim = most_bytes(sim.our(0), &image, POOL);
        assert!((3 * POOL..7 * POOL).contains(&of_sim), "{of_sim} bytes");
        assert!(most_bytes(sim.our(0), &image, 0) < POOL, "a guest without a pool");
    }

    #[test]
    fn guests_get_no_more_memory_than_the_host_has() {
        let available = crate::host::spare_memory::available().expect("Linux says what can be had");
        assert!(check_memory([available / 4; 2].into_iter(), Some(available)).is_ok());
        assert!(check_memory([available].into_iter(), None).is_ok(), "where nobody knows, it is tried");
        let refused =
            |of_each| check_memory([of_each; 2].into_iter(), Some(2 << 30)).unwrap_err().to_string();
        assert!(refused(1 << 63).contains("17592186044415 MiB"), "no sum is too large");
        let refused = refused(3 << 29);
        assert!(refused.contains("3072 MiB") && refused.contains("2048 MiB"), "{refused}");
    }
}
