//! Counting times. Plain loads and stores: a vCPU's histograms are its own.

use core::sync::atomic::Ordering;

use haltkick_hypercalls::{Histogram, histogram_bucket};

use crate::percpu::add;

/// Counts `ticks`.
#[inline]
pub(crate) fn record(histogram: &Histogram, ticks: u64) {
    let bucket = &histogram.buckets[histogram_bucket(ticks)];
    bucket.store(bucket.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    add(&histogram.sum, ticks);
    if ticks > histogram.max.load(Ordering::Relaxed) {
        histogram.max.store(ticks, Ordering::Relaxed);
    }
}
