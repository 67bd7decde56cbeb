//! Locks that threads of a run share, and work that is divided among threads.
//!
//! The command ends with the first panic of any thread, so no thread of it meets a poisoned mutex. Where a test goes on, the data in
//! mutexes stays usable.

use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

#[cfg(test)]
use crate::host::allocator::counted;
use crate::host::cpus;
use crate::host::error::RunError;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(test)]
    counted::count(counted::Counted::Mutex);
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the value out of `mutex`, which has no other user left.
pub(crate) fn unlocked<T>(mutex: Mutex<T>) -> T {
    mutex.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Locks `mutex`, and waits for `signal` as long as `waits` holds.
pub(crate) fn wait<'a, T>(
    signal: &Condvar,
    mutex: &'a Mutex<T>,
    waits: fn(&mut T) -> bool,
) -> MutexGuard<'a, T> {
    signal.wait_while(lock(mutex), waits).unwrap_or_else(PoisonError::into_inner)
}

/// Things that are worth a thread: fewer are done sooner than it is started.
const LEAST_EACH: u32 = 24;
/// More threads than that would only wait for the kernel's locks.
const MOST_THREADS: u32 = 32;

/// Does `work` for each number of `range`, by a few threads that exist for it alone. Returns the results in order, or the error of the
/// lowest number that met one.
pub(crate) fn each<T: Send>(
    range: Range<u32>,
    work: impl Fn(u32) -> Result<T, RunError> + Sync,
) -> Result<Vec<T>, RunError> {
    let threads = MOST_THREADS.min(cpus::allowed_cpus().len() as u32);
    let pieces = pieces(range, threads);
    let do_piece = |piece: &Range<u32>| piece.clone().map(&work).collect::<Result<Vec<T>, RunError>>();
    let [own, others @ ..] = &pieces[..] else { return Ok(Vec::new()) };
    thread::scope(|scope| {
        let start = |piece| {
            let builder = thread::Builder::new().name("set-up".into());
            // A thread that cannot be started leaves its piece to this one.
            (piece, builder.spawn_scoped(scope, move || do_piece(piece)).ok())
        };
        let started: Vec<_> = others.iter().map(start).collect();
        let mut all = do_piece(own)?;
        for (piece, thread) in started {
            all.extend(match thread {
                Some(thread) => thread.join().expect("a panic has ended the process"),
                None => do_piece(piece),
            }?);
        }
        Ok(all)
    })
}

/// Divides `range` among at most `threads` threads.
fn pieces(range: Range<u32>, threads: u32) -> Vec<Range<u32>> {
    let count = range.len() as u32;
    let each = count.div_ceil(threads.max(1)).max(LEAST_EACH);
    range.clone().step_by(each as usize).map(|start| start..range.end.min(start + each)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_the_lowest_number_is_told() {
        let fails = |number: u32| match number {
            30.. => Err(RunError::usage(format!("number {number}"))),
            _ => Ok(()),
        };
        assert_eq!(each(0..200, fails).unwrap_err().to_string(), "number 30");
    }
}
