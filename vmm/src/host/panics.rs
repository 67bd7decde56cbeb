//! Panics of threads that a run needs: each is the failure of the run, which would otherwise wait forever for what the
//! thread had in its hands.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::host::error::RunError;

/// Returns the result of `work`; if it panics, an error that names the thread that did it.
pub(crate) fn caught<T>(whom: &str, work: impl FnOnce() -> Result<T, RunError>) -> Result<T, RunError> {
    // Whatever it leaves half-done is no longer used: the run is over. Mutexes see to themselves (`locks`).
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text =
            panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
        let source = io::Error::other(text.unwrap_or("without a message").to_owned());
        Err(RunError::System { what: format!("{whom} panicked"), source })
    })
}
