//! `--load-to`: the think time at which an arm spends a given share of its time in its lock, as a publication says of the original
//! load. The other arms are then measured at that think time, so that their figures are predictions.

use std::time::Duration;

use haltkick_vmm::{Guest, Instruments, Outcome, Run, Span};

use super::job::Job;
use crate::commands::interrupt;
use crate::experiment::plan::Cell;
use crate::record::place::Role;
use crate::settings::machines::is_like;
use crate::text::exit::{Failure, Result};
use crate::text::output;
use crate::text::quantity::significant;

const MOST_TRIALS: u32 = 24;
/// The share is met if it is this near, as a share of itself.
const NEAR: f64 = 0.02;
/// Think times that are tried until one leaves the lock too idle: each is so much longer than the one before.
const FIRST: Duration = Duration::from_micros(1);
const LONGER: u32 = 8;
/// No lock is loaded that little by a longer think time.
const LONGEST: Duration = Duration::from_secs(1);

/// The think time at which `arm` spends the share `asked` in its lock.
pub(super) fn think(job: &Job, (asked, arm): &(f64, String)) -> Result<Span> {
    let usage = |text: String| Failure::usage(format!("--load-to: {text}"));
    let of_arm = |cell: &&Cell| cell.role == Role::Arm && cell.arm == *arm;
    let is_own = |cell: &&Cell| !cell.setting.values().any(|value| is_like(value));
    let mut cells = job.plan.cells().filter(of_arm).filter(is_own);
    let Some(cell) = cells.next() else {
        let names = job.plan.outline.arms.join(", ");
        return Err(usage(format!("there is no arm '{arm}': it is one of {names}")));
    };
    if cells.next().is_some() {
        return Err(usage(format!(
            "'{arm}' is run at several settings, and think is solved for one: vary nothing else"
        )));
    }
    let run = &cell.run;
    let Some(machine) = run.engine.machine().filter(|_| run.guests.len() == 1) else {
        return Err(usage("think is solved by simulated runs of one guest: use engine sim".into()));
    };
    let run = Run { work_rate: run.work_rate.or(Some(machine.work_rate())), ..run.clone() };
    let stop = interrupt::catch()?;
    let found = solve(*asked, |think| {
        let mut run = run.clone();
        run.guests.iter_mut().filter_map(Guest::ours_mut).for_each(|ours| ours.think = think);
        let outcome = haltkick_vmm::run(&run, &job.image, &Instruments::default(), &stop)?.outcome()?;
        let share = share_in_locks(&run, &outcome).ok_or_else(|| {
            usage(
                "this workload does not tell the time in locks at this ratio: use workload mixed, or ratio 1"
                    .into(),
            )
        })?;
        let percent = significant(share * 100.0);
        output::talk(&format!(
            "--load-to: at think {} '{arm}' spends {percent} % of its time in locks",
            Span(think)
        ));
        Ok(share)
    })?;
    found.map(Span).map_err(|nearest| {
        let (asked, nearest) = (significant(asked * 100.0), significant(nearest * 100.0));
        usage(format!("'{arm}' does not spend {asked} % of its time in locks at any think time: the nearest is {nearest} %"))
    })
}

/// The think time with this share, or the share that came nearest.
fn solve(
    asked: f64,
    mut share_at: impl FnMut(Duration) -> Result<f64>,
) -> Result<std::result::Result<Duration, f64>> {
    // Shorter than the think time that is looked for, and longer, once one of those is known.
    let (mut low, mut high) = (Duration::ZERO, None);
    let (mut think, mut nearest) = (low, f64::INFINITY);
    for _ in 0..MOST_TRIALS {
        let share = share_at(think)?;
        if (share / asked - 1.0).abs() <= NEAR {
            return Ok(Ok(think));
        }
        if (share - asked).abs() < (nearest - asked).abs() {
            nearest = share;
        }
        if share > asked {
            low = think
        } else {
            high = Some(think)
        }
        // Not even without any think, or with the longest.
        if high == Some(Duration::ZERO) || low == LONGEST {
            break;
        }
        think = high.map_or_else(|| (low * LONGER).clamp(FIRST, LONGEST), |high| (low + high) / 2);
    }
    Ok(Err(nearest))
}

/// The share of the vCPUs' time that goes into acquiring and releasing locks. Waits count as time on a pCPU where each vCPU has one.
fn share_in_locks(run: &Run, outcome: &Outcome) -> Option<f64> {
    let on_cpus: Option<u64> = outcome.vcpus.iter().map(|vcpu| vcpu.run_ns).sum();
    if let (Some(in_locks), Some(on_cpus)) = (outcome.lock_cpu, on_cpus) {
        return Some(in_locks.as_nanos() as f64 / on_cpus.max(1) as f64);
    }
    let ticks = outcome.wait.sum + outcome.unlock.sum;
    let has_times = !outcome.wait.buckets.is_empty() && outcome.vcpus.len() <= run.cpus.len();
    let all = outcome.window.as_secs_f64() * outcome.tsc_khz as f64 * 1e3 * outcome.vcpus.len() as f64;
    has_times.then(|| ticks as f64 / all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn think_is_found_within_two_percent_of_the_share() {
        let share = |think: Duration| 1.0 / (1.0 + think.as_secs_f64() / 3e-6);
        let solved = |asked| solve(asked, |think| Ok(share(think))).unwrap();
        for asked in [0.9, 0.01, 0.0001] {
            let think = solved(asked).expect("there is such a think time");
            assert!((share(think) / asked - 1.0).abs() <= NEAR, "{asked}: {think:?}");
        }
        assert!(solved(1e-9).is_err(), "too long a think");
    }
}
