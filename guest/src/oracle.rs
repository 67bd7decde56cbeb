//! Guards the guards: every section of every run is watched from inside.
//!
//! Two checks that need no lock of their own. The owner word catches two vCPUs in one section at once. The plain
//! counter catches what the owner word misses between its load and its store: an update that is lost leaves it
//! short of the sum of the per-vCPU counts.

use core::sync::atomic::Ordering;

use crate::percpu::{add, cpu, oracle, this};

/// The calling vCPU has entered the section of lock `index`.
#[inline]
pub(crate) fn enter(index: usize) {
    let oracle = oracle(index);
    // Relaxed and without read-modify-write on purpose: ordering and atomicity are the lock's duty, and this is
    // what fails when the lock does not do it.
    if oracle.owner.load(Ordering::Relaxed) != 0 {
        oracle.overlaps.store(oracle.overlaps.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
    oracle.owner.store(cpu() as u32 + 1, Ordering::Relaxed);
    add(&oracle.entered, 1);
    add(&this().results.entered, 1);
}

/// The calling vCPU is about to leave the section of lock `index`.
#[inline]
pub(crate) fn leave(index: usize) {
    let oracle = oracle(index);
    if oracle.owner.load(Ordering::Relaxed) != cpu() as u32 + 1 {
        oracle.overlaps.store(oracle.overlaps.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
    oracle.owner.store(0, Ordering::Relaxed);
}

/// The calling vCPU reads under lock `index`, and has found `whole` what it read: nobody may be writing.
#[inline]
pub(crate) fn reads(index: usize, whole: bool) {
    let oracle = oracle(index);
    // Relaxed: as in `enter`. Readers may lose each other's counts, but not all of them.
    if !whole || oracle.owner.load(Ordering::Relaxed) != 0 {
        oracle.overlaps.store(oracle.overlaps.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}
