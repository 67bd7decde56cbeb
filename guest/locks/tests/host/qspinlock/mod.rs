//! Properties of the queue spinlock: its sums, its order, its levels, and each race that it once had.
//!
//! A race is staged with hooks: a CPU that passes a [`Point`] stays there until the other side has got where
//! it did the damage. The tests are named for the races T1 to T18; those that need a weak memory model are in
//! the loom tests.

use std::sync::Arc;

use haltkick_locks::*;

use crate::support::{self, Cpus, Plain};

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

/// A lock, its domain and its CPUs, to be shared with hooks.
pub(crate) struct Stage<M, W> {
    pub(crate) host: Cpus,
    pub(crate) domain: Domain,
    lock: QSpinLock<M, W>,
    counter: Plain,
}

impl<M: Mode, W: Word> Stage<M, W> {
    pub(crate) fn new(host: Cpus) -> Arc<Self> {
        let domain = Domain::new(host.clone());
        Arc::new(Self { host, domain, lock: QSpinLock::new(), counter: Plain::default() })
    }

    pub(crate) fn lock(&self) {
        self.lock.lock(&self.domain);
    }

    pub(crate) fn unlock(&self) {
        self.lock.unlock(&self.domain, ());
    }

    /// Takes the lock, increments the counter, releases.
    pub(crate) fn visit(&self) {
        self.lock();
        self.counter.increment();
        self.unlock();
    }

    /// As [`while_held`](support::while_held).
    pub(crate) fn while_held(&self, meanwhile: impl Fn() + Sync, others: impl Fn(usize) + Sync) {
        support::while_held(&self.host, (|| self.lock(), || self.unlock()), meanwhile, others);
    }
}
