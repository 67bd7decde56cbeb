//! The kernel's extension of time slices for threads (rseq, Linux 7.0 and later): whether this host has it, asked of the kernel itself.
#![expect(unsafe_code, reason = "prctl(2) has no safe form for what this asks")]

use std::io;

/// Numbers of the interface (prctl(2)).
const PR_RSEQ_SLICE_EXTENSION: libc::c_int = 79;
const PR_RSEQ_SLICE_EXTENSION_GET: libc::c_ulong = 1;
/// A kernel's error that no header of a C library names.
const ENOTSUPP: i32 = 524;

/// The answer of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SliceExtension {
    /// A thread may switch it on.
    Offered,
    /// The kernel was booted without it.
    OffAtBoot,
    /// The C library has not registered the thread for it.
    NotRegistered,
    /// The kernel has none.
    Absent,
}

/// Asks the kernel whether the calling thread could have its slices extended. Changes nothing.
#[must_use]
pub fn slice_extension() -> SliceExtension {
    let none: libc::c_ulong = 0;
    // SAFETY: this call reads a setting of the thread, and takes no address.
    let said = unsafe { libc::prctl(PR_RSEQ_SLICE_EXTENSION, PR_RSEQ_SLICE_EXTENSION_GET, none, none, none) };
    of(if said >= 0 { None } else { io::Error::last_os_error().raw_os_error() })
}

/// The meaning of prctl's error, if there was one.
fn of(error: Option<i32>) -> SliceExtension {
    match error {
        None => SliceExtension::Offered,
        Some(ENOTSUPP) => SliceExtension::OffAtBoot,
        Some(libc::ENXIO) => SliceExtension::NotRegistered,
        Some(_) => SliceExtension::Absent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_why_it_extends_no_slices() {
        let answers = [None, Some(libc::EINVAL), Some(524), Some(libc::ENXIO)].map(of);
        let expected = [
            SliceExtension::Offered,
            SliceExtension::Absent,
            SliceExtension::OffAtBoot,
            SliceExtension::NotRegistered,
        ];
        assert_eq!(answers, expected);
        // This kernel answers something, and again the same.
        assert_eq!(slice_extension(), slice_extension());
    }
}
