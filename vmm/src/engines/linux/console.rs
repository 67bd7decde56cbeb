//! The far end of a Linux guest's serial line: makes lines of bytes, which wait for output. Their reader may be slow, or stop reading: a terminal that is held, a pipe without
//! a reader. No vCPU waits for that, nor does the end of the run.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use super::printk::{self, News};
use crate::host::error::{RunError, system};
use crate::host::threads::{lock, wait};
use crate::observe::{ConsoleSink, LinuxConsole};
use crate::run::outcome::Complaints;

/// A line that grows longer is passed on as it is.
pub(crate) const LONGEST_LINE: usize = 4096;

/// Lines of one guest, for those who listen.
pub(crate) struct Console {
    hears: ConsoleSink,
    spool: Spool,
    line: Vec<u8>,
    /// The beginning of this line was passed on already.
    is_rest: bool,
    marker: String,
    marker_seen: Option<Instant>,
    /// A line had a time stamp before user space was there.
    has_stamps: bool,
    panic_seen: Option<Instant>,
    complaints: Complaints,
}

impl Console {
    /// A console without a line yet; one that has `marker` in it says that user space is there.
    pub(crate) fn new(
        LinuxConsole { hears, shows, .. }: LinuxConsole,
        marker: String,
    ) -> Result<Self, RunError> {
        let spool = Spool::new(shows)?;
        Ok(Self {
            hears,
            spool,
            line: Vec::new(),
            is_rest: false,
            marker,
            marker_seen: None,
            has_stamps: false,
            panic_seen: None,
            complaints: Complaints::new(),
        })
    }

    /// From `started` to the marker.
    pub(crate) fn user_space(&self, started: Instant) -> Option<Duration> {
        Some(self.marker_seen?.duration_since(started))
    }

    /// Whether the kernel reported a panic at least `length` ago.
    pub(crate) fn panicked_before(&self, length: Duration) -> bool {
        self.panic_seen.is_some_and(|seen| seen.elapsed() >= length)
    }

    /// The kernel's complaints so far.
    pub(crate) fn complaints(&self) -> Complaints {
        self.complaints.clone()
    }

    /// Passes on a remaining line without an end, and waits until all lines are out, unless the output is stuck.
    pub(crate) fn finish(&mut self) {
        if !self.line.is_empty() {
            self.end_line();
        }
        self.spool.finish();
    }

    fn end_line(&mut self) {
        let line = String::from_utf8_lossy(&self.line);
        if self.marker_seen.is_none() {
            self.has_stamps |= !self.is_rest && printk::is_stamped(&line);
            self.marker_seen = line.contains(&self.marker).then(Instant::now);
        }
        match printk::news(&line, self.has_stamps).filter(|_| !self.is_rest) {
            Some(News::Panic) => _ = self.panic_seen.get_or_insert_with(Instant::now),
            Some(News::Complaint(kind)) => {
                self.complaints.entry(kind).or_insert_with(|| (0, line.clone().into_owned())).0 += 1;
            }
            None => {}
        }
        (self.hears)(&line);
        self.spool.line(line.into_owned());
        self.line.clear();
    }
}

impl Write for Console {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for &byte in bytes {
            match byte {
                b'\n' => {
                    self.end_line();
                    self.is_rest = false;
                }
                b'\r' => {}
                _ => self.line.push(byte),
            }
            if self.line.len() >= LONGEST_LINE {
                self.end_line();
                self.is_rest = true;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

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
    use crate::run::outcome::Complaint;

    /// A console to which `writes` were written, one after the other.
    fn after(writes: &[&str]) -> Console {
        let mut console = Console::new(LinuxConsole::default(), "Run /".into()).unwrap();
        writes.iter().for_each(|bytes| console.write_all(bytes.as_bytes()).unwrap());
        console
    }

    #[test]
    fn a_panic_is_the_kernels_own_line_however_it_is_written() {
        const STAMPED: &str = "[    1.000000] Run /init as init process\r\n";
        let long = "x".repeat(LONGEST_LINE);
        for (writes, expected) in [
            (&["Run /init\n", "Kernel panic - not syncing: x\n"][..], true),
            (&["Run /init\n", "Kernel pa", "nic - not syn", "cing: x\r", "\n"], true),
            (&["Run /init\n", "[    2.000000] Kernel panic - not syncing: x\n"], true),
            (&[STAMPED, "[    2.0", "00000] Kernel panic - not syncing: x\r\n"], true),
            (&[STAMPED, "<0>Kernel panic - not syncing: x\r\n"], true),
            // User space quotes it, and no line has ended.
            (&[STAMPED, "Kernel panic - not syncing: x\r\n"], false),
            (&[STAMPED, "case 7: [    2.000000] Kernel panic - not syncing: x\r\n"], false),
            (&["Run /init\n", "greps for ", "Kernel panic - not syncing: x\n"], false),
            (&["Run /init\n", &long, "Kernel panic - not syncing: x\n"], false),
            (&["Run /init\n", "10 %\rKernel panic - not syncing: x\n"], false),
            (&["Run /init\n", "Kernel panic - not syncing: x"], false),
            // The kernel has no stamps, and user space shows the log of one that has.
            (&["Run /init\n", "[    1.000000] x\n", "Kernel panic - not syncing: x\n"], true),
            (&["Run /init\n", &long, "x\nKernel panic - not syncing: x\n"], true),
        ] {
            assert_eq!(after(writes).panicked_before(Duration::ZERO), expected, "{writes:?}");
        }
    }

    #[test]
    fn complaints_are_counted_by_kind_with_the_first_of_each() {
        let lockup =
            |cpu| format!("[   30.000000] watchdog: BUG: soft lockup - CPU#{cpu} stuck for 23s! [work:31]");
        let [first, second] = [1, 2].map(lockup);
        let oops = "[   31.000000] Oops: 0002 [#1] SMP";
        let quoted = format!("log: {first}");
        let console = after(&[&[&first, &quoted, &second, oops].join("\r\n"), "\r\n"]);
        assert_eq!(
            console.complaints(),
            [(Complaint::Lockup, (2, first.clone())), (Complaint::Oops, (1, oops.into()))].into()
        );
    }

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
