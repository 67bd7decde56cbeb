//! Two latencies of this host. The cost of a wake-up: paravirtual locks pay it for the end of spinning, so it is what they have to save.
//! And the time from a start to the first acquisition, next to that of QEMU with the same image and the same KVM.

use std::process::Command;
use std::time::Duration;

use haltkick_vmm::{Image, Known, Probe, PvBackend, RoundTrip, Rules, Run, Sched, find_qemu};

use super::{Finding, Level};
use crate::analysis::statistics::{Estimate, median};
use crate::host::cpulist;
use crate::record::Record;
use crate::settings::{Settings, Supply};
use crate::text::quantity::{significant, time_ns};

/// Pairs of measurements for each figure, and how long each one takes.
const PAIRS: usize = 8;
const WINDOW: Duration = Duration::from_millis(20);

/// Round trips through each back end that works, under each scheduler that it works with.
pub(super) fn wake_ups(probe: &Result<Probe, String>) -> Finding {
    let why = "pv_kick, the wake-up, pv_wait and the same back, two vCPUs on one pCPU: the cost of a handoff to a sleeper, \
               twice; in brackets: over the same exits and wake-ups with nothing around them, with its 95 % interval";
    let figures = probe.as_ref().map_err(Clone::clone).and_then(round_trips);
    Finding::of_fact("wake-ups", figures, why, |_| (Level::Good, None))
}

fn round_trips(probe: &Probe) -> Result<String, String> {
    let image = Image::embedded();
    let allowed = cpulist::allowed().map_err(|failure| failure.message)?;
    let mut settings = Settings::default();
    settings.set("ratio", "1")?;
    let mut run = settings
        .resolve(Supply { image: &image, allowed: &allowed })
        .map_err(|wrong| format!("{}: {}", wrong.about, wrong.message))?;
    (run.window, run.warmup) = (WINDOW, WINDOW / 4);
    let in_kernel = |works: &Known<()>| probe.ring0_native && works.is_ok();
    let ways = [
        (in_kernel(&probe.kick_by_hypercall), PvBackend::Kvm, Sched::Host),
        (in_kernel(&probe.kick_by_interrupt), PvBackend::Ipi, Sched::Host),
        (true, PvBackend::Vmm, Sched::Host),
        (true, PvBackend::Vmm, Sched::Vmm),
    ];
    let figure = |(_, pv_backend, sched): (bool, PvBackend, Sched)| {
        let run = Run { pv_backend, rules: Rules { sched, ..run.rules }, ..run.clone() };
        let pairs: Result<Vec<_>, _> = (0..PAIRS).map(|_| RoundTrip::measure(&run, &image)).collect();
        let name = match sched {
            Sched::Host => format!("{}, sched host", pv_backend.name()),
            Sched::Vmm => format!("{}, sched vmm", pv_backend.name()),
        };
        match pairs {
            Ok(pairs) => format!("{name}: {}", in_words(&pairs)),
            Err(error) => format!("{name}: {error}"),
        }
    };
    Ok(ways.into_iter().filter(|(works, ..)| *works).map(figure).collect::<Vec<_>>().join("; "))
}

fn in_words(pairs: &[RoundTrip]) -> String {
    let through: Vec<f64> = pairs.iter().map(|pair| pair.through.as_nanos() as f64).collect();
    let ratios: Vec<f64> =
        pairs.iter().map(|pair| pair.through.as_secs_f64() / pair.bare.as_secs_f64()).collect();
    format!("{}{}", time_ns(median(&through)), in_brackets(&ratios))
}

/// Starts of each: as few as give an interval.
const STARTS: usize = 6;
const VCPUS: &str = "16";

/// Starts of a command of its own each time, as a user would: a process finds out once what is not in the cache.
pub(super) fn start_up(probe: &Result<Probe, String>) -> Finding {
    let why = "16 vCPUs under the host's scheduler, from the start of a run to the first acquisition; QEMU's microvm with KVM \
               from its start, with the same image, and in brackets the former over the latter, with its 95 % interval";
    let figures = probe.as_ref().map_err(Clone::clone).and_then(starts);
    Finding::of_fact("start-up", figures, why, |_| (Level::Good, None))
}

fn starts(probe: &Probe) -> Result<String, String> {
    // Features that QEMU's guest may rely on are known by now.
    let kick = if probe.kick_by_hypercall.is_ok() { "kvm" } else { "ipi" };
    let qemu = ["--engine", "qemu-kvm", "--pv-backend", kick];
    let (mut ours, mut theirs) =
        (Vec::new(), find_qemu().map(|_| Vec::new()).map_err(|error| error.to_string()));
    for _ in 0..STARTS {
        ours.push(time_of_start(&[])?);
        if let Ok(times) = &mut theirs {
            match time_of_start(&qemu) {
                Ok(time) => times.push(time),
                Err(reason) => theirs = Err(reason),
            }
        }
    }
    let ours_in_words = time_ns(median(&ours));
    Ok(match theirs {
        Ok(theirs) => {
            let ratios: Vec<f64> = ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect();
            format!("{ours_in_words}; QEMU {}{}", time_ns(median(&theirs)), in_brackets(&ratios))
        }
        Err(reason) => format!("{ours_in_words}; QEMU: {reason}"),
    })
}

/// The ratio with its interval, if there is one.
fn in_brackets(ratios: &[f64]) -> String {
    let estimate = Estimate::of_positive(ratios);
    let Some((ratio, interval)) =
        estimate.and_then(|estimate| Some((estimate.hodges_lehmann, estimate.interval?)))
    else {
        return String::new();
    };
    let [ratio, low, high] = [ratio, interval.low, interval.high].map(significant);
    format!(" ({ratio}, {low} to {high})")
}

/// Nanoseconds that a command's run took to its first acquisition, by its own record.
fn time_of_start(arguments: &[&str]) -> Result<f64, String> {
    let myself =
        std::env::current_exe().map_err(|error| format!("this program is not to be found: {error}"))?;
    let mut command = Command::new(myself);
    command.args(["run", "--format", "json", "--no-ideal", "--vcpus", VCPUS, "--sched", "host"]);
    command
        .args(["--lock", "qspinlock", "--pv", "on", "--warmup", "1ms", "--duration", "1ms"])
        .args(arguments);
    let output = command.output().map_err(|error| format!("this program cannot be started: {error}"))?;
    let record: Record = serde_json::from_slice(&output.stdout).map_err(|_| {
        let reason = String::from_utf8_lossy(&output.stderr);
        reason
            .lines()
            .next()
            .unwrap_or("it ends without a record")
            .trim_start_matches("haltkick: ")
            .to_owned()
    })?;
    Ok(record.amount("start_up_ns"))
}
