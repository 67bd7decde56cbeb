//! Workloads that attack the VMM and the guests beside this one, for tests of what neither may suffer.

use core::sync::atomic::{AtomicU64, Ordering};

use haltkick_hypercalls::{ACTIVITY_HOLDER, PORT_BASE, WINDOW_CLOSED, WINDOW_OPEN, WorkloadFlags};

use crate::cpu::percpu::{add, area, boot, control, cpu, entries, oracles, this};
use crate::cpu::time::{iterations, now, work};
use crate::lock::registry::workload;
use crate::monitor::hypercall;
use crate::observe::trace;
use crate::work::choice::dice;
use crate::workloads::selftest::words;

workload! {
    "380" "selftest-unborn", "all vCPUs say that none has begun, and never stand still",
    WorkloadFlags::IS_SELFTEST.with(WorkloadFlags::TAKES_NO_LOCK), [] => unborn
}
workload! {
    "382" "selftest-feeder", "vCPU 0 yields to vCPU 1 whenever it runs; the others do nothing but work",
    WorkloadFlags::IS_SELFTEST.with(WorkloadFlags::TAKES_NO_LOCK), [] => feeder
}
workload! {
    "384" "selftest-flood", "every vCPU asks all others to drop their translations, as fast as it can",
    WorkloadFlags::IS_SELFTEST.with(WorkloadFlags::TAKES_NO_LOCK), [] => flood
}
workload! {
    "386" "selftest-harm", "every vCPU rings anything with any number and writes anything into all shared memory",
    WorkloadFlags::IS_SELFTEST.with(WorkloadFlags::TAKES_NO_LOCK), [] => harm
}

/// Nobody has ever begun, and everybody moves.
fn unborn() {
    loop {
        control().started.store(0, Ordering::Relaxed);
        this().activity.since_tsc.store(now(), Ordering::Relaxed);
    }
}

/// vCPU 0 hands whatever it gets to vCPU 1. One round of work counts as one operation.
fn feeder() {
    while control().window.load(Ordering::Relaxed) != WINDOW_CLOSED {
        if cpu() == 0 && boot().vcpus > 1 {
            hypercall::yield_to(Some(1));
        } else {
            work(iterations(1_000));
        }
        add(&this().results.acquisitions, 1);
    }
}

/// Every vCPU raises what is asked of all others and rings. One ring counts as one operation.
fn flood() {
    while control().window.load(Ordering::Relaxed) != WINDOW_CLOSED {
        let others = (0..boot().vcpus as usize).filter(|&other| other != cpu());
        others.for_each(|other| _ = area(other).invalidation.requested.fetch_add(1, Ordering::Relaxed));
        hypercall::invalidate();
        add(&this().results.acquisitions, 1);
    }
}

/// Every vCPU does what it likes, for ever. What it needs to go on, its own identity and stacks, it leaves alone; a few of the
/// doorbells end it or its guest, and are rung seldom.
fn harm() {
    /// One of so many bells may be any.
    const ANY_BELL: u64 = 4096;
    let mut random = dice();
    let mut draw = move || random.next();
    // One that says it has not begun only makes all wait: that is `unborn`.
    while control().window.load(Ordering::Relaxed) != WINDOW_OPEN {
        work(iterations(1_000));
    }
    loop {
        for _ in 0..draw() % 32 {
            let region = region(&mut draw);
            // Small numbers now and then: they pass more checks than large ones.
            let (value, shift) = (draw(), draw() % 64);
            if let Some(word) = region.get(draw() as usize % region.len().max(1)) {
                word.store(value >> shift, Ordering::Relaxed);
            }
        }
        if draw() % 8 == 0 {
            // To be spared, and not to count as begun.
            this().activity.state.store(ACTIVITY_HOLDER, Ordering::Relaxed);
            control().started.store(0, Ordering::Relaxed);
        }
        let argument = if draw() % 2 == 0 { draw() as u32 } else { draw() as u32 % boot().vcpus };
        match draw() % 16 {
            0..4 => hypercall::yield_to(Some(argument)),
            4..8 => hypercall::kick(argument),
            8 => {
                // Whoever sleeps is woken by the others; they kick more often than anybody sleeps.
                hypercall::kick(cpu() as u32);
                hypercall::wait();
            }
            9 => hypercall::booted(),
            10 => hypercall::invalidate(),
            11 => hypercall::point(argument),
            12 => hypercall::work_done(),
            13 => hypercall::console(argument as u8),
            14 if draw() % ANY_BELL == 0 => hypercall::out(PORT_BASE + (draw() % 64) as u16, argument),
            _ => work(iterations(draw() % 20_000)),
        }
    }
}

/// Something that is shared with the VMM, of any vCPU.
fn region(draw: &mut impl FnMut() -> u64) -> &'static [AtomicU64] {
    let area = area(draw() as usize % boot().vcpus as usize);
    match draw() % 12 {
        0 => words(&area.steal),
        1 => words(&area.host),
        2 => words(&area.activity),
        3 => words(&area.invalidation),
        4 => words(&area.hint),
        5 => words(&area.report),
        6 => words(&area.work),
        7 => words(&area.results),
        8 => words(&oracles()[0]),
        9 => entries(),
        10 => words(control()),
        _ => trace::Ring::of_this_vcpu().words(),
    }
}
