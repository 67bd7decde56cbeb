//! What kernels do with locks, in small: several locks, short and long sections mixed, nested ones, and a fixed amount
//! of work or as much as fits into the window.

use core::sync::atomic::Ordering;

use haltkick_hypercalls::{BOOT_GO_ON, WINDOW_CLOSED, WINDOW_OPEN};

use crate::histogram::record;
use crate::locks::GuestLock;
use crate::percpu::{add, boot, control, this};
use crate::random::Random;
use crate::time::{iterations, now, on_cpu, work};
use crate::trace::Ring;
use crate::{activity, grace, oracle, pool};

/// The workload on one vCPU.
pub(crate) fn run<L: GuestLock>() {
    let mut vcpu = Vcpu::new();
    work(vcpu.random.below(vcpu.think + 1));
    loop {
        // Relaxed: a vCPU that sees the window change one round late counts one round more or less.
        match control().window.load(Ordering::Relaxed) {
            WINDOW_CLOSED => return,
            WINDOW_OPEN if boot().work_sections == 0 => vcpu.round::<L>(true),
            WINDOW_OPEN => match pool::take() {
                Some(sections) => {
                    (0..sections).for_each(|_| vcpu.round::<L>(true));
                    pool::done(sections);
                }
                None if boot().flags & BOOT_GO_ON != 0 => vcpu.round::<L>(false),
                None => return,
            },
            _ => vcpu.round::<L>(false),
        }
    }
}

/// Settings in iterations, and this vCPU's dice.
struct Vcpu {
    hold: u64,
    long_hold: u64,
    think: u64,
    random: Random,
    trace: Ring,
}

/// What one section costs.
struct Section {
    index: usize,
    /// A lock above it to take inside, so that no two vCPUs can wait for each other.
    inner: Option<usize>,
    work: u64,
}

impl Vcpu {
    fn new() -> Self {
        Self {
            hold: iterations(boot().hold_ns),
            long_hold: iterations(boot().long_hold_ns),
            think: iterations(boot().think_ns),
            random: Random::of_vcpu(),
            trace: Ring::of_this_vcpu(),
        }
    }

    /// One section and the work after it, which varies by half to either side.
    fn round<L: GuestLock>(&mut self, counts: bool) {
        let section = self.choose();
        if L::excludes() {
            excluded::<L>(&section, counts, self.trace);
        } else {
            work(section.work);
            add(&this().results.acquisitions, u64::from(counts));
        }
        let think = self.think;
        work(think / 2 + self.random.below(think + 1));
    }

    fn choose(&mut self) -> Section {
        let locks = u64::from(boot().lock_count);
        let index = self.random.below(locks) as usize;
        let long = self.random.one_in(boot().long_one_in);
        let above = locks as usize - 1 - index;
        let nested = above > 0 && self.random.one_in(boot().nested_one_in);
        let inner = nested.then(|| index + 1 + self.random.below(above as u64) as usize);
        Section { index, inner, work: if long { self.long_hold } else { self.hold } }
    }
}

/// A section under its lock or locks, with what it took to get and to release them.
fn excluded<L: GuestLock>(section: &Section, counts: bool, trace: Ring) {
    let (results, doing) = (&this().results, &this().activity);
    let asked = now();
    let asked_cpu = on_cpu();
    // Relaxed, here and below: these lines are this vCPU's own; the VMM reads them when it has stopped.
    doing.lock.store(section.index as u32, Ordering::Relaxed);
    doing.since_tsc.store(asked, Ordering::Relaxed);
    doing.awaited_since_tsc.store(asked, Ordering::Relaxed);
    let (mut had, mut lock_ticks, mut leaving_cpu) = (0, 0, 0);
    L::section(section.index, || {
        had = now();
        doing.awaited_since_tsc.store(0, Ordering::Relaxed);
        lock_ticks += on_cpu().wrapping_sub(asked_cpu);
        activity::section_entered();
        oracle::enter(section.index);
        match section.inner {
            Some(inner) => lock_ticks += inside::<L>(inner, section.work),
            None => work(section.work),
        }
        oracle::leave(section.index);
        leaving_cpu = on_cpu();
    });
    lock_ticks += on_cpu().wrapping_sub(leaving_cpu);
    activity::section_left();
    let left = now();
    trace.section(section.index, asked, had, left);
    if counts {
        add(&results.acquisitions, 1);
        add(&results.lock_ticks, lock_ticks);
        record(&results.wait, had - asked);
        record(&results.hold, left - had);
    }
    grace::section_left();
}

/// The inner of two nested sections, with half of the work in it. Ticks on the pCPU in its lock's code.
fn inside<L: GuestLock>(index: usize, iterations: u64) -> u64 {
    work(iterations / 2);
    let (asked_cpu, mut lock_ticks, mut leaving_cpu) = (on_cpu(), 0, 0);
    L::section(index, || {
        lock_ticks = on_cpu().wrapping_sub(asked_cpu);
        activity::section_entered();
        oracle::enter(index);
        work(iterations - iterations / 2);
        oracle::leave(index);
        leaving_cpu = on_cpu();
    });
    lock_ticks += on_cpu().wrapping_sub(leaving_cpu);
    activity::section_left();
    lock_ticks
}
