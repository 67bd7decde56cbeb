//! Runs that must end by themselves, for tests of what ends them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// Returns the result of `run`, which must look at its flag as often as at the guests. If nothing else ends it within
/// `limit`, that flag does, and the test has failed. So a run that never ends is a failure instead of a test that waits
/// forever.
pub fn within<R>(limit: Duration, run: impl FnOnce(&AtomicBool) -> R) -> Result<R, String> {
    let stop = AtomicBool::new(false);
    let result = std::thread::scope(|scope| {
        let (over, awaited) = mpsc::channel::<()>();
        let stop = &stop;
        scope.spawn(move || {
            if awaited.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
                // Relaxed: the run polls it.
                stop.store(true, Ordering::Relaxed);
            }
        });
        let result = run(stop);
        drop(over);
        result
    });
    // Relaxed: who set it has been joined.
    if stop.load(Ordering::Relaxed) {
        Err(format!("nothing but this test ended the run, after {limit:?}"))
    } else {
        Ok(result)
    }
}
