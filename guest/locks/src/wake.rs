//! Sleeping and kicking, with the clock running.

use crate::{
    Event, Platform, Point,
    sync::{Ordering::Relaxed, Statistic},
};

/// When its CPU was last kicked, in ticks; 0 since that CPU last went to sleep.
///
/// For `pv_latency_wake` only. The stamp races with the sleeper by nature: a kick that is not matched to a
/// wake-up is one that `pv_kick_wake` does not count.
#[derive(Debug)]
pub(crate) struct KickStamp(Statistic);

impl KickStamp {
    pub(crate) const fn new() -> Self {
        Self(Statistic::new(0))
    }
}

/// `pv_wait`, and how long ago the kick was that ended it.
pub(crate) fn sleep<P: Platform>(platform: &P, mine: &KickStamp, still: impl Fn() -> bool) {
    mine.0.store(0, Relaxed);
    platform.point(Point::BeforeSleep);
    platform.wait(still);
    let kicked = mine.0.load(Relaxed);
    if kicked != 0 {
        platform.count(Event::PvKickWake, 1);
        // Not below 0: clocks of two CPUs may differ.
        let ticks = (platform.now() as usize).wrapping_sub(kicked).cast_signed().max(0);
        platform.count(Event::PvLatencyWake, ticks as u64);
    }
}

/// `pv_kick`, and how long it took.
pub(crate) fn kick<P: Platform>(platform: &P, theirs: &KickStamp, cpu: usize) {
    let started = platform.now();
    theirs.0.store((started as usize).max(1), Relaxed);
    platform.kick(cpu);
    platform.count(Event::PvKickUnlock, 1);
    platform.count(Event::PvLatencyKick, platform.now().saturating_sub(started));
}
