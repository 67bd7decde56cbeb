//! CPUs for tests.
//!
//! [`Cpus`] is the one [`Platform`](haltkick_locks::Platform) on which the locks, the memory manager and the grant tables are
//! tested by threads: the host's, or with `--cfg loom` and `--cfg shuttle` those of a model checker. `threads` holds what
//! differs between the three.
//!
//! One machine of the locks' tests cannot be this one. To search all states (`tests/liveness`), a CPU is copied
//! with its stack, and equal states must look equal: no count may be kept anywhere, whose last value would lie
//! on that stack. The sleeping and kicked CPUs are part of the state, instead of a latch next to it.

/// Tests that differ by what they call: `name: call;` declares the test `name`.
#[macro_export]
macro_rules! tests {
    ($($(#[$attribute:meta])* $name:ident: $test:expr;)+) => {$(
        $(#[$attribute])*
        #[test]
        fn $name() {
            $test;
        }
    )+};
}

mod cpus;
mod plain;
mod threads;

pub use cpus::{Cpus, assert_reached};
pub use plain::{Plain, read_or_write};
#[cfg(any(loom, shuttle))]
pub use threads::play_once;
#[cfg(shuttle)]
pub use threads::try_schedules;
#[cfg(not(any(loom, shuttle)))]
pub use threads::{Signal, until};
