//! The time stamp counter, and work that is counted in iterations rather than in elapsed time.
//!
//! A vCPU that is descheduled while it works must still do the rest when it comes back; a loop that waits for a
//! point in time would make preemption free.
#![expect(unsafe_code, reason = "rdtsc and a loop whose code must not depend on the optimiser")]

use core::arch::asm;
use core::sync::atomic::Ordering;

use crate::percpu::{boot, control, this};

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

/// Does `iterations` rounds of the reference loop: four dependent multiplications each, 12 cycles on most CPUs.
///
/// Bound by latency, so that it leaves the core's units to an SMT sibling and does not slow down when that one works
/// too. (A loop of one decrement a round, bound by one taken branch a cycle, ran at half its speed then.)
#[inline(never)]
pub(crate) fn work(iterations: u64) {
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

/// Iterations that take `nanoseconds` at the rate of this run.
pub(crate) fn iterations(nanoseconds: u64) -> u64 {
    let rate = control().work_rate.load(Ordering::Relaxed);
    ((u128::from(nanoseconds) * u128::from(rate)) >> 20) as u64
}

/// Iterations of the work loop per 2^20 ns: the best of several short runs, since anything that disturbs one
/// (an exit, a slice that ends) only makes it slower.
pub(crate) fn measure_work_rate() -> u64 {
    const RUNS: usize = 9;
    const PROBE_ITERATIONS: u64 = 1_000;
    const RUN_NS: u64 = 50_000;

    let best = |iterations: u64, runs: usize| {
        (0..runs)
            .map(|_| {
                let start = now();
                work(iterations);
                (now() - start).max(1)
            })
            .min()
            .unwrap_or(1)
    };
    let rate = |iterations: u64, ticks: u64| {
        // iterations / (ticks / tsc_khz * 1e6 ns) * 2^20 ns
        ((u128::from(iterations) << 20) * u128::from(boot().tsc_khz) / (u128::from(ticks) * 1_000_000)) as u64
    };
    let rough = rate(PROBE_ITERATIONS, best(PROBE_ITERATIONS, 3)).max(1);
    let run_iterations = ((RUN_NS * rough) >> 20).max(1);
    rate(run_iterations, best(run_iterations, RUNS)).max(1)
}
