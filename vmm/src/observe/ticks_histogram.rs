//! Histograms of times, with the buckets that the guest uses.

/// Counts per bucket of `haltkick_hypercalls::Histogram`, summed over vCPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TicksHistogram {
    /// Values seen per bucket.
    pub buckets: Vec<u64>,
    /// Largest value seen, in TSC ticks.
    pub max: u64,
    /// Sum of the values, in TSC ticks.
    pub sum: u64,
}

impl TicksHistogram {
    /// A histogram without values.
    #[must_use]
    pub fn empty() -> Self {
        Self { buckets: vec![0; haltkick_hypercalls::HISTOGRAM_BUCKETS], max: 0, sum: 0 }
    }

    /// Counts `times` values of `ticks`.
    pub fn count(&mut self, ticks: u64, times: u64) {
        self.buckets[haltkick_hypercalls::histogram_bucket(ticks)] += times;
        self.max = self.max.max(ticks);
        self.sum = self.sum.saturating_add(ticks.saturating_mul(times));
    }

    /// Adds another one's values.
    pub(crate) fn add(&mut self, other: &Self) {
        let len = self.buckets.len().max(other.buckets.len());
        self.buckets.resize(len, 0);
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(sum, count)| *sum += count);
        self.max = self.max.max(other.max);
        self.sum = self.sum.saturating_add(other.sum);
    }

    /// The buckets that are not empty: smallest value in TSC ticks, and count.
    pub fn occupied(&self) -> impl Iterator<Item = (u64, u64)> {
        let buckets = self.buckets.iter().enumerate().filter(|(_, count)| **count > 0);
        buckets.map(|(bucket, &count)| (haltkick_hypercalls::histogram_lower_bound(bucket), count))
    }

    /// The buckets that are not empty. No value is larger than the largest seen.
    pub fn spans(&self) -> impl Iterator<Item = TicksSpan> {
        self.buckets.iter().enumerate().filter(|(_, count)| **count > 0).map(|(bucket, &count)| {
            let low = haltkick_hypercalls::histogram_lower_bound(bucket).min(self.max);
            let high = haltkick_hypercalls::histogram_lower_bound(bucket + 1).saturating_sub(1);
            TicksSpan { low, high: high.clamp(low, self.max.max(low)), count }
        })
    }
}

/// A bucket of a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TicksSpan {
    /// The least value in TSC ticks that it can hold.
    pub low: u64,
    /// The largest.
    pub high: u64,
    /// Number of values.
    pub count: u64,
}
