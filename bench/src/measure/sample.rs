//! How long simulated cells will take: some of them are simulated for a part of their time, before an experiment.
//!
//! How long a simulation takes goes with what its vCPUs do, not with their number alone: those that spin or sleep cost little.

use std::sync::Arc;
use std::time::{Duration, Instant};

use haltkick_vmm::Run;

use super::ahead::Simulate;
use super::progress::Planned;
use crate::experiment::plan::{Cell, Plan};

/// Cells that are tried, spread over the plan.
const MOST_CELLS: usize = 8;
/// A cell is tried for this part of its time first.
const FIRST_PART: u32 = 256;
/// A part that takes this much longer than the first tells enough; others are followed by one that is four times as long.
const LONG_ENOUGH: Duration = Duration::from_millis(200);

/// Time that simulated cells of the plan take here, over the time that they were to take. None where no cell is simulated, or one
/// fails: the experiment will say why.
pub(crate) fn slowdown(plan: &Plan, simulate: Simulate<'_>) -> Option<f64> {
    let cells: Vec<&Cell> = plan.cells().filter(|cell| cell.run.engine.is_simulated()).collect();
    let step = cells.len().div_ceil(MOST_CELLS).max(1);
    let (mut planned, mut takes) = (0.0, 0.0);
    for cell in cells.into_iter().step_by(step) {
        planned += Planned::of(cell).length.as_secs_f64();
        takes += whole_seconds(|part| time(&cell.run, part, simulate))?;
    }
    (planned > 0.0).then(|| takes / planned)
}

/// Time of one of `part` equal parts of a run; none if it fails.
fn time(run: &Run, part: u32, simulate: Simulate<'_>) -> Option<Duration> {
    let begin = Instant::now();
    let run = Run { warmup: run.warmup / part, ..run.clone().with_window(run.window / part) };
    let (found, _) = simulate(&run, Arc::default());
    found.is_ok().then(|| begin.elapsed())
}

/// Seconds of a whole run, by the times of parts of it: each has a start, which does not grow with the part.
fn whole_seconds(mut time: impl FnMut(u32) -> Option<Duration>) -> Option<f64> {
    let first = time(FIRST_PART)?;
    let (mut part, mut last) = (FIRST_PART, first);
    while last.saturating_sub(first) < LONG_ENOUGH && part > 1 {
        part /= 4;
        last = time(part)?;
    }
    let share = |part: u32| 1.0 / f64::from(part);
    let per_whole = (last.as_secs_f64() - first.as_secs_f64()).max(0.0) / (share(part) - share(FIRST_PART));
    Some(first.as_secs_f64() + per_whole * (1.0 - share(FIRST_PART)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_takes_as_long_as_its_parts_without_their_starts() {
        let took = |start: f64, whole: f64| {
            let mut parts = vec![];
            let seconds = whole_seconds(|part| {
                parts.push(part);
                Some(Duration::from_secs_f64(start + whole / f64::from(part)))
            });
            (parts, seconds.unwrap())
        };
        for (start, whole, parts) in [
            (0.5, 0.1, vec![256, 64, 16, 4, 1]),
            (0.5, 1.0, vec![256, 64, 16, 4]),
            (0.0, 64.0, vec![256, 64]),
        ] {
            let (tried, seconds) = took(start, whole);
            assert_eq!(tried, parts);
            assert!((seconds - (start + whole)).abs() < 1e-6, "{seconds} of {start} and {whole}");
        }
        assert_eq!(whole_seconds(|_| None), None);
    }
}
