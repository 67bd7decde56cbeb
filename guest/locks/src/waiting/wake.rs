//! Sleeping and kicking, with the clock running.

use crate::{
    contract::{Event, Platform, Point},
    memory::sync::{Ordering::Relaxed, Statistic},
};

/// When its CPU was last kicked, in ticks; 0 since that CPU last went to sleep.
///
/// For `pv_latency_wake` only. The stamp races with the sleeper by nature: a kick that is not matched to a
/// wake-up is one that `pv_kick_wake` does not count.
#[derive(Debug)]
pub(crate) struct KickStamp(Statistic);

impl KickStamp {
    /// The stamp of a CPU that was never kicked.
    pub(crate) const fn new() -> Self {
        Self(Statistic::new(0))
    }
}

/// Counters of the kicks of one kind of lock.
pub(crate) struct Kicks {
    sent: Event,
    woke: Event,
    ticks_to_send: Event,
    ticks_to_wake: Event,
}

/// Counters of spinlocks.
pub(crate) const OF_SPINLOCKS: Kicks = Kicks {
    sent: Event::PvKickUnlock,
    woke: Event::PvKickWake,
    ticks_to_send: Event::PvLatencyKick,
    ticks_to_wake: Event::PvLatencyWake,
};

/// Counters of sleeping locks.
pub(crate) const OF_SLEEPING_LOCKS: Kicks = Kicks {
    sent: Event::SleepKick,
    woke: Event::SleepKickWake,
    ticks_to_send: Event::SleepLatencyKick,
    ticks_to_wake: Event::SleepLatencyWake,
};

impl Kicks {
    /// `pv_wait`, and how long ago the kick was that ended it.
    pub(crate) fn sleep<P: Platform>(&self, platform: &P, mine: &KickStamp, still: impl Fn() -> bool) {
        mine.0.store(0, Relaxed);
        platform.point(Point::BeforeSleep);
        platform.wait(still);
        let kicked = mine.0.load(Relaxed);
        if kicked != 0 {
            platform.count(self.woke, 1);
            // Not below 0: clocks of two CPUs may differ.
            let ticks = (platform.now() as usize).wrapping_sub(kicked).cast_signed().max(0);
            platform.count(self.ticks_to_wake, ticks as u64);
        }
    }

    /// `pv_kick`, and how long it took.
    pub(crate) fn kick<P: Platform>(&self, platform: &P, theirs: &KickStamp, cpu: usize) {
        let started = platform.now();
        theirs.0.store((started as usize).max(1), Relaxed);
        platform.kick(cpu);
        platform.count(self.sent, 1);
        platform.count(self.ticks_to_send, platform.now().saturating_sub(started));
    }
}
