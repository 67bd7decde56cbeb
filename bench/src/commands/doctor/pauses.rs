//! Pause-loop exits of this host's KVM, and whether they act.

use haltkick_vmm::pause_ticks;

use super::{Finding, Level};
use crate::host::{identity, probe};

/// Parameters of a vendor's KVM module.
struct Filter {
    module: &'static str,
    /// Their names: the one that turns the exits off, and the other.
    names: [&'static str; 2],
    /// Index of the one with the longest gap between two PAUSEs of a loop.
    gap: usize,
}

const FILTERS: [Filter; 2] = [
    Filter { module: "kvm_intel", names: ["ple_gap", "ple_window"], gap: 0 },
    Filter { module: "kvm_amd", names: ["pause_filter_count", "pause_filter_thresh"], gap: 1 },
];

/// Whether this host's CPU exits when a guest in ring 0 spins.
pub(crate) fn act() -> bool {
    found().is_some_and(|(_, change)| change.is_some())
}

/// The parameters in words, and how to measure without the exits where they act.
fn found() -> Option<(String, Option<String>)> {
    let vendor = identity::kvm_module().ok()?;
    let filter = FILTERS.iter().find(|filter| filter.module == vendor)?;
    let Filter { module, names, .. } = filter;
    let read = |name| -> Option<u64> {
        probe::text(format!("/sys/module/{module}/parameters/{name}")).ok()?.parse().ok()
    };
    let values = [read(names[0])?, read(names[1])?];
    let is_protected = probe::text("/proc/cmdline").is_ok_and(|words| words.contains("pkvm"));
    let (text, acts) = filter.describe(values, pause_ticks(), is_protected);
    let off = names[0];
    let without = format!("sudo modprobe -r {module} && sudo modprobe {module} {off}=0, to measure without");
    Some((text, acts.then_some(without)))
}

pub(super) fn pause_loop_exits() -> Finding {
    let Some((value, change)) = found() else {
        let none = "this KVM module has no such parameters: PAUSE does not exit".to_owned();
        return Finding::of_fact("pause-loop exits", Err(none), "", |_| (Level::Good, None));
    };
    let why = "the CPU exits when a guest spins on PAUSE: plain spinlocks then suffer less than without";
    let level = if change.is_some() { Level::Note } else { Level::Good };
    Finding { name: "pause-loop exits", level, value: Some(value), why: why.into(), change }
}

impl Filter {
    /// The parameters with these values, and whether loops of PAUSEs of this length exit by them.
    fn describe(&self, values: [u64; 2], pause_ticks: u64, is_protected: bool) -> (String, bool) {
        let [first, second] = self.names;
        let text = format!("{first} {}, {second} {}", values[0], values[1]);
        if values[0] == 0 {
            return (format!("{text}: off"), false);
        }
        if is_protected {
            return (format!("{text}, which pKVM ignores"), false);
        }
        let text = format!("{text}; a PAUSE takes {pause_ticks} ticks");
        let gap = values[self.gap];
        if gap > 0 && pause_ticks > gap {
            return (format!("{text}, which is no loop with {}", self.names[self.gap]), false);
        }
        (text, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exits_act_unless_they_are_off_or_ignored_or_pauses_too_long() {
        let [intel, amd] = FILTERS;
        let described =
            |filter: &Filter, values, ticks, is_protected| filter.describe(values, ticks, is_protected);
        assert_eq!(
            described(&intel, [128, 4096], 44, false),
            ("ple_gap 128, ple_window 4096; a PAUSE takes 44 ticks".into(), true)
        );
        let (text, acts) = described(&intel, [128, 4096], 141, false);
        assert!(text.ends_with("141 ticks, which is no loop with ple_gap") && !acts, "{text}");
        assert!(!described(&intel, [128, 4096], 44, true).1 && !described(&intel, [0, 4096], 44, false).1);
        assert!(described(&amd, [3000, 128], 70, false).1 && described(&amd, [3000, 0], 141, false).1);
        assert!(!described(&amd, [0, 128], 70, false).1 && !described(&amd, [3000, 128], 141, false).1);
    }
}
