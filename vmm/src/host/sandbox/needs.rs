//! Resources that a process keeps when it walls itself in.

use std::path::PathBuf;

/// The resources that a process that will run guests still needs; it gives up all others.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// It starts other programs, which inherit its walls: it keeps its files, its system calls and its privileges.
    pub programs: bool,
    /// Others of its user may look into it: those programs, or a profiler that was asked for.
    pub looked_into: bool,
    /// It runs an image's code itself.
    pub foreign_code: bool,
    /// It attaches BPF programs to the host's scheduler.
    pub switches: bool,
    /// It counts cache events.
    pub counters: bool,
    /// Files that it has yet to read.
    pub reads: Vec<PathBuf>,
    /// Directories that it will write to.
    pub writes: Vec<PathBuf>,
    /// The kernel keeps a quota of it, whose counts it reads.
    pub quota: bool,
}
