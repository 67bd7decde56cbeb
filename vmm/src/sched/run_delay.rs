//! How long runners were ready without a pCPU: what others took from them, by the kernel's own count in nanoseconds.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::host::error::Known;
use crate::host::threads::lock;

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

/// Reads the kernel's figures for a thread from its file; it may not count.
pub(super) fn read(path: &str) -> Option<SchedStat> {
    let text = std::fs::read_to_string(path).ok()?;
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

/// The delay of each runner that has ended; `None`: the kernel does not tell.
#[derive(Debug, Default)]
pub(crate) struct RunDelays(Mutex<Vec<Option<RunDelay>>>);

impl RunDelays {
    /// Adds a runner that was `born` then and ends now.
    pub(crate) fn add(&self, born: Instant, stat: Option<SchedStat>) {
        // A thread that has run for no time at all is one of a kernel that does not count.
        let stat = stat.filter(|stat| stat.run_ns > 0);
        let delayed = stat.map(|stat| Duration::from_nanos(stat.delay_ns));
        lock(&self.0).push(delayed.map(|delayed| RunDelay { alive: born.elapsed(), delayed }));
    }

    pub(crate) fn sum(&self) -> Known<RunDelay> {
        let add = |sum: RunDelay, one: RunDelay| RunDelay {
            alive: sum.alive + one.alive,
            delayed: sum.delayed + one.delayed,
        };
        let all: Option<Vec<_>> = lock(&self.0).iter().copied().collect();
        let sum = all.and_then(|all| all.into_iter().reduce(add));
        sum.ok_or_else(|| "/proc/thread-self/schedstat does not tell".into())
    }
}

/// Reads the kernel's figures for the calling thread; it may not count.
#[must_use]
pub fn of_this_thread() -> Option<SchedStat> {
    read("/proc/thread-self/schedstat")
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
