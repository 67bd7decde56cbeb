//! The far end of a Linux guest's serial line: makes lines of bytes.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use super::printk::{self, News};
use super::spool::Spool;
use crate::host::error::RunError;
use crate::observe::instruments::{ConsoleSink, LinuxConsole};
use crate::run::linux_outcome::Complaints;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::linux_outcome::Complaint;

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
}
