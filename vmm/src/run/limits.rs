//! Resources of the host that a run's guests may take: CPU time, under quotas and absences that its scheduler or the kernel keeps;
//! memory; and what a process must keep in its sandbox for the runs that it is to make.

use crate::guest::memory::Memory;
use crate::host::cgroup::Bandwidth;
use crate::host::error::{MEMORY_LIMITS, Refused, RunError};
use crate::host::sandbox::Needs;
use crate::host::text::Span;
use crate::image::file::Image;
use crate::run::asked::{Engine, OurGuest, Run};
use crate::sched::Sched;
use crate::sched::quota::Quota;

impl Run {
    /// Refuses quotas that the scheduler cannot keep.
    ///
    /// # Errors
    /// What is wrong, and what would be right.
    pub fn check_quotas(&self) -> Result<(), Refused> {
        let refuse = |message| Err(Refused::new("quota", message));
        for quota in self.guests.iter().filter_map(|guest| guest.quota) {
            match (&self.engine, self.rules.sched) {
                (Engine::Qemu(_), _) => return refuse("QEMU's vCPUs have none: use engine kvm"),
                (Engine::Sim(_), Sched::Host) => {
                    return refuse("the model of a host has none: use sched vmm");
                }
                _ => {}
            }
            match (quota, self.rules.sched) {
                (Quota::Own(quota), Sched::Vmm) => quota.check(self.cpus.len())?,
                (Quota::Own(Bandwidth { run, period, .. }), Sched::Host) => {
                    let percent = run.as_secs_f64() / period.as_secs_f64() * 100.0;
                    return Err(Refused::new(
                        "quota",
                        format!(
                            "under sched host the kernel keeps the quota of a control group: `systemd-run --scope -p CPUQuota={percent:.0}% \
                         -p CPUQuotaPeriodSec={} haltkick ...`, with --quota inherited",
                            Span(period)
                        ),
                    ));
                }
                (Quota::Inherited, Sched::Vmm) => {
                    return refuse(
                        "inherited is the kernel's quota, which schedules vCPUs only under sched host: use that",
                    );
                }
                (Quota::Inherited, Sched::Host) => {}
            }
        }
        Ok(())
    }

    /// Refuses guests that come and go where they cannot.
    ///
    /// # Errors
    /// The time that is wrong.
    pub fn check_presence(&self) -> Result<(), Refused> {
        for presence in self.guests.iter().filter_map(|guest| guest.presence) {
            if self.rules.sched == Sched::Host {
                let message = "only the VMM's own scheduler keeps a guest away: use sched vmm";
                return Err(Refused::new("from", message));
            }
            if presence.until.is_some() && self.min_sections > 0 {
                let message = "the window cannot grow for a guest that is gone: leave min-sections out";
                return Err(Refused::new("from", message));
            }
            presence.check(self.window)?;
        }
        Ok(())
    }

    /// Whether the kernel keeps a quota of it.
    pub(crate) fn inherits_quota(&self) -> bool {
        self.guests.iter().any(|guest| guest.quota == Some(Quota::Inherited))
    }
}

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

impl Needs {
    /// For these runs, but for the files that they write.
    #[must_use]
    pub fn of<'a>(runs: impl IntoIterator<Item = &'a Run>) -> Self {
        let mut needs = Self::default();
        for run in runs {
            let programs = matches!(run.engine, Engine::Qemu(_));
            needs.programs |= programs;
            needs.foreign_code |= run.engine == Engine::Threads;
            needs.switches |= run.has_vcpu_threads() && !programs && run.linux().is_none();
            needs.counters |= run.pmu;
            needs.quota |= run.inherits_quota();
            for file in run.linux().into_iter().flat_map(|(_, linux)| linux.files()) {
                if !needs.reads.iter().any(|known| known == file) {
                    needs.reads.push(file.to_owned());
                }
            }
        }
        needs
    }
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
        let available = crate::host::memory::available().expect("Linux says what can be had");
        assert!(check_memory([available / 4; 2].into_iter(), Some(available)).is_ok());
        assert!(check_memory([available].into_iter(), None).is_ok(), "where nobody knows, it is tried");
        let refused =
            |of_each| check_memory([of_each; 2].into_iter(), Some(2 << 30)).unwrap_err().to_string();
        assert!(refused(1 << 63).contains("17592186044415 MiB"), "no sum is too large");
        let refused = refused(3 << 29);
        assert!(refused.contains("3072 MiB") && refused.contains("2048 MiB"), "{refused}");
    }
}
