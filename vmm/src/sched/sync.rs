//! The atomics of what the model checker looks at: the real ones. (`tests/models.rs` has its own.)

pub(super) use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence};
