//! The guest's time stamp counter.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::host::clock::{Nanoseconds, TscRate};

#[derive(Debug)]
pub(crate) struct GuestTsc {
    /// Guest minus host, wrapping.
    offset: AtomicU64,
    rate: TscRate,
    /// The offset according to KVM.
    nominal: u64,
}

impl GuestTsc {
    /// A counter of this rate, which is `nominal` ahead of the host's if KVM is right. (One that interprets rings, and lets
    /// the guest read the host's counter all the same, is not.)
    pub(crate) const fn new(rate: TscRate, nominal: u64) -> Self {
        Self { offset: AtomicU64::new(nominal), rate, nominal }
    }

    pub(crate) fn rate(&self) -> TscRate {
        self.rate
    }

    /// The guest read `guest` a moment before the host's counter showed `host`: decides between no offset, the nominal one, and what this says.
    pub(crate) fn compare(&self, guest: u64, host: u64) {
        let seen = guest.wrapping_sub(host);
        let near = |offset: u64| (seen.wrapping_sub(offset) as i64).unsigned_abs() < self.rate.khz() * 10;
        let offset = [0, self.nominal].into_iter().find(|&offset| near(offset)).unwrap_or(seen);
        // Relaxed: a reader of the old offset only computes a wrong hint.
        self.offset.store(offset, Ordering::Relaxed);
    }

    /// Returns the guest's counter at the moment when the host's showed `host`.
    pub(crate) fn of_host(&self, host: u64) -> u64 {
        host.wrapping_add(self.offset.load(Ordering::Relaxed))
    }

    /// Returns the guest's counter `ahead_ns` after the host's shows `host`.
    pub(crate) fn in_ns(&self, ahead_ns: u64, host: u64) -> u64 {
        self.of_host(host).wrapping_add(self.rate.ticks(Nanoseconds(ahead_ns)).0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::clock::read_tsc;

    #[test]
    fn the_guests_counter_is_the_hosts_or_kvms_or_what_it_says() {
        const KHZ: u64 = 2_000_000;
        const FAR: u64 = 1 << 60;
        let tsc = GuestTsc::new(TscRate::of_khz(KHZ), FAR);
        for offset in [0, FAR, 7 * FAR] {
            let host = read_tsc();
            tsc.compare(host.wrapping_add(offset), host);
            let error = tsc
                .in_ns(1_000_000_000, read_tsc())
                .wrapping_sub(read_tsc().wrapping_add(offset + KHZ * 1000)) as i64;
            assert!(error <= 0 || offset == 7 * FAR, "{error} ticks ahead");
            assert!(error.unsigned_abs() < KHZ * 1000, "{error} ticks off");
        }
    }
}
