//! Guards the guards: every section of every run is watched from inside.
//!
//! Two checks that need no lock of their own. The owner word catches two vCPUs in one section at once. The plain
//! counter catches what the owner word misses between its load and its store: an update that is lost leaves it
//! short of the sum of the per-vCPU counts.
//!
//! `--oracle off` leaves both out: they are a load and two stores of a line that travels with the lock. A lock-free arm, the
//! measure of the ideal, watches over a line of the vCPU's own instead, so that it is no faster for being unwatched.

use core::slice;
use core::sync::atomic::{AtomicU64, Ordering};

use haltkick_hypercalls::{BootFlags, MAX_VCPUS, Oracle, TOOK_BY_LOCK, TOOK_BY_READ, TOOK_BY_TRY};

use crate::cpu::percpu::{add, area, boot, cpu, entries, oracles, this};
use crate::cpu::time;
use crate::lock::calls;

/// State that watches a vCPU's sections.
#[derive(Clone, Copy)]
pub(crate) struct Watch {
    /// One for each lock, or one of the vCPU's own; none: no watching.
    oracles: &'static [Oracle],
    /// How often this vCPU has entered each lock's section.
    entries: &'static [AtomicU64],
    /// Not 0 where the locks exclude.
    mask: usize,
}

/// Each vCPU's own, for runs without a lock.
static PRIVATE: [Oracle; MAX_VCPUS] = [const { Oracle::new() }; MAX_VCPUS];

impl Watch {
    /// The calling vCPU's, as this run asks for it.
    pub(crate) fn of_this_vcpu() -> Self {
        if !boot().flags.has(BootFlags::ORACLE) {
            Self { oracles: &[], entries: &[], mask: 0 }
        } else if calls::excludes() {
            Self { oracles: oracles(), entries: entries(), mask: usize::MAX }
        } else {
            Self { oracles: slice::from_ref(&PRIVATE[cpu()]), entries: entries(), mask: 0 }
        }
    }

    /// Returns a watch without effect: to measure the overhead.
    pub(crate) fn for_nobody() -> Self {
        static ENTRIES: [AtomicU64; 1] = [AtomicU64::new(0)];
        match Self::of_this_vcpu() {
            watch if !watch.is_on() => watch,
            _ => Self { oracles: slice::from_ref(&PRIVATE[cpu()]), entries: &ENTRIES, mask: 0 },
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        !self.oracles.is_empty()
    }

    /// The calling vCPU has entered the section of lock `index`.
    #[inline(always)]
    pub(crate) fn enter(&self, index: usize) {
        add(&this().results.entered, 1);
        let Some(oracle) = self.oracles.get(index & self.mask) else { return };
        // Relaxed and without read-modify-write on purpose: ordering and atomicity are the lock's duty, and this is
        // what fails when the lock does not do it.
        let inside = oracle.owner.load(Ordering::Relaxed);
        if inside != 0 {
            count(oracle, inside, false);
        }
        oracle.owner.store(cpu() as u32 + 1, Ordering::Relaxed);
        add(&oracle.entered, 1);
        if let Some(entered) = self.entries.get(index) {
            add(entered, 1);
        }
    }

    /// The calling vCPU is about to leave the section of lock `index`, at this TSC.
    #[inline(always)]
    pub(crate) fn leave(&self, index: usize, tsc: u64) {
        let Some(oracle) = self.oracles.get(index & self.mask) else { return };
        let inside = oracle.owner.load(Ordering::Relaxed);
        if inside != cpu() as u32 + 1 {
            count(oracle, inside, false);
        }
        oracle.left_tsc.store(tsc, Ordering::Relaxed);
        oracle.last.store(cpu() as u32 + 1, Ordering::Relaxed);
        oracle.owner.store(0, Ordering::Relaxed);
    }

    /// The calling vCPU reads under lock `index`, and has found its data `whole` or not: no vCPU may be
    /// writing.
    #[inline(always)]
    pub(crate) fn reads(&self, index: usize, whole: bool) {
        let Some(oracle) = self.oracles.get(index & self.mask) else { return };
        // Relaxed: as in `enter`. Readers may lose each other's counts, but not all of them.
        let inside = oracle.owner.load(Ordering::Relaxed);
        if (!whole && self.mask != 0) || inside != 0 {
            count(oracle, inside, true);
        }
    }
}

/// The calling vCPU is alone inside lock `index`, as the lock is to see to, and knows of a reader that is there, too.
pub(crate) fn is_not_alone(index: usize) {
    let reader = 0;
    if calls::excludes() {
        oracles().get(index).iter().for_each(|oracle| count(oracle, reader, false));
    }
}

/// The calling vCPU is inside, and so is, or was, another one: `inside` less one, if it is not 0. Without read-modify-write, as above.
#[cold]
fn count(oracle: &Oracle, inside: u32, reads: bool) {
    let (overlaps, met) = (&oracle.overlaps, &oracle.met);
    overlaps.store(overlaps.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
    if met.came.load(Ordering::Relaxed) != 0 {
        return;
    }
    met.came.store(cpu() as u32 + 1, Ordering::Relaxed);
    met.tsc.store(time::now(), Ordering::Relaxed);
    let last = oracle.last.load(Ordering::Relaxed);
    // The other one may have left already.
    let inside = if inside == 0 { last } else { inside };
    met.inside.store(inside, Ordering::Relaxed);
    met.left.store(last, Ordering::Relaxed);
    met.left_tsc.store(oracle.left_tsc.load(Ordering::Relaxed), Ordering::Relaxed);
    for (number, vcpu) in [cpu() as u32 + 1, inside].into_iter().enumerate() {
        if (1..=boot().vcpus).contains(&vcpu) {
            let doing = &area(vcpu as usize - 1).activity;
            met.asked_tsc[number].store(doing.since_tsc.load(Ordering::Relaxed), Ordering::Relaxed);
            let tried = doing.tried.load(Ordering::Relaxed) != 0;
            let how = if tried { TOOK_BY_TRY } else { TOOK_BY_LOCK };
            met.how[number].store(if number == 0 && reads { TOOK_BY_READ } else { how }, Ordering::Relaxed);
        }
    }
}

/// The calling vCPU has entered the section of lock `index`, which keeps no [`Watch`] at hand.
#[inline]
pub(crate) fn enter(index: usize) {
    Watch::of_this_vcpu().enter(index);
}

/// The calling vCPU is about to leave the section of lock `index`.
#[inline]
pub(crate) fn leave(index: usize) {
    Watch::of_this_vcpu().leave(index, time::now());
}
