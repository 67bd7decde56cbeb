//! The atomics of this crate: the real ones, or shuttle's.
//!
//! The content of a page is plain data to the protocols here, and has real atomics always (`frames.rs`).

#[cfg(not(shuttle))]
pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64};
#[cfg(shuttle)]
pub(crate) use shuttle::sync::atomic::{AtomicU32, AtomicU64};

pub(crate) use core::sync::atomic::Ordering;
