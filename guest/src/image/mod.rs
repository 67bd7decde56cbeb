//! Parts of the image at places of their own: tables that the VMM reads there, whose texts have a fixed length, and statics
//! in lines of their own.
//!
//! Several vCPUs write those statics while something is measured. A padded static by itself is not enough: the optimiser
//! shrinks a private one to the fields that are used, keeps its alignment, and puts a neighbour behind it. One that stands
//! in a named section and is marked as used stays as long as it is. A test of the VMM reads the image's symbols.
#![expect(unsafe_code, reason = "sections whose ends are symbols of the linker script")]

use haltkick_hypercalls::Descriptor;

/// `text`, and zeros behind it, at least one.
pub(crate) const fn padded<const N: usize>(text: &str) -> [u8; N] {
    let (mut field, text) = ([0; N], text.as_bytes());
    assert!(text.len() < N, "a table entry's text is too long");
    let mut i = 0;
    while i < text.len() {
        field[i] = text[i];
        i += 1;
    }
    field
}

/// Declares statics that are alone on their lines, in memory that has no other use.
macro_rules! hot {
    ($($(#[$doc:meta])* $visibility:vis static $name:ident: $type:ty = $value:expr;)+) => {$(
        $(#[$doc])*
        #[used]
        #[expect(unsafe_code, reason = "a section of its own")]
        #[unsafe(link_section = ".haltkick.hot")]
        $visibility static $name: haltkick_locks::CachePadded<$type> = haltkick_locks::CachePadded::new($value);
    )+};
}

pub(crate) use hot;

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

/// The image's workloads.
pub(crate) fn workloads() -> &'static [Descriptor] {
    // SAFETY: as above, with `workload!`.
    unsafe { table(&raw const __haltkick_workloads_start, &raw const __haltkick_workloads_end) }
}
