//! Histograms: log2-linear, 16 steps per octave (each at most 6.25 % wide).

use core::sync::atomic::{AtomicU32, AtomicU64};

/// Steps per octave.
pub const HISTOGRAM_STEPS: u64 = 16;
/// Buckets: values from 0 to 2^40 - 1 ticks (minutes); larger ones fall into the last.
pub const HISTOGRAM_BUCKETS: usize = ((40 - 4 + 1) * HISTOGRAM_STEPS) as usize;

/// Counts per bucket. Guest-written, without atomic read-modify-write: one vCPU, one histogram.
#[repr(C)]
pub struct Histogram {
    /// Values seen in each bucket, up to the most that a counter holds.
    pub buckets: [AtomicU32; HISTOGRAM_BUCKETS],
    /// Largest value seen.
    pub max: AtomicU64,
    /// Sum of the values seen.
    pub sum: AtomicU64,
}

/// The bucket that counts `value`.
#[inline]
#[must_use]
pub const fn histogram_bucket(value: u64) -> usize {
    if value < HISTOGRAM_STEPS {
        return value as usize;
    }
    let octave = 63 - value.leading_zeros() as u64; // at least 4
    let step = (value >> (octave - 4)) - HISTOGRAM_STEPS;
    let bucket = ((octave - 3) * HISTOGRAM_STEPS + step) as usize;
    if bucket < HISTOGRAM_BUCKETS { bucket } else { HISTOGRAM_BUCKETS - 1 }
}

/// The smallest value that `bucket` counts. Partner of [`histogram_bucket`].
#[must_use]
pub const fn histogram_lower_bound(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < HISTOGRAM_STEPS {
        return bucket;
    }
    let octave = bucket / HISTOGRAM_STEPS + 3;
    (HISTOGRAM_STEPS + bucket % HISTOGRAM_STEPS) << (octave - 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bucket_holds_its_lower_bound_and_a_sixteenth_more_at_most() {
        assert_eq!(histogram_bucket(u64::MAX), HISTOGRAM_BUCKETS - 1);
        for bucket in 1..HISTOGRAM_BUCKETS {
            let [low, high] = [bucket - 1, bucket].map(histogram_lower_bound);
            assert_eq!([low, high - 1, high].map(histogram_bucket), [bucket - 1, bucket - 1, bucket]);
            let is_wide = bucket > HISTOGRAM_STEPS as usize && (high - low) * HISTOGRAM_STEPS > low;
            assert!(!is_wide, "bucket {}: {low}..{high}", bucket - 1);
        }
    }
}
