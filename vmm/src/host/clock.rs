//! Host time, and the measuring window in it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// CLOCK_MONOTONIC in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// CPU time of the whole process.
pub(crate) fn process_cpu_time() -> Duration {
    Duration::from_nanos(nanoseconds(ClockId::ProcessCPUTime))
}

/// The host's time stamp counter.
pub(crate) fn read_tsc() -> u64 {
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
        let ((start_tsc, start_ns), mut end) = (both_clocks(), both_clocks());
        while end.1 - start_ns < MEASURED_NS {
            end = both_clocks();
        }
        (u128::from(end.0 - start_tsc) * 1_000_000 / u128::from(end.1 - start_ns)) as u64
    })
}

/// Counter and nanoseconds of one moment: the closest of several pairs, since an interruption sets them apart.
fn both_clocks() -> (u64, u64) {
    const LOOKS: usize = 5;
    let look = || {
        let before = read_tsc();
        let now_ns = now_ns();
        let after = read_tsc();
        (after - before, (before + (after - before) / 2, now_ns))
    };
    (0..LOOKS).map(|_| look()).min().map_or((0, 0), |(_, pair)| pair)
}

/// The guest's time stamp counter, as computed from the host's.
#[derive(Debug)]
pub(crate) struct GuestTsc {
    /// Guest minus host, wrapping.
    offset: AtomicU64,
    khz: u64,
    /// The offset according to KVM.
    nominal: u64,
}

impl GuestTsc {
    /// A counter of `khz`, which is `nominal` ahead of the host's if KVM is right. (One that interprets rings, and lets
    /// the guest read the host's counter all the same, is not.)
    pub(crate) const fn new(khz: u64, nominal: u64) -> Self {
        Self { offset: AtomicU64::new(nominal), khz, nominal }
    }

    /// Its frequency.
    pub(crate) fn khz(&self) -> u64 {
        self.khz
    }

    /// The guest read `guest` a moment ago: decides between no offset, the nominal one, and what this says.
    pub(crate) fn compare(&self, guest: u64) {
        let seen = guest.wrapping_sub(read_tsc());
        let near = |offset: u64| (seen.wrapping_sub(offset) as i64).unsigned_abs() < self.khz * 10;
        let offset = [0, self.nominal].into_iter().find(|&offset| near(offset)).unwrap_or(seen);
        // Relaxed: whoever reads the old one computes a hint that is wrong.
        self.offset.store(offset, Ordering::Relaxed);
    }

    /// What the guest's counter showed when the host's showed `host`.
    pub(crate) fn of_host(&self, host: u64) -> u64 {
        host.wrapping_add(self.offset.load(Ordering::Relaxed))
    }

    /// What the guest's counter shows `ahead_ns` from now.
    pub(crate) fn in_ns(&self, ahead_ns: u64) -> u64 {
        let ticks = (u128::from(ahead_ns) * u128::from(self.khz) / 1_000_000) as u64;
        self.of_host(read_tsc()).wrapping_add(ticks)
    }
}

/// When the window opened and closed. Read by the schedulers to clip what they account for to the window.
#[derive(Debug)]
pub(crate) struct WindowTimes {
    open_ns: AtomicU64,
    close_ns: AtomicU64,
}

impl WindowTimes {
    /// Not open yet.
    pub(crate) const fn new() -> Self {
        Self { open_ns: AtomicU64::new(u64::MAX), close_ns: AtomicU64::new(u64::MAX) }
    }

    /// One that was open from `open_ns` to `close_ns`.
    #[cfg(test)]
    pub(crate) const fn between(open_ns: u64, close_ns: u64) -> Self {
        Self { open_ns: AtomicU64::new(open_ns), close_ns: AtomicU64::new(close_ns) }
    }

    // Relaxed throughout: an accountant that sees the change a moment late misjudges that moment only.

    /// The window is open from now on.
    pub(crate) fn open(&self) {
        self.open_ns.store(now_ns(), Ordering::Relaxed);
    }

    /// The window is closed from now on, unless it is already.
    pub(crate) fn close(&self) {
        let _ = self.close_ns.compare_exchange(u64::MAX, now_ns(), Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Whether it was open and is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.close_ns.load(Ordering::Relaxed) != u64::MAX
    }

    /// The part of `from_ns..to_ns` that lies in the window, in nanoseconds.
    pub(crate) fn overlap_ns(&self, from_ns: u64, to_ns: u64) -> u64 {
        self.clip(from_ns, to_ns).map_or(0, |(from, to)| to - from)
    }

    /// The part of `from_ns..to_ns` that lies in the window, unless that is empty.
    pub(crate) fn clip(&self, from_ns: u64, to_ns: u64) -> Option<(u64, u64)> {
        let from = from_ns.max(self.open_ns.load(Ordering::Relaxed));
        let to = to_ns.min(self.close_ns.load(Ordering::Relaxed));
        (from < to).then_some((from, to))
    }

    /// Whether `at_ns` lies in the window.
    pub(crate) fn contains(&self, at_ns: u64) -> bool {
        self.open_ns.load(Ordering::Relaxed) <= at_ns && at_ns < self.close_ns.load(Ordering::Relaxed)
    }

    /// When it opened and closed, in host time; `u64::MAX`: never.
    pub(crate) fn times(&self) -> [u64; 2] {
        [self.open_ns.load(Ordering::Relaxed), self.close_ns.load(Ordering::Relaxed)]
    }

    /// Its length, once closed.
    pub(crate) fn length(&self) -> Duration {
        let length =
            self.close_ns.load(Ordering::Relaxed).saturating_sub(self.open_ns.load(Ordering::Relaxed));
        Duration::from_nanos(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_before_the_window_and_after_it_does_not_count() {
        let window = WindowTimes { open_ns: AtomicU64::new(100), close_ns: AtomicU64::new(200) };
        assert_eq!(window.overlap_ns(0, 50), 0);
        assert_eq!(window.overlap_ns(50, 150), 50);
        assert_eq!(window.overlap_ns(120, 130), 10);
        assert_eq!(window.overlap_ns(150, 250), 50);
        assert_eq!(window.overlap_ns(200, 250), 0);
        assert!(!window.contains(99) && window.contains(100) && !window.contains(200));
    }

    #[test]
    fn the_guests_counter_is_the_hosts_or_kvms_or_what_it_says() {
        const KHZ: u64 = 2_000_000;
        const FAR: u64 = 1 << 60;
        let tsc = GuestTsc::new(KHZ, FAR);
        for offset in [0, FAR, 7 * FAR] {
            tsc.compare(read_tsc().wrapping_add(offset));
            let error =
                tsc.in_ns(1_000_000_000).wrapping_sub(read_tsc().wrapping_add(offset + KHZ * 1000)) as i64;
            assert!(error <= 0 || offset == 7 * FAR, "{error} ticks ahead");
            assert!(error.unsigned_abs() < KHZ * 1000, "{error} ticks off");
        }
    }

    #[test]
    fn a_window_that_never_opened_contains_nothing() {
        let window = WindowTimes::new();
        assert_eq!(window.overlap_ns(0, u64::MAX), 0);
        assert!(!window.contains(u64::MAX - 1));
    }
}
