//! How long it takes from a start to the first acquisition, and how long QEMU takes with the same image and the same KVM.

use std::process::Command;

use haltkick_vmm::{Probe, find_qemu};

use super::{Finding, Level};
use crate::analysis::statistics::{Estimate, median};
use crate::record::Record;
use crate::text::quantity::{significant, time_ns};

/// Starts of each: as few as give an interval.
const STARTS: usize = 6;
const VCPUS: &str = "16";

/// Starts of a command of its own each time, as a user would: a process finds out once what is not in the cache.
pub(super) fn finding(probe: &Result<Probe, String>) -> Finding {
    let why = "16 vCPUs under the host's scheduler, from the start of a run to the first acquisition; QEMU's microvm with KVM \
               from its start, with the same image, and in brackets the former over the latter, with its 95 % interval";
    let figures = probe.as_ref().map_err(Clone::clone).and_then(figures);
    Finding::of_fact("start-up", figures, why, |_| (Level::Good, None))
}

fn figures(probe: &Probe) -> Result<String, String> {
    // Features that QEMU's guest may rely on are known by now.
    let kick = if probe.kick_by_hypercall.is_ok() { "kvm" } else { "ipi" };
    let qemu = ["--engine", "qemu-kvm", "--pv-backend", kick];
    let (mut ours, mut theirs) =
        (Vec::new(), find_qemu().map(|_| Vec::new()).map_err(|error| error.to_string()));
    for _ in 0..STARTS {
        ours.push(start_up(&[])?);
        if let Ok(times) = &mut theirs {
            match start_up(&qemu) {
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
fn start_up(arguments: &[&str]) -> Result<f64, String> {
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
