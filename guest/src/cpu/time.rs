//! The time stamp counter, and work that is counted in iterations rather than in elapsed time.
//!
//! A vCPU that is descheduled while it works must still do the rest when it comes back; a loop that waits for a
//! point in time would make preemption free.
#![expect(unsafe_code, reason = "rdtsc and a loop whose code must not depend on the optimiser")]

use core::arch::asm;
use core::sync::atomic::Ordering;

use haltkick_hypercalls::{WORK_PROBE_ITERATIONS, WORK_PROBES};

use crate::cpu::percpu::{boot, control, this};

/// Ticks of the time stamp counter.
#[inline(always)]
pub(crate) fn now() -> u64 {
    // SAFETY: CR4.TSD is clear, so every ring may read the counter.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Ticks of a clock that stands still while this vCPU is off its pCPU, where the VMM keeps count of that.
#[inline(always)]
pub(crate) fn on_cpu() -> u64 {
    let off = &this().host.off_ticks;
    loop {
        // Written before the vCPU runs again, so two equal readings mean that it ran from one to the other. Acquire keeps
        // the counter's reading between them; x86 does so by itself, but for `rdtsc`, whose reading early or late by a
        // few instructions does not matter.
        let before = off.load(Ordering::Acquire);
        let ticks = now();
        if off.load(Ordering::Acquire) == before {
            return ticks.wrapping_sub(before);
        }
    }
}

/// Returns the time once everything earlier in the program has been executed.
///
/// A processor runs ahead of a loop that is bound by latency by all that its window holds, some hundred cycles of [`work`],
/// so that an unordered reading after it is early by as much.
#[inline(always)]
pub(crate) fn now_in_order() -> u64 {
    // SAFETY: a fence touches no memory; `now` is safe. LFENCE is dispatch-serializing on Intel's processors, and on AMD's as
    // every kernel since 2018 sets them up (AMD APM vol. 2, 7.6.4).
    unsafe { core::arch::x86_64::_mm_lfence() };
    now()
}

/// Does `iterations` rounds of the work loop. One call of [`PROBE_PERIOD`] is timed, so that every run can say how fast
/// its work really went.
#[inline]
pub(crate) fn work(iterations: u64) {
    // Relaxed: this vCPU's own.
    let until_next = &this().work.until_next;
    match until_next.load(Ordering::Relaxed) {
        0 if iterations >= PROBE_LEAST_ITERATIONS => timed_work(iterations),
        0 => work_loop(iterations),
        left => {
            until_next.store(left - 1, Ordering::Relaxed);
            work_loop(iterations);
        }
    }
}

/// Calls of [`work`] from one that is timed to the next. Odd, so that where sections and pauses alternate both are timed.
const PROBE_PERIOD: u32 = 61;
/// Shorter pieces, 50 ns or so, are not timed: an error of some cycles would be a large part of them.
const PROBE_LEAST_ITERATIONS: u64 = 10;

/// Does the work and notes how long it took, less what it costs to read the counter.
#[cold]
#[inline(never)]
fn timed_work(iterations: u64) {
    let (reading, working) = timed(iterations);
    let probes = &this().work;
    // Relaxed, here and below: the VMM reads them when this vCPU has stopped.
    probes.until_next.store(PROBE_PERIOD - 1, Ordering::Relaxed);
    if reading >= working / 2 {
        return; // Interrupted between the first two readings.
    }
    let taken = probes.taken.load(Ordering::Relaxed);
    let ticks = u128::from(working - reading);
    let per_probe = ticks * u128::from(WORK_PROBE_ITERATIONS) / u128::from(iterations);
    let slot = &probes.ticks[taken as usize % WORK_PROBES];
    slot.store(u32::try_from(per_probe).unwrap_or(u32::MAX), Ordering::Relaxed);
    probes.taken.store(taken.wrapping_add(1), Ordering::Relaxed);
}

/// Ticks from one reading of the counter to the next: with nothing between them, and with the work between them.
fn timed(iterations: u64) -> (u64, u64) {
    let before = now_in_order();
    let start = now_in_order();
    work_loop(iterations);
    let end = now_in_order();
    (start.saturating_sub(before), end.saturating_sub(start))
}

/// `iterations` rounds of the reference loop: four dependent multiplications each, 12 cycles on most CPUs.
///
/// Bound by latency, so that it leaves the core's units to an SMT sibling and does not slow down when that one works
/// too. (A loop of one decrement a round, bound by one taken branch a cycle, ran at half its speed then.)
#[inline(never)]
fn work_loop(iterations: u64) {
    if iterations == 0 {
        return;
    }
    // SAFETY: touches two registers. Aligned, so that its speed does not depend on what the linker puts before it.
    unsafe {
        asm!(
            ".p2align 5",
            "2:",
            "imul {product}, {product}",
            "imul {product}, {product}",
            "imul {product}, {product}",
            "imul {product}, {product}",
            "dec {left}",
            "jnz 2b",
            left = inout(reg) iterations => _,
            product = inout(reg) 3_u64 => _,
            options(nomem, nostack),
        );
    }
}

/// Ticks of the counter in `nanoseconds`.
#[inline]
pub(crate) fn ticks(nanoseconds: u64) -> u64 {
    (u128::from(nanoseconds) * u128::from(boot().tsc_khz) / 1_000_000) as u64
}

/// Iterations that take `nanoseconds` at the rate of this run.
pub(crate) fn iterations(nanoseconds: u64) -> u64 {
    let rate = control().work_rate.load(Ordering::Relaxed);
    ((u128::from(nanoseconds) * u128::from(rate)) >> 20) as u64
}

/// Iterations of the work loop per 2^20 ns: the best of many short probes, since anything that disturbs one
/// (an exit, a slice that ends) only makes it slower.
///
/// A probe must fit between two interruptions with room to spare. Slices are 50 us and more, and on some hosts the
/// interruption itself takes 20 us of one, so that a probe of 50 us never fits; one of 4 us nearly always does.
pub(crate) fn measure_work_rate() -> u64 {
    const ROUGH_ITERATIONS: u64 = 300;
    const ROUGH_PROBES: usize = 20;
    const PROBES: usize = 100;
    const PROBE_NS: u64 = 4_000;

    // The best of each by itself: an interruption of the first would make the difference too small.
    let best = |iterations: u64, probes: usize| {
        let (mut reading, mut working) = (u64::MAX, u64::MAX);
        for timed in (0..probes).map(|_| timed(iterations)) {
            (reading, working) = (reading.min(timed.0), working.min(timed.1));
        }
        working.saturating_sub(reading).max(1)
    };
    let rate = |iterations: u64, ticks: u64| {
        // iterations / (ticks / tsc_khz * 1e6 ns) * 2^20 ns
        ((u128::from(iterations) << 20) * u128::from(boot().tsc_khz) / (u128::from(ticks) * 1_000_000)) as u64
    };
    let rough = rate(ROUGH_ITERATIONS, best(ROUGH_ITERATIONS, ROUGH_PROBES)).max(1);
    let iterations = ((PROBE_NS * rough) >> 20).max(1);
    rate(iterations, best(iterations, PROBES)).max(1)
}
