//! Slow paths that are interrupted, and handlers that take a lock: what the nesting levels of a queue spinlock are there for.
//!
//! vCPU 0 is a device: every [`INTERVAL_NS`] of its own work it interrupts another vCPU, chosen by chance, at whatever instruction
//! that one is. All others take all locks but the last in turn, as in `critical-section`; their handler takes the last lock and
//! works for `--hold` in it. So handlers contend with each other, while the vCPU behind each of them may hold a lock, or stand
//! in its queue with others behind it. A device that waited for locks itself would fall silent where they collapse.
//!
//! In `interrupted-each` the simulated machine interrupts them, before each instruction of the lock in turn. Sections are of all kinds
//! that the lock has there: exclusive, for readers, only if it is free.
//!
//! Sections count as operations, with their times. `interrupt` is the time from sending an interrupt to its handler, which for
//! a vCPU without a pCPU is that until it has one; `handler-wait` is what the handler waited for its lock.

use core::sync::atomic::{AtomicU64, Ordering};

use haltkick_hypercalls::{ACTIVITY_HEAD, ACTIVITY_HOLDER, ACTIVITY_WAITER, MAX_VCPUS, TIMES};
use haltkick_locks::{CachePadded, Platform as _};

use crate::cpu::percpu::{add, boot, cpu, this};
use crate::cpu::time::{iterations, now, work};
use crate::lock::measure::{Sections, Times, is_open, is_over, until_closed};
use crate::lock::platform::GUEST;
use crate::lock::registry::workload;
use crate::observe::events::WorkloadEvent;
use crate::observe::times::{Stamps, record_between};
use crate::traps::{interrupts, mmu};
use crate::work::choice::dice;
use crate::workloads::every_call::{self, EveryCall};

workload! {
    "170" "interrupted", "vCPU 0 interrupts the others anywhere in sections and slow paths; the handler takes the last lock (--locks 2)",
        [INTERRUPTS NOTES_WAITS], ["wait", "hold", "unlock", "interrupt", "handler-wait"] => run;
    "175" "interrupted-each", "the same by a simulated machine, before each instruction of the lock in turn; reads and tries, too",
        [INTERRUPTS IS_MEDDLED_WITH NOTES_WAITS],
        ["wait", "hold", "unlock", "interrupt", "handler-wait"] => interrupted_each;
    "387" "selftest-interrupt", "every vCPU interrupts itself: at once, or after it has looked whether to sleep (--locks 2)",
        [IS_SELFTEST TAKES_NO_LOCK INTERRUPTS], [] => selftest;
}

/// Slots of the results' times.
const INTERRUPT: usize = 3;
const HANDLER_WAIT: usize = 4;
const _: () = assert!(HANDLER_WAIT < TIMES);

/// How long vCPU 0 works between two interrupts.
const INTERVAL_NS: u64 = 50_000;

fn handlers_lock() -> usize {
    boot().lock_count as usize - 1
}

fn run() {
    if cpu() == 0 {
        return device();
    }
    interrupts::take_by(handle);
    let (sections, locks, mut next) = (Sections::of_this_vcpu(), handlers_lock(), cpu());
    take_sections(|hold| {
        next += 1;
        Some(sections.exclusive(next % locks, || work(hold)))
    });
}

/// The workload on one vCPU of a machine that interrupts it.
fn interrupted_each() {
    let mut calls = EveryCall::of_this_vcpu(handlers_lock());
    interrupts::take_all_by(handle);
    take_sections(|hold| calls.next(hold));
}

/// Interrupts the others, until the window closes.
fn device() {
    let (others, mut random) = (u64::from(boot().vcpus) - 1, dice());
    let interval = iterations(INTERVAL_NS);
    while !is_over() {
        work(interval);
        // A sign of life for observers.
        this().activity.since_tsc.store(now(), Ordering::Relaxed);
        if others > 0 {
            mmu::interrupt(1 + random.below(others) as usize);
        }
    }
}

/// Does sections by `take`, which is told their length, and takes the interrupts that come.
fn take_sections(take: impl FnMut(u64) -> Option<Times>) {
    every_call::rounds(take);
    interrupts::take_none();
}

/// Handles an interrupt, between any two instructions of the workload or of its locks. The activity of this
/// vCPU is restored afterwards.
fn handle(sent: u64) {
    let (stamps, sections) = (Stamps::of_run(), Sections::of_this_vcpu());
    let begun = stamps.now();
    let doing = &this().activity;
    // Relaxed: this vCPU's own line.
    let state = doing.state.load(Ordering::Relaxed);
    let mut had = begun;
    sections.inner(handlers_lock(), || {
        had = stamps.now();
        work(iterations(boot().hold_ns));
    });
    doing.state.store(state, Ordering::Relaxed);
    if is_open() {
        let met = match state {
            ACTIVITY_WAITER | ACTIVITY_HEAD => WorkloadEvent::InterruptOfWaiter,
            ACTIVITY_HOLDER => WorkloadEvent::InterruptOfHolder,
            _ => WorkloadEvent::InterruptOfOther,
        };
        add(&this().results.lock_events[met.slot()], 1);
        record_between(INTERRUPT, sent, begun);
        record_between(HANDLER_WAIT, begun, had);
    }
}

/// An interrupt to oneself comes with the instruction that asks the VMM for it: so it is known where. One round counts as
/// one operation.
fn selftest() {
    // Relaxed: each vCPU accesses its own.
    let taken = || TAKEN[cpu()].load(Ordering::Relaxed);
    interrupts::take_by(|_| {
        TAKEN[cpu()].fetch_add(1, Ordering::Relaxed);
    });
    until_closed(|| {
        let before = taken();
        mmu::interrupt(cpu());
        assert!(taken() == before + 1, "an interrupt was not taken at once");
        GUEST.wait(|| {
            mmu::interrupt(cpu());
            assert!(taken() == before + 1, "interrupted between the look and the sleep");
            false
        });
        assert!(taken() == before + 2, "an interrupt that was held off was not taken");
    });
    interrupts::take_none();
}

static TAKEN: [CachePadded<AtomicU64>; MAX_VCPUS] =
    [const { CachePadded::new(AtomicU64::new(0)) }; MAX_VCPUS];
