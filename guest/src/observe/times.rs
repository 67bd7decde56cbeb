//! Times of a vCPU: counts of them, by plain loads and stores, for its histograms are its own; and readings of the clock at the edges of
//! a section.
//!
//! `rdtsc` is not ordered: by itself it may be executed before an earlier load has its value, and so before the instruction
//! that takes the lock is complete, or after the first ones of the section. `lfence` before it waits until all before is
//! complete, and after it keeps all that follows from beginning. What that costs is in each run's record, and `--stamps plain`
//! does without, for comparison.
#![expect(unsafe_code, reason = "fences of the instruction stream")]

use core::arch::x86_64::_mm_lfence;
use core::sync::atomic::Ordering;

use haltkick_hypercalls::{BootFlags, Histogram, histogram_bucket};

use crate::cpu::percpu::{add, boot, this};
use crate::cpu::time::{now, now_in_order};

/// Counts `ticks`. A counter that is full stays so.
#[inline]
pub(crate) fn record(histogram: &Histogram, ticks: u64) {
    let bucket = &histogram.buckets[histogram_bucket(ticks)];
    bucket.store(bucket.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
    histogram.sum.store(histogram.sum.load(Ordering::Relaxed).saturating_add(ticks), Ordering::Relaxed);
    if ticks > histogram.max.load(Ordering::Relaxed) {
        histogram.max.store(ticks, Ordering::Relaxed);
    }
}

/// Counts the time between two readings of this vCPU's clock. One that stepped back between them is noted, and counts as
/// no time: a wrapped difference would be the longest time of all.
#[inline]
pub(crate) fn record_between(slot: usize, from: u64, to: u64) {
    let results = &this().results;
    if to < from {
        add(&results.tsc_steps_back, 1);
    }
    record(&results.times[slot], to.saturating_sub(from));
}

/// How a vCPU reads the clock at the edges of its sections.
#[derive(Clone, Copy)]
pub(crate) struct Stamps {
    ordered: bool,
}

impl Stamps {
    pub(crate) fn of_run() -> Self {
        Self::new(boot().flags.has(BootFlags::ORDERED_STAMPS))
    }

    pub(crate) const fn new(ordered: bool) -> Self {
        Self { ordered }
    }

    #[inline(always)]
    pub(crate) fn now(self) -> u64 {
        if !self.ordered {
            return now();
        }
        let ticks = now_in_order();
        // SAFETY: touches nothing; every x86-64 CPU has it.
        unsafe { _mm_lfence() };
        ticks
    }
}
