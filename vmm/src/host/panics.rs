//! Panics of threads that a run cannot do without: each is the failure of the run, which would wait for ever for what the
//! thread had in its hands.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::host::error::RunError;

/// What `work` of `whom` comes to; if it panics, an error that says so.
pub(crate) fn caught<T>(whom: &str, work: impl FnOnce() -> Result<T, RunError>) -> Result<T, RunError> {
    // Whatever it leaves half-done is not used any more: the run is over. Mutexes see to themselves (`locks`).
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text =
            panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
        let source = io::Error::other(text.unwrap_or("without a message").to_owned());
        Err(RunError::System { what: format!("{whom} panicked"), source })
    })
}
