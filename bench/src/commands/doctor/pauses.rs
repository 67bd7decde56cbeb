//! Pause-loop exits of this host's KVM, and whether they act.

use haltkick_vmm::pause_ticks;

use super::{Finding, Level};
use crate::host::{identity, probe};

/// Parameters of the KVM module of one vendor.
struct Filter {
    /// Their names: the one that turns the exits off, and the other.
    names: [&'static str; 2],
    /// The one with the longest gap between two PAUSEs of a loop.
    gap: &'static str,
    without: &'static str,
}

const FILTERS: [(&str, Filter); 2] = [
    (
        "kvm_intel",
        Filter {
            names: ["ple_gap", "ple_window"],
            gap: "ple_gap",
            without: "sudo modprobe -r kvm_intel && sudo modprobe kvm_intel ple_gap=0, to measure without",
        },
    ),
    (
        "kvm_amd",
        Filter {
            names: ["pause_filter_count", "pause_filter_thresh"],
            gap: "pause_filter_thresh",
            without: "sudo modprobe -r kvm_amd && sudo modprobe kvm_amd pause_filter_count=0, to measure without",
        },
    ),
];

/// Whether this host's CPU exits when a guest in ring 0 spins.
pub(crate) fn act() -> bool {
    found().is_some_and(|(_, change)| change.is_some())
}

/// The parameters in words, and how to measure without the exits where they act.
fn found() -> Option<(String, Option<&'static str>)> {
    let read = |module: &str, name| -> Option<u64> {
        probe::text(format!("/sys/module/{module}/parameters/{name}")).ok()?.parse().ok()
    };
    let is_protected = probe::text("/proc/cmdline").is_ok_and(|words| words.contains("pkvm"));
    let vendor = identity::kvm_module().unwrap_or_default();
    FILTERS.iter().filter(|(module, _)| *module == vendor).find_map(|(module, filter)| {
        let [first, second] = filter.names;
        let values = [read(module, first)?, read(module, second)?];
        let (text, acts) = filter.describe(values, pause_ticks(), is_protected);
        Some((text, acts.then_some(filter.without)))
    })
}

pub(super) fn pause_loop_exits() -> Finding {
    let found = found();
    let change = found.as_ref().and_then(|(_, change)| *change);
    let value = found
        .map(|(text, _)| text)
        .ok_or_else(|| "this KVM module has no such parameters: PAUSE does not exit".to_owned());
    let why = "the CPU exits when a guest spins on PAUSE: plain spinlocks then suffer less than without";
    Finding::of_fact("pause-loop exits", value, why, |_| match change {
        Some(change) => (Level::Note, Some(change)),
        None => (Level::Good, None),
    })
}

impl Filter {
    /// The parameters with these values, and whether loops of PAUSEs of this length exit by them.
    fn describe(&self, values: [u64; 2], pause_ticks: u64, is_protected: bool) -> (String, bool) {
        let [first, second] = self.names;
        let text = format!("{first} {}, {second} {}", values[0], values[1]);
        let gap = if self.gap == first { values[0] } else { values[1] };
        if values[0] == 0 {
            return (format!("{text}: off"), false);
        }
        if is_protected {
            return (format!("{text}, which pKVM ignores"), false);
        }
        let text = format!("{text}; a PAUSE takes {pause_ticks} ticks");
        if gap > 0 && pause_ticks > gap {
            return (format!("{text}, which is no loop with {}", self.gap), false);
        }
        (text, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exits_act_unless_they_are_off_or_ignored_or_pauses_too_long() {
        let [(_, intel), (_, amd)] = FILTERS;
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
