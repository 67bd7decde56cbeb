//! Runs to vary, guests to start and outcomes to read: what tests with guests share.

mod chosen;
mod config;
mod deadline;
mod ran_on;
mod runs;
mod stalls;
mod trials;

pub use chosen::chosen;
pub use config::{Settings, config, deschedule, mostly_holding, on, simulated};
pub use deadline::within;
pub use ran_on::note;
pub use runs::{
    PATIENCE, check, event, exits, forms, found, start, start_guests, start_stoppable, start_until,
    start_with, sum, unexpected, waits, watched,
};
pub use stalls::watch;
pub use trials::{Check, Failed, named, needs, not_nested, skip, trials};

#[doc(hidden)]
pub use inventory;
pub use macro_rules_attribute::apply;
#[doc(hidden)]
pub use trials::{Registered, Tests, each};

/// Whether this is the emulated machine of `just test-nested`, in which time is no measure of what gets done.
#[must_use]
pub fn nested() -> bool {
    std::env::var_os("HALTKICK_NESTED").is_some()
}
