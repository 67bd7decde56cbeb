//! Runs to vary, guests to start and outcomes to read: what tests with guests share.

mod config;
mod runs;
mod trials;

pub use config::{Settings, config, deschedule, mostly_holding, ms, on, simulated, us};
pub use runs::{
    PATIENCE, count, dies_with_its_place, done, event, exits, forms, forms_of, found, panics, refused,
    reported, run_ns, start, start_stoppable, start_two, start_until, start_with, sum, violates_exclusion,
    watched, within,
};
pub use trials::{Check, Failed, chosen, conclude, each, named, note, skip, trials};

#[doc(hidden)]
pub use inventory;
pub use macro_rules_attribute::apply;
#[doc(hidden)]
pub use trials::Registered;

/// Whether this is the emulated machine of `just test-nested`, in which time is no measure of what gets done.
pub fn nested() -> bool {
    std::env::var_os("HALTKICK_NESTED").is_some()
}
