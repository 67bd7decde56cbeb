//! The lock-free companion of a single run: what the run could do if locking cost nothing.

use std::time::Duration;

use haltkick_vmm::{Image, Known, Run, RunError};

use super::engine::{Engine, per_second};
use crate::experiment::lock_free::lock_free;

/// Longest window of the lock-free companion of a single run.
const COMPANION_WINDOW: Duration = Duration::from_millis(200);

/// Lock-free throughput of each guest of the cell per second, from a short run without lock.
pub(crate) fn companion(engine: Engine<'_>, run: &Run, image: &Image, work_rate: u64) -> Known<Vec<f64>> {
    let found = lock_free(run, image)
        .ok_or_else(|| RunError::usage("the image has no lock-free lock to compare with"))
        .and_then(|run| {
            let window = run.window.min(COMPANION_WINDOW);
            engine(&Run { work_rate: Some(work_rate), ..run }.with_window(window))
        });
    match found {
        Ok(seen) => Ok(per_second(&seen.found)),
        Err(error) => Err(format!("the lock-free companion run failed: {error}").into()),
    }
}
