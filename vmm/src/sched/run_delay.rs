//! How long runners were ready without a pCPU: what others took from them, by the kernel's own count in nanoseconds.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::host::error::Known;

/// Why there is no delay of runners where vCPUs have threads of their own.
pub(crate) const ONE_THREAD_PER_VCPU: &str =
    "every vCPU is a thread of its own, and they wait for each other";

/// The kernel's statistics of a thread, in nanoseconds since it started, up to its last switch.
#[derive(Clone, Copy, Debug, Default)]
pub struct SchedStat {
    /// Time on a CPU.
    pub run_ns: u64,
    /// Time ready, without a CPU.
    pub delay_ns: u64,
}

pub(super) fn parse_sched_stat(text: &str) -> Option<SchedStat> {
    let mut fields = text.split_ascii_whitespace().map(str::parse);
    Some(SchedStat { run_ns: fields.next()?.ok()?, delay_ns: fields.next()?.ok()? })
}

/// Run delay of all runners together, from their start to their end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunDelay {
    /// Time that they existed.
    pub alive: Duration,
    /// Time that they were ready and had no pCPU.
    pub delayed: Duration,
}

/// The sum in the making. All accesses are relaxed: counts, read when the threads that wrote them have been joined.
#[derive(Debug, Default)]
pub(crate) struct RunDelays {
    alive_ns: AtomicU64,
    delay_ns: AtomicU64,
    /// The kernel did not tell of some runner.
    unknown: AtomicBool,
}

impl RunDelays {
    /// Adds a runner that was `born` then and ends now.
    pub(crate) fn add(&self, born: Instant, stat: Option<SchedStat>) {
        // A thread that has run for no time at all is one of a kernel that does not count.
        let Some(stat) = stat.filter(|stat| stat.run_ns > 0) else {
            self.unknown.store(true, Ordering::Relaxed);
            return;
        };
        self.alive_ns.fetch_add(born.elapsed().as_nanos() as u64, Ordering::Relaxed);
        self.delay_ns.fetch_add(stat.delay_ns, Ordering::Relaxed);
    }

    pub(crate) fn sum(&self) -> Known<RunDelay> {
        let alive = Duration::from_nanos(self.alive_ns.load(Ordering::Relaxed));
        let delayed = Duration::from_nanos(self.delay_ns.load(Ordering::Relaxed));
        if self.unknown.load(Ordering::Relaxed) || alive.is_zero() {
            return Err("/proc/thread-self/schedstat does not tell".into());
        }
        Ok(RunDelay { alive, delayed })
    }
}

/// Reads the kernel's figures for the calling thread; it may not count.
#[must_use]
pub fn of_this_thread() -> Option<SchedStat> {
    parse_sched_stat(&std::fs::read_to_string("/proc/thread-self/schedstat").ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_summed_and_unknown_ones_are_not_taken_for_none() {
        let (delays, born) = (RunDelays::default(), Instant::now());
        assert!(delays.sum().is_err());
        for delay_ns in [1000, 2000] {
            delays.add(born, Some(SchedStat { run_ns: 1, delay_ns }));
        }
        assert_eq!(delays.sum().unwrap().delayed, Duration::from_micros(3));
        delays.add(born, Some(SchedStat { run_ns: 0, delay_ns: 0 }));
        assert!(delays.sum().is_err());
    }
}
