//! Mutexes of a run whose threads may panic: their data stays usable after a panic of another thread, for the run is over then
//! anyway. Nowhere else is a poisoned mutex thought of.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Locks `mutex`.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(test)]
    super::counted::count(|counted| counted.mutexes += 1);
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the value out of `mutex`, which has no other user left.
pub(crate) fn unlocked<T>(mutex: Mutex<T>) -> T {
    mutex.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for `signal`, for at most `most` if that is given.
pub(crate) fn wait<'a, T>(
    signal: &Condvar,
    guard: MutexGuard<'a, T>,
    most: Option<Duration>,
) -> MutexGuard<'a, T> {
    match most {
        None => signal.wait(guard).unwrap_or_else(PoisonError::into_inner),
        Some(most) => signal.wait_timeout(guard, most).unwrap_or_else(PoisonError::into_inner).0,
    }
}
