//! Mutexes of a run whose threads may panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A mutex whose data stays usable after a panic of another thread: the run is over then anyway.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
