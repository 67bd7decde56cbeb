//! Scheduling rounds: the time in which each vCPU of a run has had a turn. A window of less than a few rounds measures which vCPUs
//! happened to have a pCPU, not the lock; one of less than a period of a quota, the moment at which it began.

use std::time::Duration;

use haltkick_vmm::hosts::{Fair, Host, scale};
use haltkick_vmm::{Guest, Quota, Run, Sched, Share, Span};

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
    let runs: Vec<_> = runs.collect();
    let found = too_few(runs.iter().copied()).into_iter().chain(cut_period(runs.into_iter()));
    found.for_each(|short| output::talk(&format!("warning: {short}")));
}

/// Longest period of a quota of a guest of `run`; zero where there is none.
pub(crate) fn period(run: &Run) -> Duration {
    let periods = run.guests.iter().filter_map(|guest| guest.quota).map(Quota::period);
    periods.max().unwrap_or_default()
}

/// A warning of the run of `runs` whose window holds the fewest periods of a quota, if it does not hold whole ones.
pub(crate) fn cut_period<'a>(runs: impl Iterator<Item = &'a Run>) -> Option<String> {
    /// Periods in a window after which the part of one that it cuts no longer shows in a figure.
    const MANY: u32 = 20;
    let is_cut = |run: &&Run| {
        let period = period(run);
        run.window < period * MANY && !run.window.as_nanos().is_multiple_of(period.as_nanos().max(1))
    };
    let held = |run: &Run| run.window.as_secs_f64() / period(run).as_secs_f64();
    let run = runs.filter(is_cut).min_by(|a, b| held(a).total_cmp(&held(b)))?;
    let period = period(run);
    Some(format!(
        "a window of {} holds {} periods of the quota, so its figures depend on where in a period it began: use --window {}, or another whole \
         number of periods",
        Span(run.window),
        significant(held(run)),
        Span(whole(run.window, period))
    ))
}

/// The time, rounded up to whole periods.
pub(crate) fn whole(time: Duration, period: Duration) -> Duration {
    let ns = period.as_nanos().max(1);
    Duration::from_nanos((time.as_nanos().div_ceil(ns) * ns) as u64)
}

/// A warning of the run of `runs` whose window holds the fewest rounds, if these are too few.
pub(crate) fn too_few<'a>(runs: impl Iterator<Item = &'a Run>) -> Option<String> {
    let held = |run: &Run| run.window.as_secs_f64() / round(run).as_secs_f64();
    // Slices of a host without a model are unknown; fixed work ends when it is done.
    let is_known = |run: &&Run| run.host.is_some() || run.rules.sched == Sched::Vmm;
    let has_work = |guest: &Guest| guest.ours().is_none_or(|ours| ours.shape.work().is_some());
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

#[cfg(test)]
mod tests {
    use super::*;
    use haltkick_vmm::Bandwidth;

    #[test]
    fn a_window_of_whole_or_many_periods_needs_no_warning() {
        for (period_ms, window_ms, says) in [
            (100, 60, Some("holds 0.600 periods of the quota")),
            (100, 150, Some("use --window 200ms")),
            (7, 50, Some("use --window 56ms")),
            (100, 100, None),
            (30, 60, None),
            (7, 200, None),
        ] {
            let ms = Duration::from_millis;
            let mut run = Run { window: ms(window_ms), ..Run::default() };
            assert_eq!(cut_period([&run].into_iter()), None, "without a quota");
            run.guests[0].quota =
                Some(Quota::Own(Bandwidth { run: ms(1), period: ms(period_ms), burst: ms(0) }));
            let found = cut_period([&run].into_iter());
            assert_eq!(found.is_some(), says.is_some(), "{period_ms}, {window_ms}: {found:?}");
            assert!(found.is_none_or(|found| found.contains(says.unwrap())), "{period_ms}, {window_ms}");
        }
    }
}
