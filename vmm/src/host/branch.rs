//! Branches of this process: copies that go on from where it stands, and report by a pipe.
//!
//! The kernel copies all memory as it is written, so a branch costs what it changes. The process must have one thread when it
//! branches: a copy has the calling thread alone, and locks that others held stay locked in it.
#![expect(unsafe_code, reason = "fork(2) and _exit(2) have no safe form")]

use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};

use rustix::process::{Pid, WaitOptions, waitpid};

/// Which of both processes this is, after a branch.
pub(crate) enum Side {
    Branch(Reporter),
    Trunk(Awaited),
}

pub(crate) struct Reporter(PipeWriter);

pub(crate) struct Awaited {
    pid: Pid,
    pipe: PipeReader,
}

pub(crate) fn branch() -> io::Result<Side> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("it has more than one thread, which is a fault of Haltkick"));
    }
    let (pipe, reporter) = io::pipe()?;
    // SAFETY: the process has one thread, so that the copy finds every lock free and may go on as the process would.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Side::Branch(Reporter(reporter))),
        pid => {
            let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidData)?;
            Ok(Side::Trunk(Awaited { pid, pipe }))
        }
    }
}

impl Reporter {
    /// Reports, and ends the branch. Nothing that the process keeps for its end is done: that is the trunk's.
    pub(crate) fn end(mut self, report: &[u8]) -> ! {
        let written = self.0.write_all(report).and_then(|()| self.0.flush());
        drop(self);
        // SAFETY: ends the process, whatever it holds.
        unsafe { libc::_exit(i32::from(written.is_err())) }
    }
}

impl Awaited {
    /// Waits for the end of the branch.
    pub(crate) fn report(mut self) -> io::Result<Vec<u8>> {
        let mut report = Vec::new();
        let read = self.pipe.read_to_end(&mut report);
        let ended = loop {
            match waitpid(Some(self.pid), WaitOptions::empty()) {
                Err(rustix::io::Errno::INTR) => {}
                ended => break ended?,
            }
        };
        read?;
        match ended {
            Some((_, status)) if status.exit_status() == Some(0) => Ok(report),
            Some((_, status)) => Err(io::Error::other(match status.terminating_signal() {
                Some(signal) => format!("it was killed by signal {signal}: is there memory enough?"),
                None => "it ended without a report, which is a fault of Haltkick".to_owned(),
            })),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_several_threads_is_not_copied() {
        // A test has a thread of its own.
        let (done, ends) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || ends.recv());
        let refused = match branch() {
            Ok(Side::Branch(reporter)) => reporter.end(b""),
            Ok(Side::Trunk(awaited)) => panic!("a copy was made: {:?}", awaited.report()),
            Err(error) => error.to_string(),
        };
        drop(done);
        _ = other.join();
        assert!(refused.contains("more than one thread"), "{refused}");
    }
}
