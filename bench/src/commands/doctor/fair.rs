//! The host's own scheduler: its name, its slices, its barrier between vCPUs, and the quota of this process.

use super::{Finding, Level};
use crate::host::facts;
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
    let why = "a quota stops all vCPUs at once, and `--quota` does so on purpose";
    Finding::of_fact("CPU quota", facts::cpu_quota(), why, |quota| match quota {
        "max" => (Level::Good, None),
        _ => (
            Level::Spoils,
            Some("run outside the limited cgroup or container, or say --sched host --quota inherited"),
        ),
    })
}

#[cfg(test)]
mod tests {
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
}
