//! What a lock costs when nobody contends for it, measured by vCPU 0 before any other vCPU runs.
#![expect(unsafe_code, reason = "a rest between two pairs that the CPU cannot overlap with them")]

use core::arch::asm;
use core::hint::black_box;

use crate::locks::GuestLock;
use crate::time::now;

/// TSC ticks of 1024 pairs of lock and unlock, at least 1: the best of several short runs, since anything that disturbs
/// one only makes it slower.
///
/// There is a rest between two pairs, and what a loop of rests takes is subtracted. Without it a lock that is taken as a
/// word and released as a byte would wait in each round for the byte to reach the cache, since a load that is wider than
/// the store before it cannot be served from the store buffer: a stall that no section of any length would show.
pub(crate) fn pair_ticks<L: GuestLock>() -> u64 {
    const RUNS: usize = 9;
    const RUN_TICKS: u64 = 100_000;
    const PROBE_PAIRS: u64 = 16;
    const MOST_PAIRS: u64 = 1024;

    let best = |run: fn(u64) -> u64, pairs: u64, runs: usize| {
        (0..runs).map(|_| run(pairs)).min().unwrap_or(0).max(1)
    };
    // Fewer where ring 0 is interpreted, and a pair takes ten microseconds.
    let pairs =
        (RUN_TICKS * PROBE_PAIRS / best(pairs_and_rests::<L>, PROBE_PAIRS, 3)).clamp(PROBE_PAIRS, MOST_PAIRS);
    let ticks = best(pairs_and_rests::<L>, pairs, RUNS).saturating_sub(best(rests, pairs, RUNS));
    (ticks * 1024 / pairs).max(1)
}

#[inline(never)]
fn pairs_and_rests<L: GuestLock>(pairs: u64) -> u64 {
    let start = now();
    for _ in 0..pairs {
        L::section(0, || black_box(()));
        rest();
    }
    now() - start
}

#[inline(never)]
fn rests(rests: u64) -> u64 {
    let start = now();
    for _ in 0..rests {
        rest();
    }
    now() - start
}

/// Some 60 cycles that begin when all before is done and end before what follows begins; stores reach the cache meanwhile.
#[inline(always)]
fn rest() {
    // SAFETY: touches one register.
    unsafe {
        asm!(
            "lfence",
            ".rept 20",
            "imul {product}, {product}",
            ".endr",
            "lfence",
            product = inout(reg) 3_u64 => _,
            options(nostack),
        );
    }
}
