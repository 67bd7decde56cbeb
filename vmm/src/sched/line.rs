//! Values in cache lines of their own.

/// A value whose neighbours in memory change at other times. (Two lines, since CPUs fetch pairs.)
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Line<T>(pub(crate) T);
