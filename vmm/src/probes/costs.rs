//! Costs of instructions and cache lines on this host, and when its scheduler lets threads run that would always run: the files of a
//! machine and of a host for [`Engine::Sim`](crate::Engine::Sim) are made of them.
//!
//! Each cost is the least of several rounds: what disturbs a round makes it longer.
#![expect(
    unsafe_code,
    reason = "LFENCE is an instruction that only some x86 processors have, and all x86-64 ones do"
)]

use std::arch::x86_64::_mm_lfence;
use std::hint::{black_box, spin_loop};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::sched_getcpu;

use crate::host::error::RunError;
use crate::host::random::SplitMix;
use crate::host::{clock, cpus};

const ROUNDS: usize = 9;
/// Instructions that are timed in a round.
const TIMES: u32 = 20_000;
/// Hand-overs of a line that are timed in a round.
const HAND_OVERS: u64 = 20_000;
/// Lines of memory that the chase for its latency goes through: 64 MiB, more than caches hold.
const CHASED_LINES: usize = 1 << 20;
const CHASED_STEPS: usize = 1 << 18;
/// Numbers of four bytes in a line.
const PER_LINE: usize = 16;

/// Costs of single operations on a CPU, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct CpuCosts {
    /// Frequency of the time stamp counter.
    pub tsc_khz: u64,
    /// PAUSE.
    pub pause_ns: f64,
    /// RDTSC.
    pub rdtsc_ns: f64,
    /// LFENCE, with nothing outstanding.
    pub fence_ns: f64,
    /// LOCK XADD on a line that the core has.
    pub rmw_ns: f64,
    /// A load from memory that no cache holds.
    pub memory_ns: f64,
}

impl CpuCosts {
    /// On the CPU with this number. Takes a fifth of a second.
    ///
    /// # Errors
    /// [`RunError`] if this thread may not run there.
    pub fn measure(cpu: u32) -> Result<Self, RunError> {
        let measure = || {
            cpus::pin_to(&[cpu])?;
            let word = AtomicU64::new(0);
            Ok(Self {
                tsc_khz: clock::tsc_khz(),
                pause_ns: each_ns(spin_loop),
                rdtsc_ns: each_ns(|| _ = black_box(clock::read_tsc())),
                fence_ns: each_ns(lfence),
                rmw_ns: each_ns(|| _ = black_box(word.fetch_add(1, Ordering::AcqRel))),
                memory_ns: memory_ns(),
            })
        };
        std::thread::scope(|scope| scope.spawn(measure).join().expect("it does not panic"))
    }
}

/// Ticks of the time stamp counter that a PAUSE takes on the CPU that this thread is on.
#[must_use]
pub fn pause_ticks() -> u64 {
    (each_ns(spin_loop) * clock::tsc_khz() as f64 / 1e6).round() as u64
}

/// How long a line takes from one CPU to another: half of the round trip of two threads that hand a flag to and fro by
/// compare-and-exchange.
///
/// # Errors
/// [`RunError`] if threads may not run there.
pub fn transfer_ns(cpus: [u32; 2]) -> Result<f64, RunError> {
    let (flag, start) = (AtomicU64::new(0), Barrier::new(2));
    let times = std::thread::scope(|scope| {
        let threads = [0, 1].map(|side| {
            let (flag, start) = (&flag, &start);
            scope.spawn(move || {
                let pinned = cpus::pin_to(&[cpus[side as usize]]);
                let best = (0..ROUNDS as u64).map(|round| {
                    start.wait();
                    let began = Instant::now();
                    hand_over(flag, side, round * HAND_OVERS);
                    began.elapsed().as_nanos() as f64 / HAND_OVERS as f64
                });
                let best = best.fold(f64::INFINITY, f64::min);
                pinned.map(|()| best)
            })
        });
        threads.map(|thread| thread.join().expect("it does not panic"))
    });
    let [one, other] = times;
    Ok(one?.max(other?))
}

/// One side's half of the handoffs: it takes the flag to the next number whenever the number is its own.
fn hand_over(flag: &AtomicU64, side: u64, from: u64) {
    let mine = (from..from + HAND_OVERS).filter(|number| number % 2 == side);
    for number in mine {
        while flag.compare_exchange_weak(number, number + 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {}
    }
}

#[inline(always)]
fn lfence() {
    // SAFETY: every x86-64 processor has SSE2.
    unsafe { _mm_lfence() };
}

/// Nanoseconds of one call, many of them in a row.
fn each_ns(mut call: impl FnMut()) -> f64 {
    let round = |_| {
        let began = Instant::now();
        for _ in 0..TIMES / 8 {
            for _ in 0..8 {
                call();
            }
        }
        began.elapsed().as_nanos() as f64 / f64::from(TIMES)
    };
    (0..ROUNDS).map(round).fold(f64::INFINITY, f64::min)
}

/// Nanoseconds of a load that depends on the one before, all over a memory that is larger than the caches.
fn memory_ns() -> f64 {
    // One cycle through all lines (Sattolo's shuffle).
    let mut order: Vec<u32> = (0..CHASED_LINES as u32).collect();
    let mut random = SplitMix::new(1);
    for last in (1..CHASED_LINES).rev() {
        order.swap(last, (random.next() % last as u64) as usize);
    }
    let mut lines = vec![0; CHASED_LINES * PER_LINE];
    for (line, &next) in order.iter().enumerate() {
        lines[line * PER_LINE] = next;
    }
    let mut at = 0;
    let round = |_| {
        let began = Instant::now();
        for _ in 0..CHASED_STEPS {
            at = lines[at as usize * PER_LINE];
        }
        black_box(at);
        began.elapsed().as_nanos() as f64 / CHASED_STEPS as f64
    };
    (0..3).map(round).fold(f64::INFINITY, f64::min)
}

/// A shorter gap is not seen: two readings of the clock take less.
const LEAST_GAP: Duration = Duration::from_nanos(500);
/// Gaps that one thread keeps: more than ticks of 10 kHz make in [`MOST_TIME`].
const MOST_GAPS: usize = 1 << 17;
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
    use crate::host::cpus::allowed_cpus;

    #[test]
    fn every_cost_is_a_time_and_memory_is_farther_than_the_cache() {
        let cpus = allowed_cpus();
        let costs = CpuCosts::measure(cpus[0]).unwrap();
        let all = [costs.pause_ns, costs.rdtsc_ns, costs.fence_ns, costs.rmw_ns, costs.memory_ns];
        assert!(all.iter().all(|cost| (0.05..100_000.0).contains(cost)), "{costs:?}");
        assert!(costs.memory_ns > costs.rmw_ns, "{costs:?}");
        if let [one, other, ..] = cpus[..] {
            assert!(transfer_ns([one, other]).unwrap() > costs.rmw_ns / 2.0);
        }
    }

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
