//! Counting times. Plain loads and stores: a vCPU's histograms are its own.

use core::sync::atomic::Ordering;

use haltkick_hypercalls::{Histogram, histogram_bucket};

use crate::cpu::percpu::{add, this};

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
