//! The file in which a process shows its runs while they go, and how others find it.
//!
//! An experiment's file lies next to its records and goes when the experiment ends. That of a single run lies in a directory of this
//! user's, where it is found by the number of the process. A process removes what ended ones have left there, since a process in its
//! sandbox cannot remove its own.

mod view;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use haltkick_vmm::{Live, read_live};

use crate::text::exit::{Failure, Result};

pub(crate) use view::{Guest, Vcpu, View};

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
        let directory = of_user().and_then(|path| prepare(&path).map(|()| path));
        let path = directory.map_err(unwritable)?.join(name_of(std::process::id()));
        let live = create(&path).map_err(|error| unwritable(with(&path, error)))?;
        Ok(Self { live, path: None })
    }

    /// For an experiment in `directory`.
    pub(crate) fn within(directory: &Path) -> Result<Self> {
        let path = directory.join(format!("{PREFIX}{}", name_of(std::process::id())));
        let live = create(&path).map_err(|error| unwritable(with(&path, error)))?;
        Ok(Self { live, path: Some(path) })
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
        let path = of_user().map_err(unwritable)?.join(name_of(process));
        match Self::open(&path) {
            Ok(found) => Ok(found),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Failure::usage(format!(
                "process {process} shows no single run: start one with --live on, and look while it goes; \
                 of an experiment (--set live=on) give its directory"
            ))),
            Err(error) => Err(Failure::usage(format!("{}: {error}", path.display()))),
        }
    }

    fn open(path: &Path) -> io::Result<Self> {
        // Looked at before it is opened: to open a pipe would wait for its other end.
        if !fs::metadata(path)?.is_file() {
            return Err(io::Error::other("is no file"));
        }
        Ok(Self { path: path.to_owned(), file: File::open(path)? })
    }

    /// How things are now.
    pub(crate) fn read(&self) -> Result<View> {
        let view = read_live(&self.file).and_then(|line| View::of_line(&line));
        view.map_err(|why| Failure::usage(format!("{} {why}", self.path.display())))
    }
}

/// The view in an experiment's directory that is not over; where all are, or none can be read, what the last one says.
fn in_results(directory: &Path) -> Result<FoundLive> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let is_view = |name: &str| name.starts_with(PREFIX);
    let paths =
        entries.filter(|entry| is_view(&entry.file_name().to_string_lossy())).map(|entry| entry.path());
    let mut last = None;
    for path in paths {
        let opened =
            FoundLive::open(&path).map_err(|error| Failure::usage(format!("{}: {error}", path.display())));
        let read = opened.and_then(|found| found.read().map(|frame| (found, frame)));
        match read {
            Ok((found, frame)) if !frame.is_ended() && frame.is_of_living_process() => return Ok(found),
            other => last = Some(other.map(|(found, _)| found)),
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
fn create(path: &Path) -> io::Result<Arc<Live>> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)?;
    Live::new(file).map(Arc::new)
}

fn name_of(process: u32) -> String {
    format!("{process}{ENDING}")
}

/// The directory in which this user's processes show themselves.
fn of_user() -> io::Result<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    if let Some(path) =
        std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute())
    {
        return Ok(path.join("haltkick"));
    }
    Ok(std::env::temp_dir().join(format!("haltkick-{user}")))
}

/// Makes the directory, which no other user may write to, and removes from it what processes left that are gone.
fn prepare(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(with(directory, error)),
        _ => {}
    }
    let found = fs::symlink_metadata(directory)?;
    if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() || found.mode() & 0o022 != 0 {
        return Err(with(directory, io::Error::other("another user may write there")));
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

fn with(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn unwritable(error: io::Error) -> Failure {
    Failure::usage(format!(
        "--live: {error}: set XDG_RUNTIME_DIR to a directory of your own, or leave it out"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::synthetic::Scratch;

    #[test]
    fn a_view_is_found_by_its_directory_until_the_experiment_ends() {
        let scratch = Scratch::new("live");
        let directory = scratch.path().to_str().unwrap().to_owned();
        let none = FoundLive::find(&directory).unwrap_err().message;
        assert!(none.contains("no run in it shows itself"), "{none}");
        let file = LiveFile::within(scratch.path()).unwrap();
        let found = FoundLive::find(&directory).unwrap();
        let frame = found.read().unwrap();
        assert_eq!((frame.phase.as_str(), frame.process), ("between", std::process::id()));
        assert!(frame.is_of_living_process());
        drop(file);
        assert!(found.read().unwrap().is_ended(), "an observer learns that it is over");
        assert!(FoundLive::find(&directory).is_err());
    }

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
}
