//! Workloads that fail on purpose, so that users and tests see what is reported.
#![expect(unsafe_code, reason = "reads through a null pointer, which is the point")]

use core::fmt::Write;
use core::hint::spin_loop;
use core::sync::atomic::{AtomicU32, Ordering};

use haltkick_hypercalls::{ACTIVITY_HOLDER, BootBlock, BootFlags, GuestAddress};

use crate::cpu::percpu::{FlagSnapshot, add, area, boot, control, cpu, entries, oracles, this, words};
use crate::cpu::time::{iterations, now, work};
use crate::lock::measure::{Sections, is_over, until_closed};
use crate::lock::registry::workload;
use crate::lock::{oracle, platform};
use crate::monitor::hypercall::{self, Console};
use crate::observe::{activity, times, trace};
use crate::work::choice::dice;
use crate::workloads::critical_section;

workload! {
    "310" "selftest-panic", "vCPU 0 panics",
        [IS_SELFTEST NOTES_SECTIONS], ["wait", "hold", "unlock"] => panic;
    "320" "selftest-exception", "the last vCPU reads through a null pointer",
        [IS_SELFTEST NOTES_SECTIONS], ["wait", "hold", "unlock"] => exception;
    "330" "selftest-hang", "vCPU 0 takes the lock 100 times and never returns from the last",
        [IS_SELFTEST NOTES_SECTIONS], ["wait", "hold", "unlock"] => hang;
    "340" "selftest-latch", "every vCPU kicks itself, then sleeps", [IS_SELFTEST TAKES_NO_LOCK], [] => latch;
    "345" "selftest-settings", "vCPU 0 writes to the console what it was told",
        [IS_SELFTEST NOTES_SECTIONS], ["wait", "hold", "unlock"] => settings;
    "350" "selftest-preempted", "every vCPU checks that a neighbour marked as preempted does not run",
        [IS_SELFTEST TAKES_NO_LOCK], [] => preempted;
    "355" "selftest-yield", "every vCPU yields to one after the other, and checks that it was named when it goes on",
        [IS_SELFTEST TAKES_NO_LOCK], ["not-named"] => yields;
    "360" "selftest-liar", "vCPU 0 claims for ever to be in a critical section; all do nothing but work",
        [IS_SELFTEST], [] => liar;
    "362" "selftest-holding", "every vCPU waits for the first lock while it holds one of its own (--locks vCPUs + 1)",
        [IS_SELFTEST], [] => holding;
    "365" "selftest-exclusion", "every vCPU enters the critical section without the lock",
        [IS_SELFTEST], [] => exclusion;
    "370" "selftest-nonsense", "every vCPU writes nonsense into all that it shares with the VMM",
        [IS_SELFTEST], [] => nonsense;
    "377" "selftest-stack", "vCPU 0 uses more stack than it has; all do nothing but work",
        [IS_SELFTEST TAKES_NO_LOCK], [] => stack;
    "375" "selftest-lost-kick", "all kicks get lost, so that no sleeper wakes: needs --pv on",
        [IS_SELFTEST NEEDS_PARAVIRT], [] => lost_kick;
}

fn panic() {
    if cpu() == 0 {
        let _ = writeln!(Console, "selftest-panic: vCPU 0 is about to panic");
        panic!("this is what a panic looks like");
    }
    critical_section::run();
}

/// vCPU 0 writes down all settings, with times in microseconds and nothing of the host; the others do as usual.
fn settings() {
    const HOST_FLAGS: BootFlags = BootFlags::BARE
        .with(BootFlags::HALT)
        .with(BootFlags::KICK_HYPERCALL)
        .with(BootFlags::YIELD_HYPERCALL)
        .with(BootFlags::VMMCALL)
        .with(BootFlags::EACH_SAYS_STARTED);
    let (none, told) = (GuestAddress(0), *boot());
    let microseconds = |ticks: u64| (ticks * 1000 + told.tsc_khz / 2) / told.tsc_khz;
    let told = BootBlock {
        flags: BootFlags(told.flags.0 & !HOST_FLAGS.0),
        vcpu_areas: none,
        control: none,
        oracles: none,
        tsc_khz: 0,
        spin_threshold_ticks: microseconds(told.spin_threshold_ticks),
        page_table: none,
        pool: none,
        pool_bytes: 0,
        slice_margin_ticks: microseconds(told.slice_margin_ticks),
        preempted_flags: none,
        trace_rings: none,
        entries: none,
        fold_interval_ticks: microseconds(told.fold_interval_ticks),
        ..told
    };
    if cpu() == 0 {
        let _ = writeln!(Console, "{told:?}");
    }
    critical_section::run();
}

/// The last vCPU reads address 0x10, which is never mapped; the others do as usual.
fn exception() {
    if cpu() + 1 == boot().vcpus as usize {
        // SAFETY: not safe at all; the page fault that follows is what this workload is for. Inline assembly, so
        // that the compiler does not know that it reads.
        unsafe { core::arch::asm!("mov {0}, [{0}]", inout(reg) 0x10_u64 => _, options(nostack, readonly)) }
    }
    critical_section::run();
}

/// vCPU 0 keeps the lock forever.
fn hang() {
    const SECTIONS_BEFORE: u32 = 100;
    if cpu() == 0 {
        let sections = Sections::of_this_vcpu();
        (0..SECTIONS_BEFORE).for_each(|_| sections.inner(0, || ()));
        sections.inner(0, || {
            loop {
                spin_loop();
            }
        });
    }
    critical_section::run();
}

/// Every vCPU kicks itself and then sleeps: the kick must have been latched. Twice kicked is kicked once, and a kick
/// is used up by the sleep that it ended. One round counts as one operation.
fn latch() {
    until_closed(|| {
        hypercall::kick(cpu() as u32);
        hypercall::kick(cpu() as u32);
        hypercall::wait();
    });
}

/// Every vCPU watches its neighbour: one that is marked as preempted before and after, without having been marked
/// anew in between, must not have moved. One look at a marked neighbour counts as one operation.
fn preempted() {
    let neighbour = (cpu() + 1) % boot().vcpus as usize;
    let heartbeat_of = |vcpu| area(vcpu).activity.since_tsc.load(Ordering::Acquire);
    while !is_over() {
        let before = FlagSnapshot::of(neighbour);
        let heartbeat = heartbeat_of(neighbour);
        work(iterations(1_000));
        let moved = heartbeat_of(neighbour) != heartbeat;
        let marked = before.is_set && before.still_holds(neighbour);
        assert!(!(marked && moved), "a vCPU ran while it was marked as preempted");
        if marked {
            add(&this().results.acquisitions, 1);
        }
        this().activity.since_tsc.store(now(), Ordering::Release);
    }
}

/// Number plus one of the vCPU that the last running one has named.
static NAMED: AtomicU32 = AtomicU32::new(0);

/// Every vCPU yields to one after the other. A vCPU that goes on after a yield counts, as a time of 0 ticks,
/// that it is the one that was named last, or as one of 1 tick, that it is not. One yield counts as one
/// operation.
fn yields() {
    let vcpus = boot().vcpus as usize;
    for step in (1..vcpus.max(2)).cycle() {
        if is_over() {
            return;
        }
        let target = (cpu() + step) % vcpus;
        // Relaxed: on one pCPU, the case that this is for, there is no race.
        NAMED.store(target as u32 + 1, Ordering::Relaxed);
        hypercall::yield_to(Some(target as u32));
        let is_named = NAMED.load(Ordering::Relaxed) == cpu() as u32 + 1;
        times::record(&this().results.times[0], u64::from(!is_named));
        add(&this().results.acquisitions, 1);
    }
}

/// vCPU 0 claims to hold a lock, and never stops; the others claim nothing. One round of work counts as one operation.
fn liar() {
    if cpu() == 0 {
        activity::section_entered(&this().activity);
    }
    until_closed(|| work(iterations(1_000)));
}

/// Every vCPU takes a lock of its own, and inside it the one that all take. So it only waits for a lock as the
/// holder of another, and after the inner unlock it is a holder still. One outer section counts as one
/// operation.
fn holding() {
    let own = 1 + cpu();
    assert!(
        own < boot().lock_count as usize,
        "this workload needs a lock for each vCPU and one more: --locks"
    );
    let (hold, doing) = (iterations(boot().hold_ns), &this().activity);
    let sections = Sections::of_this_vcpu();
    until_closed(|| {
        sections.exclusive(own, || {
            sections.inner(0, || work(hold));
            // Relaxed: this vCPU's own word.
            let said = doing.state.load(Ordering::Relaxed);
            assert!(said == ACTIVITY_HOLDER, "the inner unlock has announced {said}");
            work(hold);
        });
    });
}

fn exclusion() {
    let hold = iterations(boot().hold_ns);
    while !is_over() {
        oracle::enter(0);
        work(hold);
        oracle::leave(0);
    }
}

/// Every vCPU writes nonsense into every line that it shares with the VMM and may write, and rings with nonsense.
fn nonsense() {
    let mut random = dice();
    let mut draw = move || random.next();
    let area = this();
    let regions = [
        words(&area.activity),
        words(&area.report),
        words(&area.results),
        words(&oracles()[0]),
        entries(),
        words(&control().work_rate),
        words(&control().workload_tsc),
        words(&control().queues),
        trace::Ring::of_this_vcpu().words(),
    ];
    while !is_over() {
        // A run without a trace has no ring.
        for region in regions.iter().filter(|region| !region.is_empty()) {
            // Not all of a long ring at once: an emulator takes seconds for that. Its beginning counts what is in it.
            let from = if draw() % 2 == 0 { 0 } else { draw() as usize % region.len() };
            for word in region[from..].iter().take(1024) {
                // Small numbers now and then: they pass more checks than large ones.
                let shift = draw() % 64;
                word.store(draw() >> shift, Ordering::Relaxed);
            }
        }
        hypercall::kick(draw() as u32);
        hypercall::kick(draw() as u32 % boot().vcpus);
        hypercall::yield_to(Some(draw() as u32));
    }
}

/// Each vCPU does its share of sections and leaves; on the way all kicks get lost, and sleeping vCPUs with
/// them.
fn lost_kick() {
    const SECTIONS: u32 = 200_000;
    let (hold, doing) = (iterations(boot().hold_ns), &this().activity);
    let sections = Sections::of_this_vcpu();
    for section in 0..SECTIONS {
        if cpu() == 0 && section == SECTIONS / 100 {
            platform::lose_kicks();
        }
        doing.since_tsc.store(now(), Ordering::Relaxed);
        sections.inner(0, || work(hold));
    }
}

/// vCPU 0 uses a little more stack than it has: into memory behind it that this run does not use.
fn stack() {
    /// Frames of more than 256 bytes: more than 16 KiB, less than 20.
    const FRAMES: u64 = 64;
    #[inline(never)]
    fn deep(left: u64) -> u64 {
        let frame = core::hint::black_box([left; 32]);
        if left == 0 { frame[0] } else { deep(left - 1).wrapping_add(core::hint::black_box(&frame)[1]) }
    }
    if cpu() == 0 {
        core::hint::black_box(deep(FRAMES));
    }
    until_closed(|| work(iterations(1_000)));
}
