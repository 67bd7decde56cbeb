//! Signals. Ctrl-C: the first one asks for a clean end, the second one ends at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;

use crate::text::exit::{Exit, Failure, Result};

/// A flag that Ctrl-C sets from now on.
pub(crate) fn catch() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, Exit::Interrupted as i32, stop.clone())
            .and_then(|_| flag::register(signal, stop.clone()))
            .map_err(|error| Failure::internal(format!("handler for signal {signal}: {error}")))?;
    }
    Ok(stop)
}

/// A flag that Ctrl-C sets from now on, and that is set after `budget`.
pub(crate) fn catch_within(budget: Option<Duration>) -> Result<Arc<AtomicBool>> {
    let stop = catch()?;
    if let Some(budget) = budget {
        let stop = stop.clone();
        thread::spawn(move || {
            thread::sleep(budget);
            stop.store(true, Ordering::Relaxed);
        });
    }
    Ok(stop)
}

/// From now on a write beyond `ulimit -f` fails, and does not end the process.
pub(crate) fn survive_size_limit() {
    // Without a handler the signal ends the process, as it would have without this.
    _ = flag::register(SIGXFSZ, Arc::default());
}
