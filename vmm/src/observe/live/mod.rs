//! The live view of a run: a small file that the run's own thread writes ten times a second, for `haltkick top` to read.
//!
//! A frame is written in one go over the one before. A concurrent reader sees that by the checksum, and looks again. The file is
//! read and written, not mapped: a mapping ends its process if the file is truncated.

mod frame;

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::host::locks::lock;

pub use frame::{LiveFrame, LiveGuest, LivePhase, LiveVcpu, NoFrame};

/// How often a frame is written.
const EVERY: Duration = Duration::from_millis(100);

/// The file of a process that shows its runs, one at a time. When it is dropped the file says that the process is done.
#[derive(Debug)]
pub struct Live {
    file: File,
    written: Mutex<Written>,
}

#[derive(Debug, Default)]
struct Written {
    frames: u64,
    runs: u64,
    /// A run is being shown.
    is_taken: bool,
}

impl Live {
    /// In `file`, which says from now on that no run is under way yet.
    ///
    /// # Errors
    /// When nothing can be written there.
    pub fn new(file: File) -> io::Result<Self> {
        let live = Self { file, written: Mutex::default() };
        live.write(LiveFrame::default())?;
        Ok(live)
    }

    /// A run begins. `None`: another one of this process is being shown.
    pub(crate) fn begin(self: &Arc<Self>) -> Option<LiveRun> {
        let mut written = lock(&self.written);
        if std::mem::replace(&mut written.is_taken, true) {
            return None;
        }
        written.runs += 1;
        Some(LiveRun { live: Arc::clone(self), last: None })
    }

    fn write(&self, frame: LiveFrame) -> io::Result<()> {
        let mut written = lock(&self.written);
        let (sequence, run, process) = (written.frames, written.runs, std::process::id());
        written.frames += 1;
        self.file.write_all_at(&LiveFrame { sequence, run, process, ..frame }.encode(), 0)
    }

    /// Writes the phase while no run is under way. Errors are ignored: a full disk must not stop a measurement.
    fn say(&self, phase: LivePhase) {
        _ = self.write(LiveFrame { phase, ..LiveFrame::default() });
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.say(LivePhase::Ended);
    }
}

/// A run that is being shown.
#[derive(Debug)]
pub(crate) struct LiveRun {
    live: Arc<Live>,
    last: Option<Instant>,
}

impl LiveRun {
    /// Whether it is time for a frame. The next one is due a while later.
    pub(crate) fn is_due(&mut self) -> bool {
        let is_due = self.last.is_none_or(|last| last.elapsed() >= EVERY);
        if is_due {
            self.last = Some(Instant::now());
        }
        is_due
    }

    /// Writes `frame`. Errors are ignored: a full disk must not stop a measurement.
    pub(crate) fn show(&self, frame: LiveFrame) {
        _ = self.live.write(frame);
    }
}

impl Drop for LiveRun {
    fn drop(&mut self) {
        self.live.say(LivePhase::Between);
        lock(&self.live.written).is_taken = false;
    }
}

/// Reads the frame in `file`, which may be written to meanwhile.
///
/// # Errors
/// Why there is none: the rest of a sentence about the file.
pub fn read_live(file: &mut File) -> Result<LiveFrame, String> {
    const LOOKS: u32 = 20;
    let mut bytes = Vec::new();
    for _ in 0..LOOKS {
        bytes.clear();
        let read = file.seek(SeekFrom::Start(0));
        let read = read.and_then(|_| file.take(frame::MOST_BYTES as u64 + 1).read_to_end(&mut bytes));
        read.map_err(|error| format!("cannot be read: {error}"))?;
        if bytes.len() > frame::MOST_BYTES {
            return Err("is too long to be the live view of a run".into());
        }
        match LiveFrame::decode(&bytes) {
            Ok(frame) => return Ok(frame),
            Err(NoFrame::Foreign(why)) => return Err(why),
            Err(NoFrame::Torn) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
    Err("is damaged: its parts do not belong together".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> (std::path::PathBuf, File) {
        let path = std::env::temp_dir().join(format!("haltkick-live-{name}-{}", std::process::id()));
        (path.clone(), File::create(path).expect("a scratch file"))
    }

    #[test]
    fn one_run_is_shown_and_the_file_says_when_none_is() {
        let (path, file) = scratch("one");
        let live = Arc::new(Live::new(file).expect("it can be written"));
        let look = || read_live(&mut File::open(&path).expect("it is there")).expect("a frame");
        assert_eq!((look().phase, look().run), (LivePhase::Between, 0));
        let mut first = live.begin().expect("no other is shown");
        assert!(live.begin().is_none(), "the first one is");
        assert!(first.is_due() && !first.is_due());
        let guests = vec![LiveGuest { vcpus: vec![LiveVcpu::default(); 5], ..LiveGuest::default() }];
        first.show(LiveFrame { phase: LivePhase::Window, guests, ..LiveFrame::default() });
        assert_eq!((look().run, look().guests[0].vcpus.len()), (1, 5));
        let before = look().sequence;
        drop(first);
        assert_eq!((look().phase, look().guests.len()), (LivePhase::Between, 0), "a shorter frame");
        assert!(look().sequence > before);
        drop(live.begin().expect("the first one has ended"));
        assert_eq!(look().run, 2);
        drop(live);
        assert_eq!(look().phase, LivePhase::Ended);
        std::fs::remove_file(path).expect("it was there");
    }

    #[test]
    fn whoever_reads_while_frames_are_written_sees_whole_ones() {
        let (path, file) = scratch("race");
        let live = Arc::new(Live::new(file).expect("it can be written"));
        let run = live.begin().expect("no other is shown");
        let frame = |vcpus: usize| LiveFrame {
            phase: LivePhase::Window,
            guests: vec![LiveGuest { vcpus: vec![LiveVcpu::default(); vcpus], ..LiveGuest::default() }],
            ..LiveFrame::default()
        };
        std::thread::scope(|scope| {
            scope.spawn(|| (0..400).for_each(|round| run.show(frame(if round % 2 == 0 { 900 } else { 3 }))));
            let mut file = File::open(&path).expect("it is there");
            for _ in 0..400 {
                let vcpus =
                    read_live(&mut file).map(|frame| frame.guests.first().map(|guest| guest.vcpus.len()));
                assert!(matches!(vcpus, Ok(None | Some(3 | 900))), "{vcpus:?}");
            }
        });
        std::fs::remove_file(path).expect("it was there");
    }
}
