//! The far end of a Linux guest's serial line: makes lines of bytes.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use super::spool::Spool;
use crate::host::error::RunError;
use crate::observe::instruments::{ConsoleSink, LinuxConsole};

/// First words of a kernel's panic message.
const PANIC: &str = "Kernel panic - not syncing";
/// A line that grows longer is passed on as it is.
pub(crate) const LONGEST_LINE: usize = 4096;

/// Lines of one guest, for those who listen.
pub(crate) struct Console {
    hears: ConsoleSink,
    spool: Spool,
    line: Vec<u8>,
    marker: String,
    marker_seen: Option<Instant>,
    panic_seen: Option<Instant>,
}

impl Console {
    /// A console without a line yet; one that has `marker` in it says that user space is there.
    pub(crate) fn new(
        LinuxConsole { hears, shows, .. }: LinuxConsole,
        marker: String,
    ) -> Result<Self, RunError> {
        let spool = Spool::new(shows)?;
        Ok(Self { hears, spool, line: Vec::new(), marker, marker_seen: None, panic_seen: None })
    }

    /// From `started` to the marker.
    pub(crate) fn user_space(&self, started: Instant) -> Option<Duration> {
        Some(self.marker_seen?.duration_since(started))
    }

    /// Whether the kernel reported a panic at least `length` ago.
    pub(crate) fn panicked_before(&self, length: Duration) -> bool {
        self.panic_seen.is_some_and(|seen| seen.elapsed() >= length)
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
        if self.marker_seen.is_none() && line.contains(&self.marker) {
            self.marker_seen = Some(Instant::now());
        }
        if self.panic_seen.is_none() && line.contains(PANIC) {
            self.panic_seen = Some(Instant::now());
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
                b'\n' => self.end_line(),
                b'\r' => {}
                _ => self.line.push(byte),
            }
            if self.line.len() >= LONGEST_LINE {
                self.end_line();
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
