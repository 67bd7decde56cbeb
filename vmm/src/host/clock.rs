//! The host's clocks; ticks of a time stamp counter, and nanoseconds: a conversion between them takes the counter's rate.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

#[cfg(test)]
use crate::host::allocator::counted;

pub(crate) fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// CLOCK_MONOTONIC in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    #[cfg(test)]
    counted::count(counted::Counted::Clock);
    nanoseconds(ClockId::Monotonic)
}

pub(crate) fn process_cpu_time() -> Duration {
    Duration::from_nanos(nanoseconds(ClockId::ProcessCPUTime))
}

pub(crate) fn read_tsc() -> u64 {
    #[cfg(test)]
    counted::count(counted::Counted::Counter);
    #[expect(unsafe_code, reason = "an instruction without a safe form")]
    // SAFETY: every x86-64 CPU that has KVM has a TSC, and Linux lets user space read it.
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
}

/// Frequency of the time stamp counter, where no KVM tells: measured once in a process.
pub(crate) fn tsc_khz() -> u64 {
    /// The clock is read within 100 ns or so: an error of 20 ppm.
    const MEASURED_NS: u64 = 5_000_000;
    static TSC_KHZ: OnceLock<u64> = OnceLock::new();
    *TSC_KHZ.get_or_init(|| {
        let (start, mut end) = (Moment::now(), Moment::now());
        while end.ns - start.ns < MEASURED_NS {
            end = Moment::now();
        }
        (u128::from(end.tsc - start.tsc) * 1_000_000 / u128::from(end.ns - start.ns)) as u64
    })
}

/// The clocks that a run goes by.
#[derive(Debug)]
pub(crate) enum Clock {
    Host,
    /// The clocks of a simulated machine, which stand still but for [`VirtualTime::set`].
    Simulated(Arc<VirtualTime>),
}

/// The clocks of a simulated machine. A thread that waits for the run sees their progress.
#[derive(Debug, Default)]
pub struct VirtualTime {
    ns: AtomicU64,
    tsc: AtomicU64,
    executed: AtomicU64,
}

impl VirtualTime {
    /// Time since the machine was switched on.
    #[must_use]
    pub fn passed(&self) -> Duration {
        // Relaxed: shown, and nothing is read on the strength of it.
        Duration::from_nanos(self.ns.load(Ordering::Relaxed))
    }

    /// Instructions executed one by one since then: not the rounds of parked spin loops, nor those of work.
    #[must_use]
    pub fn executed(&self) -> u64 {
        self.executed.load(Ordering::Relaxed)
    }

    /// Sets the number of instructions that have been executed one by one.
    pub(crate) fn count(&self, executed: u64) {
        self.executed.store(executed, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, now: Moment) {
        // Relaxed: only one thread drives a simulated machine.
        self.ns.store(now.ns, Ordering::Relaxed);
        self.tsc.store(now.tsc, Ordering::Relaxed);
    }
}

impl Clock {
    /// Nanoseconds since some moment in the past.
    pub(crate) fn now_ns(&self) -> u64 {
        match self {
            Self::Host => now_ns(),
            Self::Simulated(clock) => clock.ns.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn tsc(&self) -> u64 {
        match self {
            Self::Host => read_tsc(),
            Self::Simulated(clock) => clock.tsc.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn moment(&self) -> Moment {
        match self {
            Self::Host => Moment::now(),
            Self::Simulated(_) => Moment { ns: self.now_ns(), tsc: self.tsc() },
        }
    }
}

/// One moment on two clocks: CLOCK_MONOTONIC, and a time stamp counter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) ns: u64,
    pub(crate) tsc: u64,
}

impl Moment {
    /// Now: the closest of a few readings, since a thread may be taken off between two clocks.
    pub(crate) fn now() -> Self {
        const READINGS: usize = 5;
        let readings = (0..READINGS).map(|_| {
            let (before, ns, after) = (read_tsc(), now_ns(), read_tsc());
            (after - before, Self { ns, tsc: before + (after - before) / 2 })
        });
        readings.min_by_key(|(width, _)| *width).expect("there are some").1
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticks(pub(crate) u64);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Nanoseconds(pub(crate) u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TscRate {
    khz: u64,
}

impl TscRate {
    /// A rate in ticks per millisecond. A guest may state the rate: 0 is taken for 1, because it is a divisor.
    pub(crate) const fn of_khz(khz: u64) -> Self {
        Self { khz: if khz == 0 { 1 } else { khz } }
    }

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
