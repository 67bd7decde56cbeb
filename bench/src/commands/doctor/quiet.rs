//! Conditions here that will spoil a measurement: clocks that change, neighbours, siblings, settings of the host.

use std::path::Path;
use std::thread;
use std::time::Duration;

use super::{Finding, Level, pauses};
use crate::host::noise::{Noise, OTHERS_SHARE_LIMIT, STEAL_SHARE_LIMIT, Watch};
use crate::host::probe::{self, Answer};
use crate::host::topology::{STOP_BALANCING, is_balanced};
use crate::host::{cpulist, facts};
use crate::text::quantity::percent;

pub(super) fn findings() -> Vec<Finding> {
    let mut findings = neighbours();
    findings.extend([
        governor(),
        smt(),
        clock_source(),
        halt_polling(),
        pauses::pause_loop_exits(),
        quota(),
        preferred_cpus(),
        numa_balancing(),
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

fn governor() -> Finding {
    let governor = probe::text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    let why = "a clock that follows the load makes the first runs slow and arms unequal";
    Finding::of_fact("frequency governor", governor, why, |governor| match governor {
        "performance" => (Level::Good, None),
        _ => (Level::Spoils, Some("sudo cpupower frequency-set -g performance")),
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

fn quota() -> Finding {
    let why = "a quota stops all vCPUs at once, and `--quota` does so on purpose";
    Finding::of_fact("CPU quota", facts::cpu_quota(), why, |quota| match quota {
        "max" => (Level::Good, None),
        _ => (
            Level::Spoils,
            Some("run outside the limited cgroup or container, or say --sched host --quota inherited"),
        ),
    })
}

/// Whether this kernel folds: prefers some of its CPUs while a hypervisor below it steals time.
fn preferred_cpus() -> Finding {
    let value = preferred_below(Path::new("/sys"));
    let why = "a kernel that prefers fewer CPUs moves the threads of vCPUs to them; --cpus chooses among all";
    Finding::of_fact("preferred CPUs", value, why, |text| match text {
        NO_GOVERNOR => (Level::Good, None),
        _ => (Level::Spoils, Some("sudo modprobe -r steal_governor")),
    })
}

const NO_GOVERNOR: &str = "all: no steal governor is loaded";

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

fn numa_balancing() -> Finding {
    let is_on = is_balanced();
    let value = is_on.clone().map(|is_on| if is_on { "on" } else { "off, or nothing to balance" }.into());
    let why = "the kernel unmaps pages of guests to see which node uses them: vCPUs then fault at random";
    Finding::of_fact("NUMA balancing", value, why, |_| match is_on {
        Ok(true) => (Level::Spoils, Some(STOP_BALANCING)),
        _ => (Level::Good, None),
    })
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
}
