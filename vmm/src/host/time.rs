//! Ticks of a time stamp counter, and nanoseconds: a conversion between them takes the counter's rate.

use std::time::Duration;

/// A length of time in ticks of a time stamp counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticks(pub(crate) u64);

/// A length of time in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Nanoseconds(pub(crate) u64);

/// How fast a time stamp counter runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TscRate {
    khz: u64,
}

impl TscRate {
    /// A rate in ticks per millisecond. A guest may state the rate: 0 is taken for 1, because it is a divisor.
    pub(crate) const fn of_khz(khz: u64) -> Self {
        Self { khz: if khz == 0 { 1 } else { khz } }
    }

    /// Ticks a millisecond.
    pub(crate) const fn khz(self) -> u64 {
        self.khz
    }

    /// How far the counter gets in `time`, rounded down.
    pub(crate) fn ticks(self, time: Nanoseconds) -> Ticks {
        Ticks(saturating(u128::from(time.0) * u128::from(self.khz) / 1_000_000))
    }

    /// How long the counter takes for `ticks`, rounded down.
    pub(crate) fn nanoseconds(self, ticks: Ticks) -> Nanoseconds {
        Nanoseconds(saturating(u128::from(ticks.0) * 1_000_000 / u128::from(self.khz)))
    }
}

fn saturating(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

impl From<Duration> for Nanoseconds {
    fn from(time: Duration) -> Self {
        Self(saturating(time.as_nanos()))
    }
}

impl From<Nanoseconds> for Duration {
    fn from(time: Nanoseconds) -> Self {
        Self::from_nanos(time.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_and_nanoseconds_convert_both_ways_and_nothing_overflows() {
        let rate = TscRate::of_khz(2_500_000);
        assert_eq!(rate.ticks(Nanoseconds(1_000)), Ticks(2_500));
        assert_eq!(rate.nanoseconds(Ticks(2_500)), Nanoseconds(1_000));
        assert_eq!(rate.ticks(Nanoseconds(u64::MAX)), Ticks(u64::MAX));
        assert_eq!(TscRate::of_khz(0).nanoseconds(Ticks(1)), Nanoseconds(1_000_000));
        assert_eq!(Nanoseconds::from(Duration::MAX), Nanoseconds(u64::MAX));
    }
}
