//! The atomics of this crate: the real ones, or shuttle's.

#[cfg(not(shuttle))]
pub use core::sync::atomic::{AtomicU32, AtomicU64};
#[cfg(not(shuttle))]
pub(crate) use core::sync::atomic::{Ordering, fence};
#[cfg(shuttle)]
pub use shuttle::sync::atomic::{AtomicU32, AtomicU64};
#[cfg(shuttle)]
pub(crate) use shuttle::sync::atomic::{Ordering, fence};
