//! Whether a CPU has to share its physical one: from how much of its time is stolen.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Milliseconds from one sample to the next.
const SAMPLE: u64 = 10;
/// Milliseconds for which a high load is remembered: sleepers hide the load that made them sleep.
const MEMORY: u64 = 100;
/// A load is high from one stolen part in 50 of a sample on. Each wake-up steals some microseconds on an idle host, too.
const SHARE: u64 = 50;

/// Samples of one CPU. Written by that CPU only, so all accesses are relaxed.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Load {
    stolen: AtomicU32,
    since: AtomicU64,
    until: AtomicU64,
    is_started: AtomicBool,
}

impl Load {
    pub(super) const fn new() -> Self {
        Self {
            stolen: AtomicU32::new(0),
            since: AtomicU64::new(0),
            until: AtomicU64::new(0),
            is_started: AtomicBool::new(false),
        }
    }

    /// `stolen` is in nanoseconds, modulo 2^32; `now` in ticks, `khz` of which are a millisecond. At first it is not high.
    pub(super) fn is_high(&self, stolen: u32, now: u64, khz: u64) -> bool {
        let elapsed = now.wrapping_sub(self.since.load(Relaxed));
        if elapsed >= SAMPLE * khz || !self.is_started.load(Relaxed) {
            let growth = u64::from(stolen.wrapping_sub(self.stolen.load(Relaxed)));
            let high = self.is_started.load(Relaxed) && growth * khz / 1_000_000 * SHARE >= elapsed;
            self.stolen.store(stolen, Relaxed);
            self.since.store(now, Relaxed);
            self.is_started.store(true, Relaxed);
            if high {
                self.until.store(now.saturating_add(MEMORY * khz), Relaxed);
            }
        }
        now < self.until.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KHZ: u64 = 2_600_000;

    fn at(load: &Load, milliseconds: u64, stolen_us: u32) -> bool {
        load.is_high(stolen_us * 1_000, 1_000 * KHZ + milliseconds * KHZ, KHZ)
    }

    #[test]
    fn a_stolen_slice_is_remembered_for_a_tenth_of_a_second() {
        let load = Load::new();
        assert!(!at(&load, 0, 70_000), "what was stolen before the first look does not count");
        assert!(!at(&load, 5, 71_000), "not yet");
        assert!(at(&load, 10, 71_000));
        assert!(at(&load, 109, 71_000), "whoever sleeps is not in the way, and yet there is a load");
        assert!(!at(&load, 120, 71_000));
    }

    #[test]
    fn the_wake_ups_of_an_idle_host_are_no_load() {
        let load = Load::new();
        let looks = (0..100).map(|look| at(&load, look * 10, look as u32 * 100));
        assert_eq!(looks.filter(|high| *high).count(), 0);
    }
}
