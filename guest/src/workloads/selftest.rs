//! Workloads that fail on purpose, so that users and tests see what is reported.
#![expect(unsafe_code, reason = "reads through a null pointer, which is the point")]

use core::fmt::Write;
use core::hint::spin_loop;
use core::sync::atomic::{AtomicU32, Ordering};

use haltkick_hypercalls::{ACTIVITY_HOLDER, WINDOW_CLOSED};

use crate::console::Console;
use crate::hypercall;
use crate::locks::GuestLock;
use crate::percpu::{add, area, boot, control, cpu, this};
use crate::time::{iterations, now, work};
use crate::{histogram, oracle, workloads::critical_section};

/// vCPU 0 panics; the others do as usual.
pub(crate) fn panic<L: GuestLock>() {
    if cpu() == 0 {
        let _ = writeln!(Console, "selftest-panic: vCPU 0 is about to panic");
        panic!("this is what a panic looks like");
    }
    critical_section::run::<L>();
}

/// The last vCPU reads address 0x10, which is never mapped; the others do as usual.
pub(crate) fn exception<L: GuestLock>() {
    if cpu() + 1 == boot().vcpus as usize {
        // SAFETY: not safe at all; the page fault that follows is what this workload is for. Inline assembly, so
        // that the compiler does not know that it reads.
        unsafe { core::arch::asm!("mov {0}, [{0}]", inout(reg) 0x10_u64 => _, options(nostack, readonly)) }
    }
    critical_section::run::<L>();
}

/// vCPU 0 keeps the lock for ever.
pub(crate) fn hang<L: GuestLock>() {
    const SECTIONS_BEFORE: u32 = 100;
    if cpu() == 0 {
        for _ in 0..SECTIONS_BEFORE {
            L::section(0, || {
                oracle::enter(0);
                oracle::leave(0);
            });
        }
        L::section(0, || {
            this().activity.state.store(ACTIVITY_HOLDER, Ordering::Relaxed);
            oracle::enter(0);
            loop {
                spin_loop();
            }
        });
    }
    critical_section::run::<L>();
}

/// Every vCPU kicks itself and then sleeps: the kick must have been latched. Twice kicked is kicked once, and a kick
/// is used up by the sleep that it ended. One round counts as one operation.
pub(crate) fn latch<L: GuestLock>() {
    while control().window.load(Ordering::Relaxed) != WINDOW_CLOSED {
        hypercall::kick(cpu() as u32);
        hypercall::kick(cpu() as u32);
        hypercall::wait();
        add(&this().results.acquisitions, 1);
    }
}

/// Every vCPU watches its neighbour: one that is marked as preempted before and after, without having been marked
/// anew in between, must not have moved. One look at a marked neighbour counts as one operation.
pub(crate) fn preempted<L: GuestLock>() {
    let neighbour = area((cpu() + 1) % boot().vcpus as usize);
    let look = || {
        // The loads are in program order, which x86 keeps: generation and flag around the heartbeat.
        let generation = neighbour.host.generation.load(Ordering::Acquire);
        (generation, neighbour.steal.preempted.load(Ordering::Acquire))
    };
    while control().window.load(Ordering::Relaxed) != WINDOW_CLOSED {
        let before = look();
        let heartbeat = neighbour.activity.since_tsc.load(Ordering::Acquire);
        work(iterations(1_000));
        let moved = neighbour.activity.since_tsc.load(Ordering::Acquire) != heartbeat;
        let marked = before.1 != 0 && look() == before;
        assert!(!(marked && moved), "a vCPU ran while it was marked as preempted");
        if marked {
            add(&this().results.acquisitions, 1);
        }
        this().activity.since_tsc.store(now(), Ordering::Release);
    }
}

/// Whom the vCPU that ran last has named, plus one.
static NAMED: AtomicU32 = AtomicU32::new(0);

/// Every vCPU yields to one after the other. Whoever goes on after a yield counts, as a wait of 0 ticks, that it is the
/// one that was named last, or as one of 1 tick, that it is not. One yield counts as one operation.
pub(crate) fn yields<L: GuestLock>() {
    let vcpus = boot().vcpus as usize;
    for step in (1..vcpus.max(2)).cycle() {
        if control().window.load(Ordering::Relaxed) == WINDOW_CLOSED {
            return;
        }
        let target = (cpu() + step) % vcpus;
        // Relaxed: on one pCPU, which is where this means something, there is nobody to race with.
        NAMED.store(target as u32 + 1, Ordering::Relaxed);
        hypercall::yield_to(Some(target as u32));
        let is_named = NAMED.load(Ordering::Relaxed) == cpu() as u32 + 1;
        histogram::record(&this().results.wait, u64::from(!is_named));
        add(&this().results.acquisitions, 1);
    }
}

/// vCPU 0 claims to hold a lock, and never stops; the others claim nothing. One round of work counts as one operation.
pub(crate) fn liar<L: GuestLock>() {
    if cpu() == 0 {
        this().activity.state.store(ACTIVITY_HOLDER, Ordering::Relaxed);
    }
    while control().window.load(Ordering::Relaxed) != WINDOW_CLOSED {
        work(iterations(1_000));
        add(&this().results.acquisitions, 1);
    }
}

/// Nobody takes the lock, everybody enters the section.
pub(crate) fn exclusion<L: GuestLock>() {
    let hold = iterations(boot().hold_ns);
    while control().window.load(Ordering::Relaxed) != WINDOW_CLOSED {
        oracle::enter(0);
        work(hold);
        oracle::leave(0);
    }
}
