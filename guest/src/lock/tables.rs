//! The image's tables as the linker has put them together: the descriptors of its locks and workloads.
#![expect(unsafe_code, reason = "sections whose ends are symbols of the linker script")]

use haltkick_hypercalls::Descriptor;

unsafe extern "C" {
    static __haltkick_locks_start: u8;
    static __haltkick_locks_end: u8;
    static __haltkick_workloads_start: u8;
    static __haltkick_workloads_end: u8;
}

/// The table between two symbols of the linker script.
///
/// # Safety
/// They are the ends of a section that is made of `T`s.
pub(crate) unsafe fn table<T>(start: *const u8, end: *const u8) -> &'static [T] {
    let bytes = end as usize - start as usize;
    // SAFETY: the caller's promise.
    unsafe { core::slice::from_raw_parts(start.cast(), bytes / size_of::<T>()) }
}

/// The image's own locks.
pub(crate) fn locks() -> &'static [Descriptor] {
    // SAFETY: the section's ends; only `lock!` puts anything there, and it puts descriptors.
    unsafe { table(&raw const __haltkick_locks_start, &raw const __haltkick_locks_end) }
}

/// Its workloads.
pub(crate) fn workloads() -> &'static [Descriptor] {
    // SAFETY: as above, with `workload!`.
    unsafe { table(&raw const __haltkick_workloads_start, &raw const __haltkick_workloads_end) }
}
