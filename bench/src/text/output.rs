//! Data to stdout, talk to stderr. A reader that went away (`| head`) is no error.

use std::io::{self, ErrorKind, IsTerminal as _, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use haltkick_vmm::printable;
use rustix::io::{Errno, fcntl_getfd};
use serde::Serialize;

use crate::text::exit::{Failure, Result};

pub(crate) fn data(text: &str) -> Result<()> {
    is_taken(text).map(|_| ())
}

/// Writes data to stdout. Whether there is still a reader.
pub(crate) fn is_taken(text: &str) -> Result<bool> {
    // Relaxed: written before there are threads.
    if WAS_CLOSED.load(Ordering::Relaxed) {
        return Err(Failure::internal("standard output: it is closed: send it to a file or to /dev/null"));
    }
    let mut stdout = anstream::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::internal(format!("standard output: {error}"))),
    }
}

/// `text` without what a terminal would take for a command, in as many lines.
pub(crate) fn clean(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// A path as it may go to a terminal: anybody may have named a file.
pub(crate) fn shown(path: &Path) -> String {
    printable(&path.to_string_lossy())
}

/// Writes lines to stderr, cleaned. A failure to do so is not told, and a stderr that takes nothing for seconds is given up: a
/// command that is to end does so.
pub(crate) fn talk(line: &str) {
    /// Once is enough: what else there is to say would wait as long.
    static GIVEN_UP: AtomicBool = AtomicBool::new(false);
    const PATIENCE: Duration = Duration::from_secs(2);
    // Relaxed: a matter of politeness.
    let patience = if GIVEN_UP.load(Ordering::Relaxed) { Duration::ZERO } else { PATIENCE };
    if stderr_takes(patience) {
        let _ = writeln!(anstream::stderr().lock(), "{}", clean(line));
    } else {
        GIVEN_UP.store(true, Ordering::Relaxed);
    }
}

/// Whether stderr takes something within that time.
fn stderr_takes(patience: Duration) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let stderr = io::stderr();
    let mut waited = [PollFd::new(&stderr, PollFlags::OUT)];
    let limit = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: 0 };
    // A descriptor that cannot be waited for is written to.
    poll(&mut waited, Some(&limit)) != Ok(0)
}

/// Draws the terminal's last line anew, at most 79 columns of it: one that wraps cannot be drawn anew.
pub(crate) fn redraw(line: &str) {
    let _ = io::stderr().write_all(redrawn(line).as_bytes());
}

fn redrawn(line: &str) -> String {
    format!("\r\x1b[2K{line:.79}")
}

/// Writes one line to stderr, however long that takes, and lets others write meanwhile: for a thread of its own.
pub(crate) fn pass_on(line: &str) {
    let line = format!("{line}\n");
    let mut rest = line.as_bytes();
    while !rest.is_empty() {
        match rustix::io::write(rustix::stdio::stderr(), rest) {
            Ok(written) => rest = &rest[written..],
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => _ = stderr_takes(Duration::from_secs(1)),
            Err(_) => return,
        }
    }
}

/// Whether a person watches stderr.
pub(crate) fn is_watched() -> bool {
    std::io::stderr().is_terminal()
}

/// Writes a record to stdout, as one line of JSON.
pub(crate) fn json(record: &impl Serialize) -> Result<()> {
    data(&format!("{}\n", to_json(record)?))
}

/// Indented JSON, as files and answers have it.
pub(crate) fn to_indented_json(content: &impl Serialize) -> Result<String> {
    let json = serde_json::to_string_pretty(content);
    json.map(|json| json + "\n").map_err(|error| Failure::internal(format!("JSON: {error}")))
}

pub(crate) fn to_json(record: &impl Serialize) -> Result<String> {
    serde_json::to_string(record).map_err(|error| Failure::internal(format!("the record as JSON: {error}")))
}

/// Any text as a string of a TOML file.
pub(crate) fn in_toml(text: &str) -> String {
    // JSON escapes as TOML does, but for DEL.
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// Whether what is written to standard output is lost.
static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

#[used]
#[expect(unsafe_code, reason = "nothing else runs before Rust does")]
// SAFETY: the section holds functions without results that the C library calls, once, before `main`. This one makes a system call
// and a store, and relies on nothing that `main` sets up.
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = look;

extern "C" fn look() {
    let is_closed = fcntl_getfd(rustix::stdio::stdout()) == Err(Errno::BADF);
    WAS_CLOSED.store(is_closed, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redrawn_line_never_wraps_a_narrow_terminal() {
        assert_eq!(redrawn(&"x".repeat(100)), format!("\r\x1b[2K{}", "x".repeat(79)));
    }
}
