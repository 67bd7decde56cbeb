//! A hint that needs no host: CPUs that spin write down the time, and one whose time is old does not run.
//!
//! [`Platform::is_preempted`] then tells of CPUs that wait. Of a holder, which does not spin, it says that it is preempted, so this is for
//! locks that ask about waiters alone, such as [`CnaLive`](crate::CnaLive). A CPU that has not begun to spin is taken to be preempted
//! until its first pause.

use crate::{
    contract::{Activity, Delegate, Platform},
    faults::mutant::mutant,
    memory::{
        CachePadded,
        sync::{MODELLED, Ordering::Relaxed, Statistic},
    },
};

/// Pauses between two looks at the clock, which costs about as much as one.
const BEAT_EVERY: usize = if MODELLED { 1 } else { 8 };

/// A platform whose [`is_preempted`](Platform::is_preempted) goes by when a CPU has last paused.
#[derive(Debug)]
pub struct Heartbeat<P, const CPUS: usize> {
    platform: P,
    stale_after_ns: u64,
    cpus: [CachePadded<Beat>; CPUS],
}

/// One CPU's line. Written by that CPU only.
#[derive(Debug)]
struct Beat {
    /// When it last wrote this down, in ticks; 0: never.
    at: Statistic,
    pauses: Statistic,
}

impl<P, const CPUS: usize> Heartbeat<P, CPUS> {
    /// Takes CPUs of `platform` for preempted that have not paused for `stale_after_ns`: at least as many as an interrupt takes, and
    /// fewer than a slice.
    pub const fn new(platform: P, stale_after_ns: u64) -> Self {
        let cpus =
            [const { CachePadded::new(Beat { at: Statistic::new(0), pauses: Statistic::new(0) }) }; CPUS];
        Self { platform, stale_after_ns, cpus }
    }
}

impl<P: Platform, const CPUS: usize> Heartbeat<P, CPUS> {
    fn now(&self) -> usize {
        (self.platform.now() as usize).max(1)
    }

    fn beat(&self) {
        // Relaxed, here and below: a hint.
        self.cpus[self.platform.cpu()].at.store(self.now(), Relaxed);
    }
}

impl<P: Platform, const CPUS: usize> Delegate for Heartbeat<P, CPUS> {
    type Platform = P;

    #[inline(always)]
    fn platform(&self) -> &P {
        &self.platform
    }

    #[inline]
    fn pause(&self) {
        let pauses = &self.cpus[self.platform.cpu()].pauses;
        let so_far = pauses.load(Relaxed);
        pauses.store(so_far.wrapping_add(1), Relaxed);
        if so_far.is_multiple_of(BEAT_EVERY) {
            self.beat();
        }
        self.platform.pause();
    }

    /// A CPU announces that it waits before it is found waiting.
    #[inline]
    fn announce(&self, activity: Activity) {
        mutant!("heartbeat-first-pause": self.beat() => ());
        self.platform.announce(activity);
    }

    #[inline]
    fn is_preempted(&self, cpu: usize) -> bool {
        let at = self.cpus[cpu].at.load(Relaxed);
        // Clocks of two CPUs may differ: what is in the future is not old.
        let ago = self.now().wrapping_sub(at).cast_signed().max(0);
        at == 0 || ago as u64 >= mutant!("heartbeat-any-age": self.platform.ticks(self.stale_after_ns) => 0)
    }
}
