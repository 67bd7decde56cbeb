//! Console lines that wait for output. Their reader may be slow, or stop reading: a terminal that is held, a pipe without
//! a reader. No vCPU waits for that, nor does the end of the run.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::host::error::{RunError, system};
use crate::host::locks::{lock, wait};
use crate::observe::instruments::ConsoleSink;

/// Text that may wait to be taken; what comes beyond is lost, and counted.
const MOST_WAITING_BYTES: usize = 4 << 20;
/// How long the run's end waits for the next line to be taken, and for all of them: lines that are taken slowly may be millions.
const LAST_WAIT: Duration = Duration::from_secs(2);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// See the module.
pub(super) struct Spool(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<Backlog>,
    /// Rings when there is something to take, and when something has been taken.
    changed: Condvar,
}

#[derive(Default)]
struct Backlog {
    lines: VecDeque<String>,
    bytes: usize,
    lost: u64,
    /// A line has been taken out and not yet been passed on.
    busy: bool,
    /// Lines that were passed on.
    passed_on: u64,
    ends: bool,
}

impl Spool {
    /// A thread that passes lines on to `sink`. It belongs to no run: one that cannot go on is left behind.
    pub(super) fn new(sink: ConsoleSink) -> Result<Self, RunError> {
        let shared = Arc::new(Shared::default());
        let for_thread = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("console".into())
            .spawn(move || for_thread.pass_on(&sink))
            .map_err(system("start a thread for the console"))?;
        Ok(Self(shared))
    }

    /// A line to be passed on. Does not wait.
    pub(super) fn line(&self, line: String) {
        let mut state = lock(&self.0.state);
        if state.bytes + kept_bytes(&line) > MOST_WAITING_BYTES {
            state.lost += 1;
            return;
        }
        state.bytes += kept_bytes(&line);
        state.lines.push_back(line);
        self.0.changed.notify_all();
    }

    /// No more lines will come: waits until all are passed on, or until none is for a while, or not all are in a longer one.
    pub(super) fn finish(&self) {
        let began = Instant::now();
        let mut state = lock(&self.0.state);
        state.ends = true;
        self.0.changed.notify_all();
        while state.busy || !state.lines.is_empty() {
            let before = state.passed_on;
            state = wait(&self.0.changed, state, Some(LAST_WAIT));
            if state.passed_on == before || began.elapsed() >= LONGEST_WAIT {
                return;
            }
        }
    }
}

/// Memory that a waiting line takes: an empty line takes some, too.
fn kept_bytes(line: &String) -> usize {
    size_of_val(line) + line.len()
}

impl Shared {
    fn pass_on(&self, sink: &ConsoleSink) {
        let mut state = lock(&self.state);
        loop {
            if let Some(line) = state.lines.pop_front() {
                state.bytes -= kept_bytes(&line);
                let lost = std::mem::take(&mut state.lost);
                state.busy = true;
                drop(state);
                sink(&line);
                if lost > 0 {
                    sink(&format!("[{lost} lines of the console were lost: they were not read in time]"));
                }
                state = lock(&self.state);
                state.busy = false;
                state.passed_on += 1;
                self.changed.notify_all();
            } else if state.ends {
                return;
            } else {
                state = wait(&self.changed, state, None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn lines_come_out_in_order_and_all_of_them() {
        let taken = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&taken);
        let spool = Spool::new(Arc::new(move |line| lock(&sink).push(line.to_owned()))).unwrap();
        (0..1000).for_each(|number| spool.line(number.to_string()));
        spool.finish();
        assert_eq!(*lock(&taken), (0..1000).map(|number| number.to_string()).collect::<Vec<_>>());
    }

    #[test]
    fn nobody_waits_for_one_who_takes_nothing() {
        let held = Arc::new(AtomicBool::new(true));
        let until = Arc::clone(&held);
        let taken = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&taken);
        let spool = Spool::new(Arc::new(move |line| {
            while until.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
            lock(&sink).push(line.to_owned());
        }));
        let spool = spool.unwrap();
        let line = "x".repeat(1 << 16);
        (0..2 * MOST_WAITING_BYTES / line.len()).for_each(|_| spool.line(line.clone()));
        let began = Instant::now();
        spool.finish();
        assert!(began.elapsed() >= LAST_WAIT, "it gave up too early");
        // Once lines are read again, the reader is told what is missing.
        held.store(false, Ordering::Relaxed);
        spool.finish();
        assert!(lock(&taken).iter().any(|line| line.contains("lines of the console were lost")));
    }
    #[test]
    fn empty_lines_take_room_too() {
        let held = Arc::new(AtomicBool::new(true));
        let until = Arc::clone(&held);
        let sink = move |_: &str| {
            while until.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        let spool = Spool::new(Arc::new(sink)).unwrap();
        (0..1_000_000).for_each(|_| spool.line(String::new()));
        let state = lock(&spool.0.state);
        assert!(state.lines.len() * size_of::<String>() <= MOST_WAITING_BYTES, "{} wait", state.lines.len());
        assert!(state.lost > 0);
        held.store(false, Ordering::Relaxed);
    }

    #[test]
    fn the_end_does_not_wait_for_a_slow_reader_of_lines() {
        let slow = |_: &str| std::thread::sleep(Duration::from_millis(500));
        let spool = Spool::new(Arc::new(slow)).unwrap();
        (0..1000).for_each(|number| spool.line(number.to_string()));
        spool.finish();
        assert!(lock(&spool.0.state).lines.len() > 100, "it waited for nearly all");
    }
}
