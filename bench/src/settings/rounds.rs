//! Scheduling rounds: the time in which each vCPU of a run has had a turn. A window of less than a few rounds measures which vCPUs
//! happened to have a pCPU, not the lock.

use std::time::Duration;

use haltkick_vmm::hosts::{Fair, Host, scale};
use haltkick_vmm::{Guest, Run, Sched, Share, Span};

use crate::text::output;
use crate::text::quantity::significant;

/// Rounds that a window needs for a figure.
pub(crate) const LEAST: u32 = 8;

/// Time in which each vCPU of all guests has one turn.
pub(crate) fn round(run: &Run) -> Duration {
    let (pcpus, each) = (run.cpus.len() as u32, vcpus(run).div_ceil(run.cpus.len().max(1) as u32));
    match (&run.host, run.rules.sched) {
        (Some(host), Sched::Host) => round_of_host(host, pcpus, each),
        _ => run.rules.slice * each,
    }
}

/// Length of `rounds` rounds; none where each vCPU has a pCPU of its own.
pub(crate) fn last(run: &Run, rounds: u32) -> Duration {
    let is_shared = vcpus(run) as usize > run.cpus.len();
    if is_shared { round(run).saturating_mul(rounds) } else { Duration::ZERO }
}

/// Warns of a window that is too short for a figure.
pub(crate) fn tell_of_too_few<'a>(runs: impl Iterator<Item = &'a Run>) {
    too_few(runs).iter().for_each(|short| output::talk(&format!("warning: {short}")));
}

/// A warning of the run of `runs` whose window holds the fewest rounds, if these are too few.
pub(crate) fn too_few<'a>(runs: impl Iterator<Item = &'a Run>) -> Option<String> {
    let held = |run: &Run| run.window.as_secs_f64() / round(run).as_secs_f64();
    // Slices of a host without a model are unknown; fixed work ends when it is done.
    let is_known = |run: &&Run| run.host.is_some() || run.rules.sched == Sched::Vmm;
    let has_work = |guest: &Guest| guest.ours().is_none_or(|ours| ours.mix.work_sections.is_some());
    let short = runs.filter(is_known).filter(|run| !run.guests.iter().any(has_work));
    let short = short.filter(|run| run.window < last(run, LEAST));
    let run = short.min_by(|a, b| held(a).total_cmp(&held(b)))?;
    let (vcpus, pcpus) = (vcpus(run), run.cpus.len());
    Some(format!(
        "a window of {} holds {} scheduling rounds of {vcpus} vCPUs on {pcpus} pCPUs, and a figure needs {LEAST}: use --window {}, or \
         shorter slices",
        Span(run.window),
        significant(held(run)),
        Span(last(run, LEAST))
    ))
}

/// vCPUs of all guests, each as large a share of the pCPUs as that of the vCPU with the smallest.
fn vcpus(run: &Run) -> u32 {
    let vcpus = run.guests.iter().map(|guest| guest.vcpus);
    match run.rules.share {
        Share::Vcpu => vcpus.sum(),
        // A vCPU of the largest guest has the smallest share.
        Share::Guest => vcpus.max().unwrap_or(1) * run.guests.len() as u32,
    }
}

/// A round where a model of a host has `each` tasks on each of `pcpus`.
pub(crate) fn round_of_host(host: &Host, pcpus: u32, each: u32) -> Duration {
    let ns = match host.fair {
        Fair::Eevdf(it) => it.base_slice_ns * u64::from(each),
        Fair::Cfs(it) => it.latency_ns.max(it.min_granularity_ns * u64::from(each)),
    };
    Duration::from_nanos(ns * scale(pcpus))
}
