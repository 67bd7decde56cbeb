//! The host's own scheduler: its name, its slices, its barrier between vCPUs, and the quota of this process.

use std::path::Path;

use super::{Finding, Level};
use crate::host::probe::{self, Answer};

/// The first Linux with EEVDF, and the first whose CPUs have one flat queue for fair tasks.
pub(super) const EEVDF: (u32, u32) = (6, 6);
pub(super) const FLAT: (u32, u32) = (7, 3);

/// The kernel's fair scheduler, which `--sched host` leaves the vCPUs to.
pub(super) fn fair_scheduler() -> Finding {
    let release = probe::text("/proc/sys/kernel/osrelease");
    let mode = probe::text("/sys/kernel/debug/sched/cgroup_mode");
    let slice = probe::text("/sys/kernel/debug/sched/base_slice_ns");
    let value = release.and_then(|release| describe(&release, mode.ok().as_deref(), slice.ok().as_deref()));
    let why =
        "with --sched host it decides which vCPU runs; `haltkick list hosts` names models of such schedulers";
    Finding::of_fact("fair scheduler", value, why, |_| (Level::Note, None))
}

/// Major and minor number of a kernel release.
pub(super) fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse().ok());
    Some((numbers.next()?, numbers.next()?))
}

/// The scheduler of a kernel release, as far as its version and debugfs tell.
fn describe(release: &str, mode: Option<&str>, slice_ns: Option<&str>) -> Answer {
    let Some(version) = version(release) else {
        return Err(format!("the kernel's release {release} has no version"));
    };
    let (major, minor) = version;
    let mut text = if version < EEVDF {
        "CFS".to_owned()
    } else if version < FLAT {
        "EEVDF, with a queue for each group".to_owned()
    } else {
        let mode = mode.unwrap_or("not readable for this user");
        format!("EEVDF, with a flat queue for each CPU, cgroup_mode {mode}")
    };
    text += &match slice_ns.and_then(|ns| ns.parse::<f64>().ok()) {
        Some(ns) => format!("; base slice {} ms", ns / 1e6),
        None => "; base slice not readable (debugfs)".to_owned(),
    };
    Ok(format!("Linux {major}.{minor}: {text}"))
}

/// Whether the kernel has a barrier against attacks on branch prediction from guests (VMSCAPE).
pub(super) fn branch_barrier() -> Finding {
    let state = probe::text("/sys/devices/system/cpu/vulnerabilities/vmscape");
    let why = "a barrier at each return to a user-space VMM makes exits dearer for the VMM's scheduler than for KVM's own halts";
    Finding::of_fact("VMSCAPE barrier", state, why, |state| match state {
        "Not affected" | "Vulnerable" => (Level::Good, None),
        _ => (Level::Note, None),
    })
}

pub(super) fn quota() -> Finding {
    let quota =
        probe::text("/proc/self/cgroup").and_then(|text| quota_below(Path::new("/sys/fs/cgroup"), &text));
    let why = "a quota stops all vCPUs at once, and `--quota` does so on purpose";
    let is_limited = quota.as_ref().is_ok_and(|quota| quota != "max");
    // A cgroup that is made and removed again.
    let groups = haltkick_vmm::control_groups();
    let told = quota.map(|quota| match &groups {
        Ok(_) => format!("{quota}; --quota goes with --sched host too"),
        Err(reason) => format!("{quota}; --quota goes with --sched vmm only ({reason})"),
    });
    Finding::of_fact("CPU quota", told, why, |_| match (is_limited, groups.is_ok()) {
        (true, _) => (Level::Spoils, Some("run outside the limited cgroup or container")),
        (false, true) => (Level::Good, None),
        (false, false) => {
            (Level::Note, Some("run as root, or under systemd-run --user --scope -p Delegate=cpu"))
        }
    })
}

/// The quota of the control group that `membership` names, or of one above it: version 2, else version 1.
fn quota_below(root: &Path, membership: &str) -> Answer {
    let of = |line: &str| -> Option<Answer> {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, Path::new(fields.next()?.trim_start_matches('/')));
        let (folder, file) = match controllers {
            "" => (root.to_path_buf(), "cpu.max"),
            _ if controllers.split(',').any(|it| it == "cpu") => (root.join(controllers), "cpu.cfs_quota_us"),
            _ => return None,
        };
        let texts = path.ancestors().filter_map(|path| probe::text(folder.join(path).join(file)).ok());
        let texts: Vec<String> = texts.collect();
        let is_limit = |text: &&String| !text.starts_with("max") && text.as_str() != "-1";
        match (texts.iter().find(is_limit), texts.is_empty()) {
            (Some(limit), _) => Some(Ok(format!("{limit} ({file})"))),
            (None, false) => Some(Ok("max".into())),
            (None, true) => None,
        }
    };
    membership.lines().find_map(of).unwrap_or_else(|| Err("no control group tells of a quota".into()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_kernel_tells_its_scheduler_by_its_version() {
        let of = |release: &str, mode, slice| describe(release, mode, slice).unwrap();
        assert!(of("5.15.0-91-generic", None, None).starts_with("Linux 5.15: CFS; base slice not readable"));
        assert!(
            of("6.18.44-fc-v669", None, Some("2800000")).contains("queue for each group; base slice 2.8 ms")
        );
        assert!(of("7.3.1", Some("concur"), None).contains("flat queue for each CPU, cgroup_mode concur"));
        assert!(describe("next", None, None).is_err());
    }

    #[test]
    fn the_nearest_quota_above_this_process_counts() {
        let root = std::env::temp_dir().join(format!("haltkick-quota-{}", std::process::id()));
        let put = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("a/cpu.max", "50000 100000\n");
        put("a/b/cpu.max", "max 100000\n");
        put("c/cpu.max", "max 100000\n");
        put("cpu/v1/cpu.cfs_quota_us", "20000\n");
        put("cpu/cpu.cfs_quota_us", "-1\n");
        let of = |membership: &str| quota_below(&root, membership);
        assert_eq!(of("0::/a/b").unwrap(), "50000 100000 (cpu.max)");
        assert_eq!(of("0::/c").unwrap(), "max");
        assert_eq!(of("3:cpuset:/\n1:cpu:/v1\n0::/x").unwrap(), "20000 (cpu.cfs_quota_us)");
        assert_eq!(of("1:cpu:/\n0::/x").unwrap(), "max");
        assert!(of("9:name=systemd:/").is_err());
        fs::remove_dir_all(root).unwrap();
    }
}
