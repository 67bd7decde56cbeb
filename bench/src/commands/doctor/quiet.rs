//! Conditions here that will spoil a measurement: clocks that change, neighbours, siblings, settings of the host.

use std::thread;
use std::time::Duration;

use super::{Finding, Level, fair, pauses, preemption};
use crate::host::cpu_choice;
use crate::host::cpulist;
use crate::host::noise::{OTHERS_SHARE_LIMIT, STEAL_SHARE_LIMIT, Watch};
use crate::host::numa::{STOP_BALANCING, is_balanced};
use crate::host::probe::{self, Answer};
use crate::text::quantity::significant;

pub(super) fn findings() -> Vec<Finding> {
    let mut findings = neighbours();
    findings.extend([
        governor(),
        turbo(),
        smt(),
        nested(),
        clock_source(),
        halt_polling(),
        pauses::pause_loop_exits(),
        autogroup(),
        fair::fair_scheduler(),
        fair::branch_barrier(),
        fair::quota(),
        preemption::folding(),
        preemption::extension(),
        numa(),
        numa_balancing(),
        topology(),
        huge_pages(),
    ]);
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
    let percent = |share: Option<f64>| -> Answer {
        share.map(|share| format!("{} %", significant(share * 100.0))).ok_or_else(|| "not measured".into())
    };
    let others = noise.as_ref().map_err(Clone::clone).and_then(|noise| percent(noise.others_share));
    let steal = noise.as_ref().map_err(Clone::clone).and_then(|noise| percent(noise.steal_share));
    let above = |limit: f64, share: Option<f64>| share.is_some_and(|share| share > limit);
    let busy = noise.as_ref().is_ok_and(|noise| above(OTHERS_SHARE_LIMIT, noise.others_share));
    let stolen = noise.as_ref().is_ok_and(|noise| above(STEAL_SHARE_LIMIT, noise.steal_share));
    vec![
        Finding::of_fact(
            "busy neighbours",
            others,
            "share of the pCPUs that other processes used just now: it is missing from every figure",
            |_| {
                if busy {
                    (Level::Spoils, Some("stop them (top shows them), or choose quiet CPUs with --cpus"))
                } else {
                    (Level::Good, None)
                }
            },
        ),
        Finding::of_fact(
            "host steal",
            steal,
            "share of the pCPUs that the machine below took just now",
            |_| {
                if stolen {
                    (Level::Spoils, Some("run on hardware of your own, or on a dedicated host"))
                } else {
                    (Level::Good, None)
                }
            },
        ),
    ]
}

fn governor() -> Finding {
    let governor = probe::text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    let why = "a clock that follows the load makes the first runs slow and arms unequal";
    Finding::of_fact("frequency governor", governor, why, |governor| match governor {
        "performance" => (Level::Good, None),
        _ => (Level::Spoils, Some("sudo cpupower frequency-set -g performance")),
    })
}

fn turbo() -> Finding {
    let no_turbo = probe::text("/sys/devices/system/cpu/intel_pstate/no_turbo")
        .map(|off| if off == "1" { "off" } else { "on" });
    let boost = || {
        probe::text("/sys/devices/system/cpu/cpufreq/boost").map(|on| if on == "1" { "on" } else { "off" })
    };
    let turbo = no_turbo.or_else(|_| boost()).map(String::from);
    let why = "the boosted clock depends on how many CPUs are busy: a lock that idles pCPUs looks faster than it is";
    Finding::of_fact("turbo", turbo, why, |turbo| match turbo {
        "off" => (Level::Good, None),
        _ => (
            Level::Note,
            Some(
                "echo 1 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo (Intel), echo 0 | sudo tee /sys/devices/system/cpu/cpufreq/boost (others)",
            ),
        ),
    })
}

fn smt() -> Finding {
    let active = probe::text("/sys/devices/system/cpu/smt/active")
        .map(|active| if active == "1" { "on" } else { "off" }.into());
    let why = "siblings share a core: what one vCPU does slows the other, and PAUSE gives the core away";
    Finding::of_fact("SMT", active, why, |smt| match smt {
        "off" => (Level::Good, None),
        _ => (
            Level::Spoils,
            Some(
                "choose one CPU per core with --cpus (lscpu -e), or echo off | sudo tee /sys/devices/system/cpu/smt/control",
            ),
        ),
    })
}

fn nested() -> Finding {
    let nested = probe::has_cpu_flag("hypervisor").map(|nested| if nested { "yes" } else { "no" }.into());
    let why =
        "in a virtual machine exits cost several times as much, and its host may take the pCPUs away unseen";
    Finding::of_fact("virtual machine", nested, why, |nested| match nested {
        "no" => (Level::Good, None),
        _ => (Level::Note, Some("run on hardware for figures that are to be compared with others'")),
    })
}

fn clock_source() -> Finding {
    let source = probe::text("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    let why = "waits are measured in TSC ticks; a kernel that left the TSC distrusts it";
    Finding::of_fact("clock source", source, why, judge_clock_source)
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

fn halt_polling() -> Finding {
    let poll = probe::text("/sys/module/kvm/parameters/halt_poll_ns");
    let why = "nanoseconds that KVM spins before a halted vCPU sleeps: with it a wake-up costs less and burns a pCPU. \
               Haltkick's own doorbells do not halt in KVM";
    Finding::of_fact("halt polling", poll, why, |poll| match poll {
        "0" => (Level::Good, None),
        _ => (Level::Note, Some("echo 0 | sudo tee /sys/module/kvm/parameters/halt_poll_ns")),
    })
}

fn autogroup() -> Finding {
    let autogroup = probe::text("/proc/sys/kernel/sched_autogroup_enabled")
        .map(|on| if on == "1" { "on" } else { "off" }.into());
    let why = "CPU time is shared out per session: nice does not protect against another session's jobs";
    Finding::of_fact("autogroup", autogroup, why, |autogroup| match autogroup {
        "off" => (Level::Good, None),
        _ => (Level::Note, Some("echo 0 | sudo tee /proc/sys/kernel/sched_autogroup_enabled")),
    })
}

fn numa() -> Finding {
    let nodes = probe::text("/sys/devices/system/node/online");
    let why = "a lock that crosses nodes is another experiment than one that does not";
    Finding::of_fact("NUMA nodes", nodes, why, |nodes| match nodes {
        "0" => (Level::Good, None),
        _ => (Level::Note, Some("choose the CPUs of one node with --cpus node:0, or of several on purpose")),
    })
}

fn numa_balancing() -> Finding {
    let is_on = is_balanced();
    let value = is_on.clone().map(|is_on| if is_on { "on" } else { "off, or nothing to balance" }.into());
    let why = "the kernel unmaps pages of guests to see which node uses them: vCPUs then fault at random";
    Finding::of_fact("NUMA balancing", value, why, |_| match is_on {
        Ok(true) => (Level::Spoils, Some(STOP_BALANCING)),
        _ => (Level::Good, None),
    })
}

fn topology() -> Finding {
    let why = "CPUs by node and socket, with their cores and last levels of cache; --cpus node:N and llc:N choose among them";
    Finding::of_fact("topology", cpu_choice::picture(), why, |_| (Level::Good, None))
}

fn huge_pages() -> Finding {
    let enabled = probe::text("/sys/kernel/mm/transparent_hugepage/enabled").map(|text| {
        let chosen = text.split('[').nth(1).and_then(|rest| rest.split(']').next());
        chosen.unwrap_or(&text).to_owned()
    });
    let why = "guest memory on small pages costs page faults and TLB misses";
    Finding::of_fact("huge pages", enabled, why, |enabled| match enabled {
        "never" => (Level::Note, Some("echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled")),
        _ => (Level::Good, None),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
