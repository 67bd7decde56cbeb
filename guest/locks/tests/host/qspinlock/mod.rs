//! Properties of the queue spinlock: its sums, its order, its levels, and each race that it once had.
//!
//! A race is staged with hooks: a CPU that passes a [`Point`] stays there until the other side has got where
//! it did the damage. The tests are named for the races T1 to T18; those that need a weak memory model are in
//! the loom tests.

use haltkick_locks::*;

use crate::support::{self, Cpus};

type Domain = QSpinDomain<Cpus, 8>;

/// Runs the same tests on both layouts of the lock word.
macro_rules! on_both_layouts {
    ($($name:ident)+) => {
        mod whole {
            $(#[test] fn $name() { super::$name::<haltkick_locks::Whole>(); })+
        }
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        mod packed {
            $(#[test] fn $name() { super::$name::<haltkick_locks::Packed>(); })+
        }
    };
}

mod arrivals;
mod interrupts;
mod races;
mod sleepers;

/// A queue spinlock with its domain and its CPUs.
pub(crate) type Stage<M, W> = support::Stage<Domain, QSpinLock<M, W>>;

impl<M: Mode, W: Word> Stage<M, W> {
    pub(crate) fn new(host: Cpus) -> &'static Self {
        Self::set_up(host, Domain::new, QSpinLock::new())
    }
}
