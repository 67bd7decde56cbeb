//! The errors that hypercalls end with: negative numbers, of the same names and values as Linux's.

/// What a hypercall returns that was not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum Errno {
    /// There is no such vCPU.
    NotThere = -libc::ENOENT,
    /// An address of the guest's where it has no memory.
    Fault = -libc::EFAULT,
    /// Anything else that is wrong with what was told.
    Invalid = -libc::EINVAL,
    /// No event channel is left.
    NoSpace = -libc::ENOSPC,
    /// This is not served here.
    NotServed = -libc::ENOSYS,
}
