//! The system calls that are made to fail, and with what.

use std::fmt;

/// A kind of system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Call {
    pub(crate) number: i64,
    /// The request of an ioctl; of a write: standard output, standard error, or 3 for all others. Else 0.
    pub(crate) detail: u64,
}

/// Name, number, and the errors that a host may answer with, the likeliest first. Not here are futex, whose wake-ups are never
/// interrupted, and prlimit64, by which a process may always ask for its own limits.
type Kind = (&'static str, i64, &'static [i32]);

const KINDS: [Kind; 35] = [
    ("openat", libc::SYS_openat, &[libc::EMFILE, libc::ENOMEM, libc::EINTR]),
    ("read", libc::SYS_read, &[libc::EIO, libc::EINTR]),
    ("pread64", libc::SYS_pread64, &[libc::EIO, libc::EINTR]),
    ("write", libc::SYS_write, &[libc::ENOSPC, libc::EINTR, libc::EIO]),
    ("ioctl", libc::SYS_ioctl, &[libc::ENOMEM, libc::EINTR, libc::EMFILE, libc::EIO]),
    ("mmap", libc::SYS_mmap, &[libc::ENOMEM]),
    ("mprotect", libc::SYS_mprotect, &[libc::ENOMEM]),
    ("madvise", libc::SYS_madvise, &[libc::ENOMEM]),
    ("clone3", libc::SYS_clone3, &[libc::EAGAIN]),
    ("eventfd2", libc::SYS_eventfd2, &[libc::EMFILE]),
    ("memfd_create", libc::SYS_memfd_create, &[libc::EMFILE]),
    ("pipe2", libc::SYS_pipe2, &[libc::EMFILE]),
    ("fcntl", libc::SYS_fcntl, &[libc::EMFILE]),
    ("timer_create", libc::SYS_timer_create, &[libc::EAGAIN]),
    ("sched_setaffinity", libc::SYS_sched_setaffinity, &[libc::EINVAL]),
    ("sched_getaffinity", libc::SYS_sched_getaffinity, &[libc::EINVAL]),
    ("prctl", libc::SYS_prctl, &[libc::EINVAL]),
    ("seccomp", libc::SYS_seccomp, &[libc::ENOMEM]),
    ("bpf", libc::SYS_bpf, &[libc::ENOMEM]),
    ("perf_event_open", libc::SYS_perf_event_open, &[libc::EMFILE]),
    ("getrandom", libc::SYS_getrandom, &[libc::EINTR]),
    ("poll", libc::SYS_poll, &[libc::ENOMEM, libc::EINTR]),
    ("ppoll", libc::SYS_ppoll, &[libc::ENOMEM, libc::EINTR]),
    ("clock_nanosleep", libc::SYS_clock_nanosleep, &[libc::EINTR]),
    ("statx", libc::SYS_statx, &[libc::ENOMEM]),
    ("getdents64", libc::SYS_getdents64, &[libc::EIO]),
    ("lseek", libc::SYS_lseek, &[libc::EIO]),
    ("ftruncate", libc::SYS_ftruncate, &[libc::EIO]),
    ("flock", libc::SYS_flock, &[libc::ENOLCK]),
    ("fsync", libc::SYS_fsync, &[libc::EIO]),
    ("rename", libc::SYS_rename, &[libc::ENOSPC]),
    ("renameat", libc::SYS_renameat, &[libc::ENOSPC]),
    ("mkdir", libc::SYS_mkdir, &[libc::ENOSPC]),
    ("unlink", libc::SYS_unlink, &[libc::EIO]),
    ("readlink", libc::SYS_readlink, &[libc::ENOMEM]),
];

/// KVM's requests that are worth a name.
const REQUESTS: [(&str, u64); 12] = [
    ("KVM_GET_API_VERSION", 0xae00),
    ("KVM_CREATE_VM", 0xae01),
    ("KVM_CHECK_EXTENSION", 0xae03),
    ("KVM_GET_VCPU_MMAP_SIZE", 0xae04),
    ("KVM_GET_SUPPORTED_CPUID", 0xc008_ae05),
    ("KVM_CREATE_VCPU", 0xae41),
    ("KVM_SET_USER_MEMORY_REGION", 0x4020_ae46),
    ("KVM_RUN", 0xae80),
    ("KVM_GET_REGS", 0x8090_ae81),
    ("KVM_SET_REGS", 0x4090_ae82),
    ("KVM_SET_SREGS", 0x4138_ae84),
    ("KVM_SET_CPUID2", 0x4008_ae90),
];

const ERRORS: [(&str, i32); 8] = [
    ("EAGAIN", libc::EAGAIN),
    ("EINTR", libc::EINTR),
    ("EINVAL", libc::EINVAL),
    ("EIO", libc::EIO),
    ("EMFILE", libc::EMFILE),
    ("ENOLCK", libc::ENOLCK),
    ("ENOMEM", libc::ENOMEM),
    ("ENOSPC", libc::ENOSPC),
];

/// Returns the manual's name of an error.
pub(crate) fn name_of(error: i32) -> &'static str {
    ERRORS.iter().find(|(_, number)| *number == error).map_or("?", |(name, _)| *name)
}

/// Number of standard error.
pub(crate) const STDERR: u64 = 2;

impl Call {
    /// Returns the kind of a call with these arguments.
    pub(crate) fn of(number: i64, arguments: &[u64; 6]) -> Self {
        let detail = match number {
            libc::SYS_ioctl => arguments[1] & u64::from(u32::MAX),
            libc::SYS_write => arguments[0].min(3),
            _ => 0,
        };
        Self { number, detail }
    }

    pub(crate) fn errors(self) -> &'static [i32] {
        KINDS.iter().find(|(_, number, _)| *number == self.number).map_or(&[], |(.., errors)| *errors)
    }

    /// A failed write to standard error cannot be reported.
    pub(crate) fn is_talk(self) -> bool {
        self == Self { number: libc::SYS_write, detail: STDERR }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = KINDS.iter().find(|(_, number, _)| *number == self.number).map_or("?", |(name, ..)| *name);
        f.write_str(name)?;
        match REQUESTS.iter().find(|(_, request)| *request == self.detail) {
            Some((request, _)) => write!(f, " {request}"),
            None if self.detail != 0 => write!(f, " {:#x}", self.detail),
            None => Ok(()),
        }
    }
}

/// The numbers of all.
pub(crate) fn watched() -> Vec<i64> {
    KINDS.iter().map(|(_, number, _)| *number).collect()
}
