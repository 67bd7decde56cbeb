//! Cost of an uncontended lock and the measurement overhead, measured by vCPU 0 before any other vCPU runs.
//!
//! Each figure is the best of several short runs, since anything that disturbs one only makes it slower.
#![expect(unsafe_code, reason = "a rest between two pairs that the CPU cannot overlap with them")]

use core::arch::asm;
use core::hint::black_box;

use crate::cpu::time::now;
use crate::lock::measure::{self, Sections};
use crate::lock::oracle::Watch;
use crate::observe::times::Stamps;

const RUNS: usize = 9;
const RUN_TICKS: u64 = 100_000;
const PROBES: u64 = 16;
const MOST: u64 = 1024;

/// TSC ticks of 1024 pairs of lock and unlock, at least 1.
///
/// There is a rest between two pairs, and what a loop of rests takes is subtracted. Without it a lock that is taken as a
/// word and released as a byte would wait in each round for the byte to reach the cache, since a load that is wider than
/// the store before it cannot be served from the store buffer: a stall that no section of any length would show.
pub(crate) fn pair_ticks(pair: impl Fn() + Copy) -> u64 {
    // Fewer where ring 0 is interpreted, and a pair takes ten microseconds.
    let pairs = (RUN_TICKS * PROBES / best(|| loop_of(PROBES, pair), 3)).clamp(PROBES, MOST);
    let ticks = best(|| loop_of(pairs, pair), RUNS).saturating_sub(best(|| loop_of(pairs, || ()), RUNS));
    (ticks * 1024 / pairs).max(1)
}

fn best(run: impl Fn() -> u64, runs: usize) -> u64 {
    (0..runs).map(|_| run()).min().unwrap_or(0).max(1)
}

#[inline(never)]
fn loop_of(pairs: u64, pair: impl Fn()) -> u64 {
    let start = now();
    for _ in 0..pairs {
        pair();
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

/// TSC ticks of 1024 readings of the clock.
pub(crate) fn stamp_ticks(ordered: bool) -> u64 {
    let stamps = Stamps::new(ordered);
    pair_ticks(|| {
        black_box(stamps.now());
    })
}

/// TSC ticks of what the oracle does in 1024 sections; 0 when it is off.
pub(crate) fn oracle_ticks() -> u64 {
    let watch = Watch::for_nobody();
    if !watch.is_on() {
        return 0;
    }
    pair_ticks(|| {
        watch.enter(0);
        watch.leave(0, 0);
    })
}

/// TSC ticks of all that is around 1024 empty sections, less `pair_ticks` of their locks.
pub(crate) fn section_ticks(lock_ticks: u64) -> u64 {
    let sections = &Sections::watched_by(Watch::for_nobody());
    let ticks = pair_ticks(|| {
        black_box(sections.exclusive(0, || ()).released);
    });
    ticks.saturating_sub(lock_ticks).max(1)
}

/// TSC ticks of counting the times of 1024 sections. Takes back what it has counted.
pub(crate) fn counting_ticks() -> u64 {
    let times = black_box(measure::Times { asked: 0, had: 100, left: 200, released: 300 });
    let ticks = pair_ticks(|| measure::count(&times));
    measure::forget();
    ticks
}
