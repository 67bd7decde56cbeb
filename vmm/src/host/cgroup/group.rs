//! A child of the own control group, which limits the CPU time of the threads in it.
//!
//! All its files are opened when it is made, so that a process can use it behind walls that keep it from files. The kernel releases a
//! group only by its removal, so each group is locked (flock) while its process lives: what has no lock was left behind.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use super::own::{Own, Version};
use crate::host::known::Known;
use crate::host::locks::lock;

const PREFIX: &str = "haltkick-";
/// Another process may remove a group that has just been made, before it is locked.
const ATTEMPTS: u32 = 3;
/// A thread that has been joined may need a moment, or a period of its quota, to leave its group.
const REMOVAL_ATTEMPTS: u32 = 400;
const REMOVAL_PAUSE: Duration = Duration::from_millis(5);

/// A limit on CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bandwidth {
    /// CPU time of all threads together in each period.
    pub(crate) run: Duration,
    /// Length of a period.
    pub(crate) period: Duration,
    /// CPU time of earlier periods that may be left for a later one.
    pub(crate) burst: Duration,
}

/// The kernel's counts of a group, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Periods in which the group had threads to run.
    pub(crate) periods: u64,
    /// Periods in which the quota was used up.
    pub(crate) throttled_periods: u64,
    /// Time for which CPUs were kept from running the group's threads, summed over CPUs.
    pub(crate) throttled_ns: u64,
}

/// The calls that make and remove a group's directory. The kernel makes its files with it; tests do so themselves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Calls {
    pub(super) make: fn(&Path) -> io::Result<()>,
    pub(super) remove: fn(&Path) -> io::Result<()>,
}

pub(super) const KERNEL: Calls =
    Calls { make: |path| fs::create_dir(path), remove: |path| fs::remove_dir(path) };

/// A group, which is removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Group {
    calls: Calls,
    folder: PathBuf,
    version: Version,
    /// The quota and its period: one file in version 2.
    limits: Vec<File>,
    burst: Option<File>,
    threads: File,
    stat: File,
    _lock: File,
}

impl Group {
    /// Makes a child of `own`.
    pub(super) fn new(own: &Own, calls: Calls) -> Known<Self> {
        let mut attempts = 1..=ATTEMPTS;
        loop {
            let last = attempts.next() == Some(ATTEMPTS);
            match Self::attempt(own, calls) {
                Err((_, error)) if error.kind() == io::ErrorKind::NotFound && !last => {}
                Err((what, error)) => return Err(format!("{what}: {error}").into()),
                Ok(group) => return Ok(group),
            }
        }
    }

    fn attempt(own: &Own, calls: Calls) -> Result<Self, (String, io::Error)> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        if own.version == Version::Two {
            delegate(own)?;
        }
        // Relaxed: it only has to differ.
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = own.folder.join(format!("{PREFIX}{}-{number}", std::process::id()));
        (calls.make)(&folder).map_err(|error| (format!("mkdir {}", folder.display()), error))?;
        let removed = Removed { folder: &folder, calls, is_armed: true };
        let lock = File::open(&folder).map_err(|error| (format!("open {}", folder.display()), error))?;
        flock(&lock, FlockOperation::LockExclusive)
            .map_err(|error| (format!("lock {}", folder.display()), error.into()))?;
        let (limits, burst, threads) = match own.version {
            Version::One => (&["cpu.cfs_quota_us", "cpu.cfs_period_us"][..], "cpu.cfs_burst_us", "tasks"),
            Version::Two => {
                let (path, mut kind) = to_write(&folder, "cgroup.type")?;
                kind.write_all(b"threaded\n")
                    .map_err(|error| (format!("write threaded to {}", path.display()), error))?;
                (&["cpu.max"][..], "cpu.max.burst", "cgroup.threads")
            }
        };
        let limits = limits.iter().map(|name| Ok(to_write(&folder, name)?.1));
        let limits = limits.collect::<Result<Vec<_>, (String, io::Error)>>()?;
        let threads = to_write(&folder, threads)?.1;
        let stat = folder.join("cpu.stat");
        let stat = File::open(&stat).map_err(|error| (format!("open {}", stat.display()), error))?;
        // Older kernels have none.
        let burst = to_write(&folder, burst).ok().map(|(_, file)| file);
        removed.disarm();
        Ok(Self { calls, version: own.version, limits, burst, threads, stat, _lock: lock, folder })
    }

    /// The parent's directory.
    pub(super) fn parent(&self) -> &Path {
        self.folder.parent().unwrap_or(&self.folder)
    }

    /// Limits the group's threads from now on. The kernel rounds down to whole microseconds.
    pub(crate) fn limit(&self, Bandwidth { run, period, burst }: Bandwidth) -> io::Result<()> {
        let write = |mut file: &File, text: String| file.write_all(format!("{text}\n").as_bytes());
        // The kernel refuses a burst above the quota, and a share above the parent's, at every step in between.
        if let Some(file) = &self.burst {
            write(file, "0".into())?;
        }
        match &self.limits[..] {
            [quota, period_file] => {
                write(quota, "-1".into())?;
                write(period_file, period.as_micros().to_string())?;
                write(quota, run.as_micros().to_string())?;
            }
            limits => write(&limits[0], format!("{} {}", run.as_micros(), period.as_micros()))?,
        }
        match &self.burst {
            _ if burst.is_zero() => Ok(()),
            Some(file) => write(file, burst.as_micros().to_string()),
            None => Err(io::Error::other("this kernel has no burst (Linux 5.14 and later)")),
        }
    }

    /// Moves the calling thread into the group.
    pub(crate) fn enter(&self) -> io::Result<()> {
        (&self.threads).write_all(b"0\n")
    }

    /// The counts up to now.
    pub(crate) fn counts(&self) -> io::Result<Counts> {
        let mut bytes = [0; 1024];
        let length = self.stat.read_at(&mut bytes, 0)?;
        counts(&String::from_utf8_lossy(&bytes[..length]), self.version)
            .ok_or_else(|| io::Error::other("cpu.stat has no counts of throttling"))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..REMOVAL_ATTEMPTS {
            match (self.calls.remove)(&self.folder) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(REMOVAL_PAUSE)
                }
                // The next run removes what cannot be removed now.
                _ => break,
            }
        }
        let parent = self.folder.parent().unwrap_or(&self.folder);
        let mut changed = lock(&CHANGED);
        if let Some(at) = changed.iter().position(|(folder, _)| folder == parent)
            && !has_children(parent)
        {
            // A failure leaves an unused controller behind.
            _ = changed.swap_remove(at).1.write_all(b"-cpu\n");
        }
    }
}

/// Removes a directory on drop, unless the group is complete.
struct Removed<'a> {
    folder: &'a Path,
    calls: Calls,
    is_armed: bool,
}

impl Removed<'_> {
    fn disarm(mut self) {
        self.is_armed = false;
    }
}

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        if self.is_armed {
            _ = (self.calls.remove)(self.folder);
        }
    }
}

/// Removes groups below `own` whose processes were killed.
pub(super) fn remove_leftovers(own: &Own, calls: Calls) {
    for entry in fs::read_dir(&own.folder).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_string_lossy().starts_with(PREFIX);
        let lock = File::open(entry.path()).ok().filter(|_| is_ours);
        if lock.is_some_and(|lock| flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()) {
            _ = (calls.remove)(&entry.path());
        }
    }
}

/// Own groups whose children this process has given the controller `cpu`, with their lists of controllers. The last of its children takes
/// it back.
static CHANGED: Mutex<Vec<(PathBuf, File)>> = Mutex::new(Vec::new());

/// Gives children of `own` the controller `cpu`.
fn delegate(own: &Own) -> Result<(), (String, io::Error)> {
    let has_cpu = |name: &str| {
        let path = own.folder.join(name);
        let text = fs::read_to_string(&path).map_err(|error| (format!("read {}", path.display()), error))?;
        Ok((text.split_ascii_whitespace().any(|controller| controller == "cpu"), path))
    };
    let (is_given, path) = has_cpu("cgroup.controllers")?;
    if !is_given {
        let error = io::Error::other("no cpu, which is not delegated to this group");
        return Err((path.display().to_string(), error));
    }
    if has_cpu("cgroup.subtree_control")?.0 {
        return Ok(());
    }
    let (path, mut list) = to_write(&own.folder, "cgroup.subtree_control")?;
    list.write_all(b"+cpu\n").map_err(|error| (format!("write +cpu to {}", path.display()), error))?;
    lock(&CHANGED).push((own.folder.clone(), list));
    Ok(())
}

fn to_write(folder: &Path, name: &str) -> Result<(PathBuf, File), (String, io::Error)> {
    let path = folder.join(name);
    match OpenOptions::new().write(true).open(&path) {
        Ok(file) => Ok((path, file)),
        Err(error) => Err((format!("open {}", path.display()), error)),
    }
}

fn has_children(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
}

/// Counts in `cpu.stat`: version 1 has nanoseconds, version 2 microseconds.
fn counts(text: &str, version: Version) -> Option<Counts> {
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line?.trim().parse::<u64>().ok()
    };
    let throttled_ns = match version {
        Version::One => value("throttled_time")?,
        Version::Two => value("throttled_usec")?.saturating_mul(1000),
    };
    Some(Counts { periods: value("nr_periods")?, throttled_periods: value("nr_throttled")?, throttled_ns })
}
