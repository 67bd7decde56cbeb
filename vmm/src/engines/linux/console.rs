//! The far end of a Linux guest's serial line: makes lines of bytes, which wait for output, and tells the kernel's own from others.
//!
//! The reader of lines may be slow, or stop reading: a terminal that is held, a pipe without a reader. No vCPU waits for that, nor does the
//! end of the run.
//!
//! User space writes to the same line, and may quote a kernel. A line is the kernel's if it begins with what `printk` puts before
//! its text: a level (`<0>` to `<7>`), a time stamp (`[    1.234567]`), or both. Kernels may print neither; where none of the lines
//! before user space had a stamp, a line is taken for the kernel's if it begins with the very words.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::time::{Duration, Instant};

use crate::host::error::{RunError, system};
use crate::observe::{ConsoleSink, LinuxConsole};
use crate::run::outcome::{Complaint, Complaints};

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

    /// Whether the kernel reported a panic at least `length` ago.
    pub(crate) fn panicked_before(&self, length: Duration) -> bool {
        self.panic_seen.is_some_and(|seen| seen.elapsed() >= length)
    }

    /// Passes on a remaining line without an end, and waits until all lines are out, unless the output is stuck. Returns the time from
    /// `started` to the marker, and what the kernel complained of.
    pub(crate) fn finish(&mut self, started: Instant) -> (Option<Duration>, Complaints) {
        if !self.line.is_empty() {
            self.end_line();
        }
        self.spool.finish();
        (self.marker_seen.map(|seen| seen.duration_since(started)), std::mem::take(&mut self.complaints))
    }

    fn end_line(&mut self) {
        let line = String::from_utf8_lossy(&self.line);
        if self.marker_seen.is_none() {
            let is_stamped = without_level(&line).and_then(without_stamp).is_some();
            self.has_stamps |= !self.is_rest && is_stamped;
            self.marker_seen = line.contains(&self.marker).then(Instant::now);
        }
        match news(&line, self.has_stamps).filter(|_| !self.is_rest) {
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

pub(super) struct Spool {
    /// `None`: no more will come.
    lines: Option<Sender<String>>,
    backlog: Arc<Backlog>,
    /// Tells that lines have been passed on; it is over when all have.
    passed_on: Receiver<()>,
}

/// Relaxed throughout: counts.
#[derive(Default)]
struct Backlog {
    bytes: AtomicUsize,
    lost: AtomicU64,
}

impl Spool {
    /// A thread that passes lines on to `sink`. It belongs to no run: one that cannot go on is left behind.
    pub(super) fn new(sink: ConsoleSink) -> Result<Self, RunError> {
        let (lines, waiting) = channel::<String>();
        let (tells, passed_on) = sync_channel(1);
        let backlog = Arc::new(Backlog::default());
        let of_thread = Arc::clone(&backlog);
        let pass_on = move || {
            for line in waiting {
                of_thread.bytes.fetch_sub(kept_bytes(&line), Ordering::Relaxed);
                let lost = of_thread.lost.swap(0, Ordering::Relaxed);
                sink(&line);
                if lost > 0 {
                    sink(&format!("[{lost} lines of the console were lost: they were not read in time]"));
                }
                // Full if nothing waits for the end.
                _ = tells.try_send(());
            }
        };
        std::thread::Builder::new()
            .name("console".into())
            .spawn(pass_on)
            .map_err(system("start a thread for the console"))?;
        Ok(Self { lines: Some(lines), backlog, passed_on })
    }

    /// A line to be passed on. Does not wait.
    pub(super) fn line(&self, line: String) {
        let (waiting, bytes) = (self.backlog.bytes.load(Ordering::Relaxed), kept_bytes(&line));
        if waiting + bytes > MOST_WAITING_BYTES {
            self.backlog.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.backlog.bytes.fetch_add(bytes, Ordering::Relaxed);
        // Fails once the sink has panicked: that ends the command, but a test goes on.
        _ = self.lines.as_ref().map(|lines| lines.send(line));
    }

    /// No more lines will come: waits until all are passed on, or until none is for a while, or not all are in a longer one.
    pub(super) fn finish(&mut self) {
        let began = Instant::now();
        self.lines = None;
        while self.passed_on.recv_timeout(LAST_WAIT).is_ok() && began.elapsed() < LONGEST_WAIT {}
    }
}

/// Memory that a waiting line takes: an empty line takes some, too.
fn kept_bytes(line: &String) -> usize {
    size_of_val(line) + line.len()
}

const PANIC: &str = "Kernel panic - not syncing";

#[derive(Clone, Copy, Debug, PartialEq)]
enum News {
    Panic,
    Complaint(Complaint),
}

/// Bad news in `line`, if it is the kernel's; `has_stamps` of a kernel that puts stamps before all that it says.
fn news(line: &str, has_stamps: bool) -> Option<News> {
    let text = without_level(line)?;
    let is_marked = text.len() < line.len() || without_stamp(text).is_some();
    if has_stamps && !is_marked {
        return None;
    }
    let text = without_stamp(text).unwrap_or(text);
    match text.starts_with(PANIC) {
        true => Some(News::Panic),
        false => complaint(text, is_marked).map(News::Complaint),
    }
}

/// Returns the text behind a level, or the whole line; `None` for user space's own log, whose levels are higher.
fn without_level(line: &str) -> Option<&str> {
    let after = line.strip_prefix('<').and_then(|rest| rest.split_once('>'));
    match after.and_then(|(level, text)| Some((level.parse::<u32>().ok()?, text))) {
        Some((level, text)) => (level < 8).then_some(text),
        None => Some(line),
    }
}

/// Returns the text behind `[    1.234567] `, or behind `[    1.234567][    T1] ` with the caller.
fn without_stamp(line: &str) -> Option<&str> {
    let are_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (stamp, text) = line.strip_prefix('[')?.split_once(']')?;
    let (seconds, micros) = stamp.trim_start().split_once('.')?;
    let text = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((caller, text)) if are_digits(caller.trim_start().trim_start_matches(['C', 'T'])) => text,
        _ => text,
    };
    text.strip_prefix(' ').filter(|_| are_digits(seconds) && are_digits(micros) && micros.len() == 6)
}

/// The kind of complaint that the kernel's text begins. Without a mark of the kernel's, words that programs have in common with it
/// must be followed by its own.
fn complaint(text: &str, is_marked: bool) -> Option<Complaint> {
    /// Exceptions of code in the kernel, which adds a number of its own: `[#1]`. The other list has beginnings of its warnings.
    const EXCEPTIONS: [&str; 7] = [
        "Oops: ",
        "general protection fault",
        "invalid opcode: ",
        "divide error: ",
        "stack segment: ",
        "double fault: ",
        "int3: ",
    ];
    const OF_KERNELS: [&str; 13] = [
        "CPU: ",
        "at ",
        "possible ",
        "suspicious ",
        "inconsistent ",
        "bad unlock ",
        "lock held ",
        "held lock ",
        "Nested lock ",
        "HARDIRQ-",
        "SOFTIRQ-",
        "stack ",
        "kernel stack ",
    ];
    const HARD_LOCKUP: &str = "Watchdog detected hard LOCKUP";
    let prefix = ["watchdog: ", "NMI watchdog: ", "rcu: "].into_iter().find(|it| text.starts_with(it));
    let text = &text[prefix.map_or(0, str::len)..];
    let begins = |starts: &[&str]| starts.iter().any(|start| text.starts_with(start));
    let has = |words: &str| text.contains(words);
    let is_hard = prefix.is_some() && has(HARD_LOCKUP) || begins(&[HARD_LOCKUP]);
    if is_hard || begins(&["BUG: "]) && has(" lockup") {
        Some(Complaint::Lockup)
    } else if begins(&["INFO: rcu"]) && has(" stall") {
        Some(Complaint::Stall)
    } else if begins(&["INFO: task "]) && has(" blocked") && has(" for more than ") {
        Some(Complaint::HungTask)
    } else if begins(&EXCEPTIONS) && has(" [#") || begins(&["Oops: "]) && is_marked {
        Some(Complaint::Oops)
    } else if begins(&["BUG: ", "[ BUG: ", "kernel BUG at "]) {
        Some(Complaint::Bug)
    } else {
        let warning = text.strip_prefix("WARNING: ")?;
        let is_kernels = is_marked || has(" CPU#") || OF_KERNELS.iter().any(|it| warning.starts_with(it));
        is_kernels.then_some(Complaint::Warning)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::host::threads::lock;

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
        let mut console = after(&[&[&first, &quoted, &second, oops].join("\r\n"), "\r\n"]);
        assert_eq!(
            console.finish(Instant::now()).1,
            [(Complaint::Lockup, (2, first.clone())), (Complaint::Oops, (1, oops.into()))].into()
        );
    }

    #[test]
    fn a_line_is_heard_at_once_although_nobody_takes_what_is_shown() {
        let (held, until) = channel::<()>();
        let until = Mutex::new(until);
        let [heard, shown] = [(); 2].map(|()| Arc::new(Mutex::new(Vec::new())));
        let (hears, shows) = (Arc::clone(&heard), Arc::clone(&shown));
        let lines = LinuxConsole {
            hears: Arc::new(move |line| lock(&hears).push(line.to_owned())),
            shows: Arc::new(move |line| {
                _ = lock(&until).recv();
                lock(&shows).push(line.to_owned());
            }),
            ..LinuxConsole::default()
        };
        let mut console = Console::new(lines, "marker".into()).unwrap();
        console.write_all(b"one\r\ntwo\r\nthr").unwrap();
        assert_eq!(*lock(&heard), ["one", "two"]);
        drop(held);
        console.finish(Instant::now());
        assert_eq!(*lock(&heard), ["one", "two", "thr"], "a last line needs no end");
        assert_eq!(*lock(&shown), *lock(&heard), "all come out in order");
    }

    #[test]
    fn nobody_waits_for_one_who_takes_nothing() {
        // Empty lines take room, too.
        for (line, count) in
            [("x".repeat(1 << 16), (2 * MOST_WAITING_BYTES) >> 16), (String::new(), 1_000_000)]
        {
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
            let mut spool = spool.unwrap();
            (0..count).for_each(|_| spool.line(line.clone()));
            let began = Instant::now();
            spool.finish();
            assert!(began.elapsed() >= LAST_WAIT, "it gave up too early");
            // Once lines are read again, the reader is told what is missing.
            held.store(false, Ordering::Relaxed);
            spool.finish();
            assert!(lock(&taken).iter().any(|line| line.contains("lines of the console were lost")));
        }
    }

    #[test]
    fn the_end_does_not_wait_for_a_slow_reader_of_lines() {
        let slow = |_: &str| std::thread::sleep(Duration::from_millis(500));
        let mut spool = Spool::new(Arc::new(slow)).unwrap();
        (0..1000).for_each(|number| spool.line(number.to_string()));
        spool.finish();
        let waiting = spool.backlog.bytes.load(Ordering::Relaxed);
        assert!(waiting > 100 * size_of::<String>(), "it waited for nearly all");
    }

    #[test]
    fn bad_news_is_told_from_its_likes_with_every_mark() {
        use Complaint::{Bug, HungTask, Lockup, Oops, Stall, Warning};
        let told = |kind| Some(News::Complaint(kind));
        for (text, expected) in [
            ("Kernel panic - not syncing: Attempted to kill init!", Some(News::Panic)),
            ("watchdog: BUG: soft lockup - CPU#1 stuck for 23s! [work:31]", told(Lockup)),
            ("NMI watchdog: BUG: soft lockup - CPU#1 stuck for 23s! [work:31]", told(Lockup)),
            ("BUG: workqueue lockup - pool cpus=1 node=0", told(Lockup)),
            ("watchdog: CPU3: Watchdog detected hard LOCKUP on cpu 3", told(Lockup)),
            ("Watchdog detected hard LOCKUP on cpu 0", told(Lockup)),
            ("rcu: INFO: rcu_preempt self-detected stall on CPU", told(Stall)),
            ("INFO: rcu_sched detected stalls on CPUs/tasks: {", told(Stall)),
            ("rcu: INFO: rcu_preempt detected expedited stalls on", told(Stall)),
            ("INFO: task work:31 blocked for more than 120 seconds.", told(HungTask)),
            ("INFO: task work:31 blocked in I/O wait for more than 122 seconds.", told(HungTask)),
            ("INFO: task work:31 is blocked on a mutex likely owned by task x:2.", None),
            ("Oops: 0002 [#1] SMP NOPTI", told(Oops)),
            ("general protection fault, probably for address 0x1: 0000 [#1] SMP", told(Oops)),
            ("BUG: kernel NULL pointer dereference, address: 0000000000000008", told(Bug)),
            ("kernel BUG at mm/slub.c:448!", told(Bug)),
            ("WARNING: CPU: 1 PID: 31 at kernel/rcu/tree.c:2 x+0x1/0x2", told(Warning)),
            ("WARNING: possible circular locking dependency detected", told(Warning)),
            ("---[ end Kernel panic - not syncing: x ]---", None),
            ("INFO: lockdep is turned off.", None),
            ("traps: work[31] general protection fault ip:401000 sp:7ffc error:0", None),
            ("Spectre V2 : WARNING: Unprivileged eBPF is enabled", None),
            ("Run /init as init process", None),
        ] {
            for mark in ["[    1.234567] ", "[12345.000001][  C12] ", "<4>", "<0>[    2.000000] ", ""] {
                assert_eq!(news(&format!("{mark}{text}"), false), expected, "{mark}{text}");
                let with_stamps = expected.filter(|_| !mark.is_empty());
                assert_eq!(news(&format!("{mark}{text}"), true), with_stamps, "{mark}{text}");
            }
            for quoted in
                ["case 7: ", "<12>", "<30>[    1.234567] ", "[    1.2345] ", "[1] ", " ", "[    1.234567]"]
            {
                let quoted = format!("{quoted}{text}");
                assert_eq!(news(&quoted, quoted.starts_with('[')), None, "{quoted}");
            }
        }
    }

    #[test]
    fn a_program_may_warn_and_a_kernel_that_says_so_warns() {
        for text in ["WARNING: the disk is nearly full", "Oops: try again", "rcu: no stall"] {
            assert_eq!(news(text, false), None, "{text}");
        }
        for (text, expected) in [("WARNING: x", Complaint::Warning), ("Oops: x", Complaint::Oops)] {
            assert_eq!(news(&format!("[    1.234567] {text}"), false), Some(News::Complaint(expected)));
        }
    }
}
