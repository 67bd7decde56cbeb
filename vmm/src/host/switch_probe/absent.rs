//! In the place of the BPF programs, in a haltkick that was built without them: there are none.

use std::io;
use std::os::fd::BorrowedFd;

use crate::host::switches::{Reported, Switch, ThreadDoes};

/// No such thing.
#[derive(Debug)]
pub(crate) enum SwitchProbe {}

impl SwitchProbe {
    pub(crate) fn attach(_: Option<Reported<'_>>) -> io::Result<Self> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "this haltkick was built without the feature `bpf`"))
    }

    pub(crate) fn flags(&self) -> BorrowedFd<'_> {
        match *self {}
    }

    pub(crate) fn watched(&self) -> Option<[BorrowedFd<'_>; 2]> {
        match *self {}
    }

    pub(crate) fn watch(&self, _: libc::pid_t, _: u32) -> io::Result<()> {
        match *self {}
    }

    pub(crate) fn thread_does(&self, _: u32, _: ThreadDoes) {
        match *self {}
    }

    pub(crate) fn drain(&self, _: impl FnMut(Switch)) {
        match *self {}
    }

    pub(crate) fn dropped(&self) -> u64 {
        match *self {}
    }
}
