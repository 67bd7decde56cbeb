//! Simulated runs, made by threads before their turn comes.
//!
//! A simulated run depends on nothing but its settings, so that it does not matter when it is made, nor what is made at the
//! same time. A session orders the runs that come next, threads make them in that order, and the session takes each in its turn.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use haltkick_vmm::{Found, Run, RunError, VirtualTime};

use super::progress::{LOOKS_EVERY, Planned, Progress};
use crate::experiment::plan::{Cell, Plan};

/// Makes a run, and shows how far it is. Some of its guests may have failed.
pub(crate) type Simulate<'a> = &'a (dyn Fn(&Run, Arc<VirtualTime>) -> Result<Found, RunError> + Sync);

/// Runs that may be ordered and not taken, in addition to one for each thread.
const MOST_SPARE: usize = 16;

#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) started: SystemTime,
    pub(crate) took: Duration,
    pub(crate) result: Result<Found, RunError>,
}

/// An order, for the thread that makes the run.
struct Order {
    run: Run,
    virtual_time: Arc<VirtualTime>,
    made: Sender<Made>,
}

/// An order as the session keeps it.
#[derive(Debug)]
pub(crate) struct Ordered {
    virtual_time: Arc<VirtualTime>,
    made: Receiver<Made>,
}

impl Ordered {
    /// Waits for the run, and says now and then how far it is.
    pub(super) fn take(self, mut meanwhile: impl FnMut(Duration)) -> Made {
        loop {
            match self.made.recv_timeout(LOOKS_EVERY) {
                Ok(made) => return made,
                Err(RecvTimeoutError::Timeout) => meanwhile(self.virtual_time.passed()),
                Err(RecvTimeoutError::Disconnected) => panic!("the thread that makes the run is gone"),
            }
        }
    }
}

/// Threads that make runs on simulated machines before their turn comes.
pub(crate) struct Ahead<'a> {
    jobs: NonZeroUsize,
    simulate: Simulate<'a>,
    /// Ends what they are making.
    stop: &'a AtomicBool,
    /// Way to the threads that simulate; `None` once the session has ended.
    orders: Mutex<Option<Sender<Order>>>,
    ordered: Mutex<Receiver<Order>>,
}

impl<'a> Ahead<'a> {
    pub(crate) fn new(jobs: NonZeroUsize, simulate: Simulate<'a>, stop: &'a AtomicBool) -> Self {
        let (orders, ordered) = mpsc::channel();
        Self { jobs, simulate, stop, orders: Mutex::new(Some(orders)), ordered: Mutex::new(ordered) }
    }

    /// How many threads make runs at the same time.
    pub(super) fn jobs(&self) -> usize {
        self.jobs.get()
    }

    /// Runs that may be ordered and not taken: results that wait take memory.
    pub(super) fn most(&self) -> usize {
        self.jobs.get() + MOST_SPARE
    }

    pub(super) fn order(&self, run: Run) -> Ordered {
        let (made, result) = mpsc::channel();
        let virtual_time = Arc::<VirtualTime>::default();
        let order = Order { run, virtual_time: Arc::clone(&virtual_time), made };
        if let Some(orders) = &*lock(&self.orders) {
            orders.send(order).expect("the receiver is as old as the sender");
        }
        Ordered { virtual_time, made: result }
    }

    /// Makes runs until the end: what each of the threads does.
    pub(super) fn work(&self) {
        while let Some(Order { run, virtual_time, made }) = self.next() {
            let (started, begun) = (SystemTime::now(), Instant::now());
            let result = (self.simulate)(&run, virtual_time);
            // A session that has ended takes it no longer.
            _ = made.send(Made { started, took: begun.elapsed(), result });
        }
    }

    /// The next run to be made, once there is one; none at the end.
    fn next(&self) -> Option<Order> {
        lock(&self.ordered).recv().ok()
    }

    /// Ends the making of runs. `is_cut` says that some were ordered and are not wanted now.
    pub(super) fn end(&self, is_cut: bool) {
        // A thread that waits for an order gives way to the next line.
        *lock(&self.orders) = None;
        lock(&self.ordered).try_iter().for_each(drop);
        if is_cut {
            // Relaxed: polled; nothing else is read on the strength of it.
            self.stop.store(true, Ordering::Relaxed);
        }
    }
}

/// Locks a mutex. A panic ends the process, so only tests poison one.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Cells that are tried, spread over the plan.
const MOST_CELLS: usize = 8;
/// A cell is tried for this part of its time first.
const FIRST_PART: u32 = 256;
/// A part that takes this much longer than the first tells enough; others are followed by one that is four times as long.
const LONG_ENOUGH: Duration = Duration::from_millis(200);

/// Lets `progress` know how long simulated cells of the plan take here: some of them are simulated for a part of their time. How long a
/// simulation takes goes with what its vCPUs do, not with their number alone: those that spin or sleep cost little. A cell
/// that fails is passed over: the experiment will say why.
pub(crate) fn try_some(plan: &Plan, simulate: Simulate<'_>, progress: &mut Progress) {
    let cells: Vec<&Cell> = plan.cells().filter(|cell| cell.run.engine.is_simulated()).collect();
    let step = cells.len().div_ceil(MOST_CELLS).max(1);
    for cell in cells.into_iter().step_by(step) {
        if let Some(seconds) = whole_seconds(|part| time(&cell.run, part, simulate)) {
            progress.cell_done(Planned::of(cell), Duration::from_secs_f64(seconds));
        }
    }
}

/// Time of one of `part` equal parts of a run; none if it fails.
fn time(run: &Run, part: u32, simulate: Simulate<'_>) -> Option<Duration> {
    let begin = Instant::now();
    let run = Run { warmup: run.warmup / part, ..run.clone().with_window(run.window / part) };
    let found = simulate(&run, Arc::default()).and_then(Found::all);
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
