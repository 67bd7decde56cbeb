//! When the host's scheduler lets threads run that would always run: what the file of a host for
//! [`Engine::Sim`](crate::Engine::Sim) is made of.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use rustix::thread::sched_getcpu;

use crate::host::cpus;
use crate::host::error::RunError;

/// A shorter gap is not seen: two readings of the clock take less.
const LEAST_GAP: Duration = Duration::from_nanos(500);
/// Gaps that one thread keeps: more than ticks of 10 kHz make in [`MOST_TIME`].
const MOST_GAPS: usize = 1 << 17;
/// The longest measurement.
const MOST_TIME: Duration = Duration::from_secs(10);

/// A time in which a thread did not run, though it never waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Its beginning, in nanoseconds since all threads started.
    pub at_ns: u64,
    /// Its length, in nanoseconds.
    pub length_ns: u64,
    /// The thread ran on another CPU afterwards.
    pub moved: bool,
}

/// Lets `threads` threads run on `cpus` for `time`, at most ten seconds, and returns the gaps of each, in order.
///
/// # Errors
/// [`RunError`] if a thread may not run there.
pub fn gaps(cpus: &[u32], threads: usize, time: Duration) -> Result<Vec<Vec<Gap>>, RunError> {
    let barrier = Barrier::new(threads);
    std::thread::scope(|scope| {
        let spawn = |_| {
            scope.spawn(|| {
                let pinned = cpus::pin_to(cpus);
                let mut gaps = Vec::with_capacity(MOST_GAPS);
                barrier.wait();
                pinned?;
                watch(time.min(MOST_TIME), &mut gaps);
                Ok(gaps)
            })
        };
        let running: Vec<_> = (0..threads).map(spawn).collect();
        running.into_iter().map(|thread| thread.join().expect("a watching thread does not panic")).collect()
    })
}

/// Reads the clock without end, and keeps what lies further apart than [`LEAST_GAP`].
fn watch(time: Duration, gaps: &mut Vec<Gap>) {
    let start = Instant::now();
    let (mut last, mut cpu) = (Duration::ZERO, sched_getcpu());
    while last < time && gaps.len() < MOST_GAPS {
        let now = start.elapsed();
        if now - last >= LEAST_GAP {
            let after = sched_getcpu();
            let [at_ns, length_ns] = [last, now - last].map(|it| it.as_nanos() as u64);
            gaps.push(Gap { at_ns, length_ns, moved: after != cpu });
            cpu = after;
        }
        last = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_threads_on_one_cpu_take_turns() {
        let cpu = cpus::allowed_cpus()[0];
        let both = gaps(&[cpu], 2, Duration::from_millis(200)).unwrap();
        assert_eq!(both.len(), 2);
        for gaps in both {
            let longest = gaps.iter().max_by_key(|gap| gap.length_ns).expect("a thread that never waited");
            assert!(longest.length_ns > 100_000 && !longest.moved, "{longest:?}");
            assert!(gaps.is_sorted_by_key(|gap| gap.at_ns));
        }
    }
}
