//! Capabilities: what a privileged user's process gives up before it runs guests.
//!
//! Threads that run vCPUs have none. Of the rest of the process's, those stay permitted that are named to [`keep`], and none of
//! them is in force but for moments ([`with_kept`]). A guest that got hold of a thread of its own cannot take back what that has
//! given up; one that went on from there into the main thread would find what is permitted.

use std::io;
use std::path::Path;

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

/// Capabilities that the BPF programs on switches need.
pub(super) const FOR_BPF: CapabilitySet = CapabilitySet::BPF.union(CapabilitySet::PERFMON);
/// Capabilities that counters of cache events need.
pub(super) const FOR_COUNTERS: CapabilitySet = CapabilitySet::PERFMON;

/// Gives up all capabilities of the calling thread but `kept`, and puts those out of force. In force stays only what reaches into
/// directories of other users, and only if one of `paths` is in such a place.
pub(super) fn keep(kept: CapabilitySet, paths: &[&Path]) -> io::Result<()> {
    let had = capabilities(None)?;
    if had.permitted.is_empty() {
        return Ok(());
    }
    let (permitted, none) = (had.permitted & kept, CapabilitySet::empty());
    let foreign = had.permitted & CapabilitySet::DAC_OVERRIDE;
    let of = |extra: CapabilitySet, effective| CapabilitySets {
        effective,
        permitted: permitted | extra,
        inheritable: none,
    };
    // A trial shows which paths can be reached without it.
    set_capabilities(None, of(foreign, none))?;
    let extra = if paths.iter().all(|path| is_within_reach(path)) { none } else { foreign };
    Ok(set_capabilities(None, of(extra, extra))?)
}

/// Gives up all capabilities of the calling thread.
pub(super) fn drop_all() -> io::Result<()> {
    let none = CapabilitySet::empty();
    if capabilities(None)?.permitted.is_empty() {
        return Ok(());
    }
    Ok(set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?)
}

/// Does `work` with those in force that were kept.
pub(crate) fn with_kept<T>(work: impl FnOnce() -> T) -> T {
    /// Puts things back as they were, also when `work` panics.
    struct Back(CapabilitySets);
    impl Drop for Back {
        fn drop(&mut self) {
            // Cannot fail: it restores the earlier sets, which have fewer capabilities in force.
            _ = set_capabilities(None, self.0);
        }
    }
    let _back = match capabilities(None) {
        Ok(sets) if !sets.effective.contains(sets.permitted) => {
            // If it fails, the work does, and says why.
            _ = set_capabilities(None, CapabilitySets { effective: sets.permitted, ..sets });
            Some(Back(sets))
        }
        _ => None,
    };
    work()
}

/// Whether this process may use the file, or write in the directory, with what is in force.
fn is_within_reach(path: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt as _;
    let wanted = if path.is_dir() { libc::W_OK | libc::X_OK } else { libc::R_OK };
    let Ok(path) = std::ffi::CString::new(path.as_os_str().as_bytes()) else { return true };
    // SAFETY: a live string with a zero at its end.
    unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), wanted, libc::AT_EACCESS) == 0 }
}
