//! Simulated runs, made by threads before their turn comes.
//!
//! A simulated run depends on nothing but its settings, so that it does not matter when it is made, nor what is made at the
//! same time. A session says which runs it will want; threads make them in that order, and the session takes each in its turn:
//!
//! ```text
//!  expect() ──> waits ── a thread takes the first ──> under way ──> done ── take() ──> the session
//! ```
//!
//! Few are done and not taken yet: with more than that, threads wait before they begin another. A run that is asked for and
//! was not expected is made first.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use haltkick_vmm::{Found, Run, RunError, VirtualTime};

use super::progress::{LOOKS_EVERY, Planned};
use crate::experiment::plan::{Cell, Plan};

/// Which run: its block and its cell.
pub(crate) type Key = (u32, String);

/// Makes a run, and shows how far it is.
pub(crate) type Simulate<'a> =
    &'a (dyn Fn(&Run, Arc<VirtualTime>) -> (Result<Found, RunError>, String) + Sync);

/// Runs that may be done and not taken, in addition to one for each thread.
const MOST_SPARE: usize = 16;

#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) started: SystemTime,
    pub(crate) took: Duration,
    pub(crate) result: Result<Found, RunError>,
    /// The text about a failure.
    pub(crate) story: String,
}

#[derive(Debug, Default)]
struct AheadQueue {
    waits: VecDeque<(Key, Run)>,
    /// Runs that threads are making.
    under_way: BTreeMap<Key, Arc<VirtualTime>>,
    done: BTreeMap<Key, Made>,
    /// Number of further runs that may begin. The run that the session waits for comes first, and brings its own room.
    room: usize,
    /// No further run is made: the session has ended.
    ended: bool,
}

impl AheadQueue {
    fn is_begun(&self, key: &Key) -> bool {
        self.done.contains_key(key) || self.under_way.contains_key(key)
    }
}

/// Threads that make runs on simulated machines before their turn comes.
pub(crate) struct Ahead<'a> {
    jobs: NonZeroUsize,
    simulate: Simulate<'a>,
    /// Ends what they are making.
    stop: &'a AtomicBool,
    state: Mutex<AheadQueue>,
    changed: Condvar,
}

impl<'a> Ahead<'a> {
    pub(crate) fn new(jobs: NonZeroUsize, simulate: Simulate<'a>, stop: &'a AtomicBool) -> Self {
        let state = AheadQueue { room: jobs.get() + MOST_SPARE, ..AheadQueue::default() };
        Self { jobs, simulate, stop, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// How many threads make runs at the same time.
    pub(crate) fn jobs(&self) -> usize {
        self.jobs.get()
    }

    /// These will be wanted, in this order. Those that are known already keep their place.
    pub(crate) fn expect(&self, runs: impl IntoIterator<Item = (Key, Run)>) {
        let mut state = self.state();
        for (key, run) in runs {
            if !state.is_begun(&key) && state.waits.iter().all(|(waits, _)| *waits != key) {
                state.waits.push_back((key, run));
            }
        }
        self.changed.notify_all();
    }

    /// Waits for a run, and says now and then how far it is, once it has begun.
    pub(crate) fn take(&self, key: &Key, run: &Run, mut meanwhile: impl FnMut(Duration)) -> Made {
        let mut state = self.state();
        state.room += 1;
        if !state.is_begun(key) {
            state.waits.retain(|(waits, _)| waits != key);
            state.waits.push_front((key.clone(), run.clone()));
        }
        self.changed.notify_all();
        loop {
            if let Some(made) = state.done.remove(key) {
                return made;
            }
            if let Some(passed) = state.under_way.get(key).map(|virtual_time| virtual_time.passed()) {
                drop(state);
                meanwhile(passed);
                state = self.state();
                if state.done.contains_key(key) {
                    continue;
                }
            }
            state = self.changed.wait_timeout(state, LOOKS_EVERY).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Makes runs until the end: what each of the threads does.
    pub(crate) fn work(&self) {
        while let Some((key, run, virtual_time)) = self.next() {
            let (started, begun) = (SystemTime::now(), Instant::now());
            let (result, story) = (self.simulate)(&run, virtual_time);
            let made = Made { started, took: begun.elapsed(), result, story };
            let mut state = self.state();
            state.under_way.remove(&key);
            state.done.insert(key, made);
            self.changed.notify_all();
        }
    }

    /// Ends the making of runs, of which none is wanted now.
    pub(super) fn end(&self) {
        let mut state = self.state();
        state.ended = true;
        self.changed.notify_all();
        if !state.under_way.is_empty() {
            // Relaxed: polled; nothing else is read on the strength of it.
            self.stop.store(true, Ordering::Relaxed);
        }
    }

    /// The next run to be made, once there is one that may be; none at the end.
    fn next(&self) -> Option<(Key, Run, Arc<VirtualTime>)> {
        let waits = |state: &mut AheadQueue| !state.ended && (state.waits.is_empty() || state.room == 0);
        let waited = self.changed.wait_while(self.state(), waits);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        if state.ended {
            return None;
        }
        state.room -= 1;
        let (key, run) = state.waits.pop_front()?;
        let virtual_time = Arc::new(VirtualTime::default());
        state.under_way.insert(key.clone(), Arc::clone(&virtual_time));
        Some((key, run, virtual_time))
    }

    fn state(&self) -> MutexGuard<'_, AheadQueue> {
        // Every change to it is complete when the lock is released, whatever happens to the thread then.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Cells that are tried, spread over the plan.
const MOST_CELLS: usize = 8;
/// A cell is tried for this part of its time first.
const FIRST_PART: u32 = 256;
/// A part that takes this much longer than the first tells enough; others are followed by one that is four times as long.
const LONG_ENOUGH: Duration = Duration::from_millis(200);

/// Time that simulated cells of the plan take here, over the time that they were to take: some of them are simulated for a part of their
/// time. How long a simulation takes goes with what its vCPUs do, not with their number alone: those that spin or sleep cost little. None where no cell is simulated, or one
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
    use std::sync::atomic::AtomicUsize;

    use haltkick_vmm::Guest;

    use super::*;

    /// A cell with this seed.
    fn asked(seed: u32) -> (Key, Run) {
        let guest = Guest { seed: seed.into(), ..Guest::default() };
        ((seed, "cell".into()), Run { guests: vec![guest], ..Run::default() })
    }

    #[test]
    fn few_runs_are_made_ahead_and_taken_in_any_order() {
        let (stop, begun) = (AtomicBool::new(false), AtomicUsize::new(0));
        // Each fails with its seed.
        let counted = |run: &Run, _: Arc<VirtualTime>| -> (Result<Found, RunError>, String) {
            begun.fetch_add(1, Ordering::Relaxed);
            (Err(RunError::usage(run.guests[0].seed.to_string())), String::new())
        };
        let most = 4 + MOST_SPARE;
        let ahead = Ahead::new(NonZeroUsize::new(4).unwrap(), &counted, &stop);
        std::thread::scope(|scope| {
            (0..4).for_each(|_| _ = scope.spawn(|| ahead.work()));
            ahead.expect((0..100).map(asked));
            // The last three were not expected.
            for (taken, seed) in (1..).zip((0..100).rev().chain(200..203)) {
                let (key, run) = asked(seed);
                let failed = ahead.take(&key, &run, |_| ()).result.unwrap_err().to_string();
                assert!(failed.contains(&seed.to_string()), "{seed}: {failed}");
                let begun = begun.load(Ordering::Relaxed);
                assert!((taken..=taken + 1 + most).contains(&begun), "{begun} for {taken}");
            }
            ahead.end();
            assert!(!stop.load(Ordering::Relaxed), "all were taken");
        });
    }

    #[test]
    fn a_run_takes_as_long_as_its_parts_without_their_starts() {
        for (start, whole, parts) in [
            (0.5, 0.1, vec![256, 64, 16, 4, 1]),
            (0.5, 1.0, vec![256, 64, 16, 4]),
            (0.0, 64.0, vec![256, 64]),
        ] {
            let mut tried = vec![];
            let seconds = whole_seconds(|part| {
                tried.push(part);
                Some(Duration::from_secs_f64(start + whole / f64::from(part)))
            });
            assert_eq!(tried, parts);
            assert!((seconds.unwrap() - (start + whole)).abs() < 1e-6, "{seconds:?} of {start} and {whole}");
        }
        assert_eq!(whole_seconds(|_| None), None);
    }
}
