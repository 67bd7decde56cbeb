//! Conditions here that will spoil a measurement: clocks that change, neighbours, siblings, settings of the host.

use std::path::Path;
use std::thread;
use std::time::Duration;

use haltkick_vmm::pause_ticks;

use super::{Finding, Level};
use crate::host::noise::{Noise, OTHERS_SHARE_LIMIT, STEAL_SHARE_LIMIT, Watch};
use crate::host::probe::{self, Answer};
use crate::host::topology::{STOP_BALANCING, is_balanced};
use crate::host::{cpulist, facts, identity};
use crate::text::quantity::percent;

pub(super) fn findings() -> Vec<Finding> {
    let mut findings = neighbours();
    findings.extend(settings());
    findings
}

/// How long the neighbours are watched.
const WATCH: Duration = Duration::from_millis(500);

fn neighbours() -> Vec<Finding> {
    let noise = cpulist::allowed().map_err(|failure| failure.message).and_then(|cpus| {
        let watch = Watch::start(&cpus.0);
        thread::sleep(WATCH);
        watch.finish().map(|(noise, _)| noise).map_err(|reason| reason.to_string())
    });
    let finding = |name, share: fn(&Noise) -> Option<f64>, limit: f64, why, advice| {
        let known = |noise: Noise| share(&noise).ok_or_else(|| "not measured".to_owned());
        let share = noise.clone().and_then(known);
        let spoils = share.as_ref().is_ok_and(|share| *share > limit);
        let told = share.map(percent);
        Finding::of_fact(name, told, why, |_| match spoils {
            true => (Level::Spoils, Some(advice)),
            false => (Level::Good, None),
        })
    };
    vec![
        finding(
            "busy neighbours",
            |noise| noise.others_share,
            OTHERS_SHARE_LIMIT,
            "share of the pCPUs that other processes used just now: it is missing from every figure",
            "stop them (top shows them), or choose quiet CPUs with --cpus",
        ),
        finding(
            "host steal",
            |noise| noise.steal_share,
            STEAL_SHARE_LIMIT,
            "share of the pCPUs that the machine below took just now",
            "run on hardware of your own, or on a dedicated host",
        ),
    ]
}

fn settings() -> [Finding; 8] {
    let governor = probe::text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    let why = "a clock that follows the load makes the first runs slow and arms unequal";
    let change = "sudo cpupower frequency-set -g performance";
    let governor = spoils_unless("performance", "frequency governor", governor, why, change);
    let smt = probe::text("/sys/devices/system/cpu/smt/active");
    let smt = smt.map(|active| if active == "1" { "on" } else { "off" }.into());
    let why = "siblings share a core: what one vCPU does slows the other, and PAUSE gives the core away";
    let change = "choose one CPU per core with --cpus (lscpu -e), or echo off | sudo tee /sys/devices/system/cpu/smt/control";
    let smt = spoils_unless("off", "SMT", smt, why, change);
    let clock = probe::text("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    let why = "waits are measured in TSC ticks; a kernel that left the TSC distrusts it";
    let clock = Finding::of_fact("clock source", clock, why, judge_clock_source);
    let poll = probe::text("/sys/module/kvm/parameters/halt_poll_ns");
    let why = "nanoseconds that KVM spins before a halted vCPU sleeps: with it a wake-up costs less and burns a pCPU. \
               Haltkick's own doorbells do not halt in KVM";
    let poll = Finding::of_fact("halt polling", poll, why, |poll| match poll {
        "0" => (Level::Good, None),
        _ => (Level::Note, Some("echo 0 | sudo tee /sys/module/kvm/parameters/halt_poll_ns")),
    });
    let why = "a quota stops all vCPUs at once, and `--quota` does so on purpose";
    let change = "run outside the limited cgroup or container, or say --sched host --quota inherited";
    let quota = spoils_unless("max", "CPU quota", facts::cpu_quota(), why, change);
    let preferred = preferred_below(Path::new("/sys"));
    let why = "a kernel that prefers fewer CPUs moves the threads of vCPUs to them; --cpus chooses among all";
    let change = "sudo modprobe -r steal_governor";
    let preferred = spoils_unless(NO_GOVERNOR, "preferred CPUs", preferred, why, change);
    let numa = is_balanced().map(|is_on| if is_on { "on" } else { NO_BALANCE }.into());
    let why = "the kernel unmaps pages of guests to see which node uses them: vCPUs then fault at random";
    let numa = spoils_unless(NO_BALANCE, "NUMA balancing", numa, why, STOP_BALANCING);
    [governor, smt, clock, poll, pause_loop_exits(), quota, preferred, numa]
}

/// A finding about a setting that spoils measurements unless it has the one `good` value.
fn spoils_unless(good: &str, name: &'static str, fact: Answer, why: &str, change: &'static str) -> Finding {
    Finding::of_fact(name, fact, why, |value| match value == good {
        true => (Level::Good, None),
        false => (Level::Spoils, Some(change)),
    })
}

fn judge_clock_source(source: &str) -> (Level, Option<&'static str>) {
    match source {
        // Hypervisors' clocks are the TSC with a factor: those of KVM, Xen and Hyper-V.
        "tsc" | "kvm-clock" | "xen" | "hyperv_clocksource_tsc_page" => (Level::Good, None),
        "hyperv_clocksource_msr" => (
            Level::Spoils,
            Some(
                "Hyper-V gives this machine no TSC of one rate, and each reading is an exit: ask for another host or size",
            ),
        ),
        _ => (
            Level::Spoils,
            Some("see 'dmesg | grep -i tsc'; boot with tsc=reliable if the firmware is to blame"),
        ),
    }
}

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
pub(crate) fn pauses_exit() -> bool {
    pause_filter().is_some_and(|(_, change)| change.is_some())
}

/// The parameters in words, and how to measure without the exits where they act.
fn pause_filter() -> Option<(String, Option<String>)> {
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

fn pause_loop_exits() -> Finding {
    let Some((value, change)) = pause_filter() else {
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
        let gap = values[self.gap];
        match values[0] {
            0 => (format!("{text}: off"), false),
            _ if is_protected => (format!("{text}, which pKVM ignores"), false),
            _ if gap > 0 && pause_ticks > gap => {
                let name = self.names[self.gap];
                (format!("{text}; a PAUSE takes {pause_ticks} ticks, which is no loop with {name}"), false)
            }
            _ => (format!("{text}; a PAUSE takes {pause_ticks} ticks"), true),
        }
    }
}

const NO_BALANCE: &str = "off, or nothing to balance";
const NO_GOVERNOR: &str = "all: no steal governor is loaded";

/// CPUs that this kernel prefers while a hypervisor below it steals time, if it folds.
fn preferred_below(sys: &Path) -> Answer {
    let preferred = probe::text(sys.join("devices/system/cpu/preferred"))
        .map_err(|_| "this kernel has none: Linux 7.4 or later does".to_owned())?;
    let parameters = sys.join("module/steal_governor/parameters");
    let read = |name: &str| probe::text(parameters.join(name));
    match (read("interval_ms"), read("low_threshold"), read("high_threshold")) {
        (Ok(interval), Ok(low), Ok(high)) => Ok(format!(
            "{preferred}, by a governor: every {interval} ms, {low} to {high} hundredths of a percent"
        )),
        _ => Ok(NO_GOVERNOR.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::synthetic::Scratch;

    #[test]
    fn no_firmware_is_blamed_for_a_hypervisors_clock() {
        for (source, level, blames) in [
            ("tsc", Level::Good, false),
            ("xen", Level::Good, false),
            ("hyperv_clocksource_tsc_page", Level::Good, false),
            ("hyperv_clocksource_msr", Level::Spoils, false),
            ("hpet", Level::Spoils, true),
        ] {
            let (found, advice) = judge_clock_source(source);
            let firmware = advice.is_some_and(|advice| advice.contains("firmware"));
            assert_eq!((found, firmware), (level, blames), "{source}");
        }
    }

    #[test]
    fn a_governor_is_told_with_its_parameters() {
        let sys = Scratch::new("governor");
        assert!(preferred_below(sys.path()).unwrap_err().contains("this kernel has none"));
        sys.put("devices/system/cpu/preferred", "0-3\n");
        assert_eq!(preferred_below(sys.path()).unwrap(), NO_GOVERNOR);
        for (name, value) in [("interval_ms", "1000"), ("low_threshold", "200"), ("high_threshold", "500")] {
            sys.put(format!("module/steal_governor/parameters/{name}"), value);
        }
        let told = preferred_below(sys.path()).unwrap();
        assert_eq!(told, "0-3, by a governor: every 1000 ms, 200 to 500 hundredths of a percent");
    }

    #[test]
    fn exits_act_unless_they_are_off_or_ignored_or_pauses_too_long() {
        let [intel, amd] = FILTERS;
        let told = "ple_gap 128, ple_window 4096; a PAUSE takes 44 ticks".to_owned();
        assert_eq!(intel.describe([128, 4096], 44, false), (told, true));
        let (text, acts) = intel.describe([128, 4096], 141, false);
        assert!(text.ends_with("141 ticks, which is no loop with ple_gap") && !acts, "{text}");
        assert!(!intel.describe([128, 4096], 44, true).1 && !intel.describe([0, 4096], 44, false).1);
        assert!(amd.describe([3000, 128], 70, false).1 && amd.describe([3000, 0], 141, false).1);
        assert!(!amd.describe([0, 128], 70, false).1 && !amd.describe([3000, 128], 141, false).1);
    }
}
