//! Locks of this crate that may guard values: what [`guarded`](crate::guarded) has to know of them.

mod exclude;
// Loom's locks cannot be made in a constant.
#[cfg(not(loom))]
mod free;
