//! The file in which a process shows its runs while they go, how others find it, and what they read there.
//!
//! An experiment's file lies next to its records and goes when the experiment ends. That of a single run lies in a directory of this
//! user's, where it is found by the number of the process. A process removes what ended ones have left there, since a process in its
//! sandbox cannot remove its own.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use haltkick_vmm::{LIVE_SCHEMA, LIVE_SCHEMA_VERSION, Live, input, printable, read_live};
use serde::{Deserialize, Serialize};

use crate::results::directory::{create_anew, read_json};
use crate::text::exit::{Failure, Result};

/// How the names of such files begin in a directory of results.
const PREFIX: &str = "live-";
/// How all of them end.
const ENDING: &str = ".jsonl";

/// The file of this process.
#[derive(Debug)]
pub(crate) struct LiveFile {
    live: Arc<Live>,
    /// To be removed at the end.
    path: Option<PathBuf>,
}

impl LiveFile {
    /// For a run without a directory. Before the walls go up.
    pub(crate) fn of_process() -> Result<Self> {
        let directory = of_user();
        prepare(&directory).map_err(|error| unwritable(&directory, &error))?;
        Ok(Self { live: create(&directory.join(name_of(std::process::id())))?, path: None })
    }

    pub(crate) fn within(directory: &Path) -> Result<Self> {
        let path = directory.join(format!("{PREFIX}{}", name_of(std::process::id())));
        Ok(Self { live: create(&path)?, path: Some(path) })
    }

    pub(crate) fn live(&self) -> Arc<Live> {
        Arc::clone(&self.live)
    }
}

impl Drop for LiveFile {
    fn drop(&mut self) {
        self.path.iter().for_each(|path| _ = fs::remove_file(path));
    }
}

/// A view that another process writes.
#[derive(Debug)]
pub(crate) struct FoundLive {
    path: PathBuf,
    file: File,
}

impl FoundLive {
    /// Finds the view of `target`: the directory of an experiment, or a process.
    pub(crate) fn find(target: &str) -> Result<Self> {
        let directory = Path::new(target);
        if directory.is_dir() {
            return in_results(directory);
        }
        let Ok(process) = target.parse::<u32>() else {
            return Err(Failure::usage(format!("{target}: neither a directory nor the number of a process")));
        };
        let path = of_user().join(name_of(process));
        if !path.exists() {
            return Err(Failure::usage(format!(
                "process {process} shows no single run: start one with --live on, and look while it goes; \
                 of an experiment (--set live=on) give its directory"
            )));
        }
        Self::open(path)
    }

    fn open(path: PathBuf) -> Result<Self> {
        match input::open(&path, u64::MAX) {
            Ok(file) => Ok(Self { path, file }),
            Err(error) => Err(Failure::usage(format!("{}: {error}", path.display()))),
        }
    }

    pub(crate) fn read(&self) -> Result<View> {
        let view = read_live(&self.file).and_then(|line| View::of_line(&line));
        view.map_err(|why| Failure::usage(format!("{} {why}", self.path.display())))
    }
}

/// The view in an experiment's directory that is not over; where all are, or none can be read, what the last one says.
fn in_results(directory: &Path) -> Result<FoundLive> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let views = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
    let mut last = None;
    for path in views.map(|entry| entry.path()) {
        match FoundLive::open(path).and_then(|found| Ok((found.read()?, found))) {
            Ok((frame, found)) if !frame.is_ended() && frame.is_of_living_process() => return Ok(found),
            other => last = Some(other.map(|(_, found)| found)),
        }
    }
    last.unwrap_or_else(|| {
        Err(Failure::usage(format!(
            "{}: no run in it shows itself: start it with --set live=on, and look while it goes",
            directory.display()
        )))
    })
}

/// A new file, whatever an earlier process of the same number has left.
fn create(path: &Path) -> Result<Arc<Live>> {
    create_anew(path).and_then(Live::new).map(Arc::new).map_err(|error| unwritable(path, &error))
}

fn name_of(process: u32) -> String {
    format!("{process}{ENDING}")
}

/// The directory in which this user's processes show themselves.
fn of_user() -> PathBuf {
    let of_session = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let user = rustix::process::geteuid().as_raw();
    let in_temp = || std::env::temp_dir().join(format!("haltkick-{user}"));
    of_session.map_or_else(in_temp, |path| path.join("haltkick"))
}

/// Makes the directory, which no other user may write to, and removes from it what processes left that are gone.
fn prepare(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = fs::symlink_metadata(directory)?;
    if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() || found.mode() & 0o022 != 0 {
        return Err(io::Error::other("another user may write there"));
    }
    for entry in fs::read_dir(directory)?.flatten() {
        let process =
            entry.file_name().to_str().and_then(|name| name.strip_suffix(ENDING)?.parse::<u32>().ok());
        if process.is_some_and(|process| !Path::new("/proc").join(process.to_string()).exists()) {
            _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    let remedy = "set XDG_RUNTIME_DIR to a directory of your own, or leave it out";
    Failure::usage(format!("--live: {}: {error}: {remedy}", path.display()))
}

/// Output of `haltkick top --format json`, a line each time.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct View {
    /// "haltkick.top".
    pub(crate) schema: String,
    /// Version of this format.
    pub(crate) schema_version: u32,
    /// The process that runs the guests.
    pub(crate) process: u32,
    /// Runs that it has begun, this one included.
    pub(crate) run: u64,
    /// How far the run is: "between" two runs, "starts", "warms-up", "window", "closed" or "ended".
    pub(crate) phase: String,
    /// When this was, by the clock of the run.
    pub(crate) at_ns: u64,
    /// Time that the rates are of; null: there is one frame of this run.
    pub(crate) rates_over_ns: Option<u64>,
    /// The machine is simulated: time is virtual.
    pub(crate) virtual_time: bool,
    /// "vmm" or "host".
    pub(crate) sched: String,
    /// The pCPUs.
    pub(crate) cpus: Vec<u32>,
    /// Whether what reads this runs on other CPUs than those.
    #[serde(default)]
    pub(crate) off_the_cpus: bool,
    /// The guests.
    pub(crate) guests: Vec<Guest>,
}

/// A guest.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Guest {
    /// Its name.
    pub(crate) name: String,
    /// Its lock.
    pub(crate) lock: String,
    /// Whether in the paravirtual form.
    pub(crate) pv: bool,
    /// Its workload.
    pub(crate) workload: String,
    /// Locks that its sections are spread over.
    pub(crate) locks: u32,
    /// Its vCPUs.
    pub(crate) vcpus: Vec<Vcpu>,
}

/// A vCPU. Rates are per second.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Vcpu {
    /// Its index.
    pub(crate) vcpu: u32,
    /// "not-started", "running", "runnable" (on a pCPU or waiting for one: the host's scheduler knows), "ready", "preempted",
    /// "asleep" or "left".
    pub(crate) state: String,
    /// Beginning, by the clock of the run; null: unknown.
    pub(crate) since_ns: Option<u64>,
    /// Activity that it announces: "holder", "head", "waiter" or "other".
    pub(crate) doing: String,
    /// The lock that it holds or waits for.
    pub(crate) lock: Option<u32>,
    /// Sections that it has entered, and how many a second.
    pub(crate) sections: u64,
    pub(crate) sections_per_second: Option<f64>,
    /// Exits to the VMM.
    pub(crate) exits: u64,
    pub(crate) exits_per_second: Option<f64>,
    /// Exits that were kicks; null: the kernel delivers them.
    pub(crate) kicks: Option<u64>,
    pub(crate) kicks_per_second: Option<f64>,
    /// Exits that asked for sleep; null: the kernel puts vCPUs to sleep.
    pub(crate) sleeps: Option<u64>,
    pub(crate) sleeps_per_second: Option<f64>,
}

impl View {
    /// A line that a run wrote, without rates; or why it is none, as the rest of a sentence about its file.
    pub(crate) fn of_line(line: &[u8]) -> std::result::Result<Self, String> {
        read_json(line, (LIVE_SCHEMA, LIVE_SCHEMA_VERSION), printable)
            .map_err(|why| format!("is not the live view of a run: {why}: use the haltkick that wrote it"))
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.phase == "ended"
    }

    /// Whether the process is there that wrote it. One on another host, whose directory is seen here, need not be.
    pub(crate) fn is_of_living_process(&self) -> bool {
        Path::new("/proc").join(self.process.to_string()).exists()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::measure::synthetic::Scratch;

    #[test]
    fn a_directory_that_others_may_write_to_is_not_used() {
        use std::os::unix::fs::PermissionsExt as _;
        let scratch = Scratch::new("live-others");
        let directory = scratch.path().join("haltkick");
        prepare(&directory).unwrap();
        fs::write(directory.join("4294967295.jsonl"), "left by a process that is gone").unwrap();
        prepare(&directory).unwrap();
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(prepare(&directory).unwrap_err().to_string().contains("another user may write there"));
    }

    #[test]
    fn a_line_has_no_commands_and_what_is_none_says_so() {
        let line = json!({
            "schema": "haltkick.top", "schema_version": 1, "process": 1, "run": 1, "phase": "window", "at_ns": 0,
            "virtual_time": false, "sched": "v\u{1b}\nm", "cpus": [], "guests": [],
        });
        let view = View::of_line(line.to_string().as_bytes()).unwrap();
        assert_eq!(view.sched, "v\u{fffd}\u{fffd}m");
        for other in ["", "[[[", "{}", r#"{"schema": "haltkick.top", "schema_version": 1}"#, "\u{1b}[2J"] {
            let why = View::of_line(other.as_bytes()).unwrap_err();
            assert!(why.starts_with("is not the live view of a run: "), "{other}: {why}");
            assert_eq!(why.lines().count(), 1, "{why}");
        }
        let other = line.to_string().replace("\"schema_version\":1", "\"schema_version\":2");
        let why = View::of_line(other.as_bytes()).unwrap_err();
        assert!(why.contains("version 2 of haltkick.top, where this haltkick reads version 1"), "{why}");
    }
}
