//! The live view of a run: a file to which the run's own thread appends a line of JSON ten times a second, for `haltkick top` to read.
//!
//! Lines are what `haltkick top --format json` prints, without what it takes two of them to know.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::host::threads::lock;

/// Name of the format of a line.
pub const LIVE_SCHEMA: &str = "haltkick.top";
/// Version of the format of a line.
pub const LIVE_SCHEMA_VERSION: u32 = 1;

const EVERY: Duration = Duration::from_millis(100);
/// The file starts over once it is longer than this.
const MOST_BYTES: u64 = 16 << 20;
/// How much of its end is looked at: several lines of 1024 vCPUs.
const MOST_READ: u64 = 4 << 20;

/// The file of a process that shows its runs, one at a time. When it is dropped the file says that the process is done.
#[derive(Debug)]
pub struct Live {
    written: Mutex<Written>,
}

#[derive(Debug)]
struct Written {
    file: File,
    bytes: u64,
    runs: u64,
    /// A run is being shown.
    is_taken: bool,
    /// When the run that is shown had its last frame.
    last: Option<Instant>,
}

impl Live {
    /// In `file`, which is empty and open for appending, and says from now on that no run is under way yet.
    ///
    /// # Errors
    /// When nothing can be written there.
    pub fn new(file: File) -> io::Result<Self> {
        let written = Written { file, bytes: 0, runs: 0, is_taken: false, last: None };
        let live = Self { written: Mutex::new(written) };
        live.write(no_run("between"))?;
        Ok(live)
    }

    /// A run begins, which is to [`Self::end`]. `false`: another one of this process is being shown.
    pub(crate) fn begin(&self) -> bool {
        let mut written = lock(&self.written);
        if std::mem::replace(&mut written.is_taken, true) {
            return false;
        }
        (written.runs, written.last) = (written.runs + 1, None);
        true
    }

    pub(crate) fn end(&self) {
        self.show(no_run("between"));
        lock(&self.written).is_taken = false;
    }

    /// Whether it is time for a frame. The next one is due a while later.
    pub(crate) fn is_due(&self) -> bool {
        let mut written = lock(&self.written);
        let is_due = written.last.is_none_or(|last| last.elapsed() >= EVERY);
        if is_due {
            written.last = Some(Instant::now());
        }
        is_due
    }

    /// Writes `frame`, a moment of the run, in fields that `haltkick schema top` describes. Errors are ignored: a full disk must not
    /// stop a measurement.
    pub(crate) fn show(&self, frame: Value) {
        _ = self.write(frame);
    }

    /// Writes `frame`, and what is of the process.
    fn write(&self, mut frame: Value) -> io::Result<()> {
        let mut written = lock(&self.written);
        frame["schema"] = LIVE_SCHEMA.into();
        frame["schema_version"] = LIVE_SCHEMA_VERSION.into();
        frame["process"] = std::process::id().into();
        frame["run"] = written.runs.into();
        let mut line = serde_json::to_vec(&frame)?;
        line.push(b'\n');
        written.append(&line)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.show(no_run("ended"));
    }
}

impl Written {
    /// Appends a line in one go, or starts the file over with it.
    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        if self.bytes > MOST_BYTES {
            self.file.set_len(0)?;
            self.bytes = 0;
        }
        self.bytes += line.len() as u64;
        // Behind half a line no other could be read.
        self.file.write_all(line).inspect_err(|_| self.bytes = u64::MAX)
    }
}

/// The frame while no run is under way.
fn no_run(phase: &str) -> Value {
    json!({ "phase": phase, "at_ns": 0, "virtual_time": false, "sched": "vmm", "cpus": [], "guests": [] })
}

/// Reads the last whole line of `file`, which may be written to meanwhile.
///
/// # Errors
/// Why there is none: the rest of a sentence about the file.
pub fn read_live(file: &File) -> Result<Vec<u8>, String> {
    const LOOKS: u32 = 20;
    for _ in 0..LOOKS {
        let (end, is_all) = end_of(file).map_err(|error| format!("cannot be read: {error}"))?;
        let mut lines = end.rsplit(|byte| *byte == b'\n').skip(1);
        match (lines.next(), lines.next()) {
            // The first line may lack its beginning.
            (Some(last), before) if is_all || before.is_some() => return Ok(last.to_vec()),
            _ if !is_all => return Err("has lines too long to be the live view of a run".into()),
            // It starts over at this moment.
            _ => std::thread::sleep(Duration::from_millis(2)),
        }
    }
    Err("is not the live view of a run: it has no whole line".into())
}

/// The end of a file, and whether that is all of it; nothing, if it becomes shorter meanwhile.
fn end_of(file: &File) -> io::Result<(Vec<u8>, bool)> {
    let length = file.metadata()?.len();
    let from = length.saturating_sub(MOST_READ);
    let mut end = vec![0; (length - from) as usize];
    match file.read_exact_at(&mut end, from) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok((Vec::new(), true)),
        read => read.map(|()| (end, from == 0)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use vmm_sys_util::tempfile::TempFile;

    use super::*;

    /// A view in a file of this test's own.
    fn scratch() -> (TempFile, Live) {
        let scratch = TempFile::new().expect("a scratch file");
        let file = OpenOptions::new().append(true).open(scratch.as_path()).expect("it is there");
        (scratch, Live::new(file).expect("it can be written"))
    }

    fn look(file: &File) -> Value {
        serde_json::from_slice(&read_live(file).expect("a line")).expect("JSON")
    }

    #[test]
    fn one_run_is_shown_and_the_file_says_when_none_is() {
        let (scratch, live) = scratch();
        let file = scratch.as_file();
        let shown = || (look(file)["phase"].clone(), look(file)["run"].clone());
        assert_eq!(shown(), (json!("between"), json!(0)));
        assert!(live.begin() && !live.begin(), "the first one is shown");
        assert!(live.is_due() && !live.is_due());
        live.show(json!({ "phase": "window" }));
        assert_eq!(shown(), (json!("window"), json!(1)));
        live.end();
        assert_eq!(shown(), (json!("between"), json!(1)));
        assert!(live.begin() && live.is_due(), "the first one has ended");
        drop(live);
        assert_eq!(shown(), (json!("ended"), json!(2)));
    }

    #[test]
    fn whoever_reads_sees_whole_lines_of_a_file_that_starts_over() {
        const MIB: usize = 1 << 20;
        let (scratch, live) = scratch();
        let file = scratch.as_file();
        std::thread::scope(|scope| {
            let frame = |round: usize| json!({ "text": "x".repeat([MIB, 3][round % 2]) });
            let writer = scope.spawn(move || (0..80).for_each(|round| live.show(frame(round))));
            while !writer.is_finished() {
                let length = look(file)["text"].as_str().map(str::len);
                assert!(matches!(length, None | Some(3 | MIB)), "{length:?}");
                assert!(file.metadata().unwrap().len() <= MOST_BYTES + 2 * MIB as u64);
            }
        });
    }

    #[test]
    fn a_file_without_a_line_of_fitting_length_is_refused() {
        let scratch = TempFile::new().unwrap();
        for (text, why) in [
            ("half a line".to_owned(), "no whole line"),
            ("x".repeat(MOST_READ as usize + 1), "too long"),
            ("x".repeat(MOST_READ as usize) + "\n", "too long"),
        ] {
            std::fs::write(scratch.as_path(), text).unwrap();
            let refused = read_live(scratch.as_file()).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
    }
}
