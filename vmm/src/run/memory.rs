//! Memory of the host: how much guests may take, and how much is to be had.

use std::path::Path;

use crate::guest::memory::Memory;
use crate::host::error::RunError;
use crate::image::file::Image;
use crate::run::asked::OurGuest;

/// Whether the host has the memory that all guests together may touch: found out before, not by its out-of-memory killer.
pub(crate) fn check_memory(
    of_each: impl Iterator<Item = u64>,
    available: Option<u64>,
) -> Result<(), RunError> {
    let needed = of_each.fold(0, u64::saturating_add);
    let Some(available) = available.filter(|available| needed > *available) else { return Ok(()) };
    Err(RunError::usage(format!(
        "the guests may take {} MiB together, and there are {} MiB to be had (see /proc/meminfo, memory.max): use fewer guests, or less \
         --memory",
        needed >> 20,
        available >> 20
    )))
}

/// Most of the host's memory that a guest with a pool of `pool_bytes` can make the run take, in bytes: its pool, and of a simulated
/// machine all of its memory with what is known of each of its lines, and decoded code.
pub(crate) fn most_bytes(asked: OurGuest<'_>, image: &Image, pool_bytes: u64) -> u64 {
    let Some(machine) = asked.run.engine.machine() else { return pool_bytes };
    // A guest whose memory has no valid size is refused elsewhere, so it counts as zero bytes.
    let guest = Memory::bytes_of(image.end, asked.guest.vcpus, pool_bytes).unwrap_or(0);
    guest.saturating_add(haltkick_sim::board::most_bytes(guest, machine))
}

/// Memory that can be had, in bytes: what the kernel estimates without swapping, or less where a control group has a limit.
pub(crate) fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let of_host = kib.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)?;
    let membership = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    Some(left_in_groups(Path::new("/sys/fs/cgroup"), &membership).unwrap_or(u64::MAX).min(of_host))
}

/// Least of what the limits of this process's control groups leave; `None` where none has one. `membership` is what
/// /proc/self/cgroup says.
fn left_in_groups(root: &Path, membership: &str) -> Option<u64> {
    const NAMES: [(&str, [&str; 2]); 2] = [
        ("", ["memory.max", "memory.current"]),
        ("memory", ["memory.limit_in_bytes", "memory.usage_in_bytes"]),
    ];
    let left = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let (_, [limit, used]) =
            NAMES.into_iter().find(|(name, _)| controllers.split(',').any(|one| one == *name))?;
        let root = if controllers.is_empty() { root.to_owned() } else { root.join("memory") };
        let of_group = |group: &Path| {
            let number = |name| std::fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
            // "max" is no number.
            Some(number(limit)?.saturating_sub(number(used)?).saturating_add(reclaimable(group)))
        };
        // From inside a container, its own group may be the root of all.
        let own = root.join(path.trim_start_matches('/'));
        own.ancestors().take_while(|group| group.starts_with(&root)).filter_map(of_group).min()
    };
    membership.lines().filter_map(left).min()
}

/// Bytes that the kernel takes back from a group that needs memory: those of files.
fn reclaimable(group: &Path) -> u64 {
    let text = std::fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let of_files = text.lines().filter_map(|line| {
        let (name, bytes) = line.split_once(' ')?;
        ["active_file", "inactive_file"].contains(&name).then(|| bytes.parse::<u64>().ok())?
    });
    of_files.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::run::asked::{Engine, Run};

    #[test]
    fn a_simulated_guest_takes_more_than_its_memory() {
        let image = Image::embedded();
        let machine = haltkick_sim::machine::presets()[0].machine();
        const POOL: u64 = 512 << 20;
        let kvm = Run::default();
        let sim = Run { engine: Engine::Sim(Arc::new(machine)), ..Run::default() };
        assert_eq!(most_bytes(kvm.our(0), &image, POOL), POOL);
        let of_sim = most_bytes(sim.our(0), &image, POOL);
        assert!((3 * POOL..7 * POOL).contains(&of_sim), "{of_sim} bytes");
        assert!(most_bytes(sim.our(0), &image, 0) < POOL, "a guest without a pool");
    }

    #[test]
    fn the_tightest_control_group_limits_what_guests_get() {
        let root = std::env::temp_dir().join(format!("haltkick-groups-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("a/memory.max", "1000\n");
        write("a/memory.current", "800\n");
        write("a/memory.stat", "anon 5\ninactive_file 50\nactive_file 20\n");
        write("a/b/memory.max", "max\n");
        write("a/b/memory.current", "700\n");
        write("memory/c/memory.limit_in_bytes", "90\n");
        write("memory/c/memory.usage_in_bytes", "100\n");
        let left = |membership| left_in_groups(&root, membership);
        assert_eq!(left("0::/a/b\n"), Some(270));
        assert_eq!(left("1:cpu,memory:/c\n0::/a\n"), Some(0));
        assert_eq!(left("1:cpu:/c\n0::/elsewhere\n"), None);
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn guests_get_no_more_memory_than_the_host_has() {
        let available = available().expect("Linux says what can be had");
        assert!(check_memory([available / 4; 2].into_iter(), Some(available)).is_ok());
        assert!(check_memory([available].into_iter(), None).is_ok(), "where nobody knows, it is tried");
        let refused =
            |of_each| check_memory([of_each; 2].into_iter(), Some(2 << 30)).unwrap_err().to_string();
        assert!(refused(1 << 63).contains("17592186044415 MiB"), "no sum is too large");
        let refused = refused(3 << 29);
        assert!(refused.contains("3072 MiB") && refused.contains("2048 MiB"), "{refused}");
    }
}
