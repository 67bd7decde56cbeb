//! Locks as kernels use them, in small: several locks, short and long sections mixed, nested ones, and a fixed
//! amount of work or as much as fits into the window.

use core::sync::atomic::Ordering;

use haltkick_hypercalls::{ShapeFlags, WINDOW_CLOSED, WINDOW_OPEN};

use crate::cpu::percpu::{add, boot, control, this};
use crate::cpu::time::{iterations, on_cpu, work};
use crate::lock::measure::{self, Sections};
use crate::lock::registry::workload;
use crate::work::choice::dice;
use crate::work::pool;
use crate::work::random::Random;

workload! {
    "020" "mixed",
        "several locks (--locks), long sections (--long-hold), nested ones (--nested-one-in), fixed work (--work)",
        [NOTES_SECTIONS NOTES_WAITS IDEAL_IS_SERIAL IS_MIXED], ["wait", "hold", "unlock"] => run;
}

fn run() {
    let mut vcpu = Vcpu::new();
    work(vcpu.random.below(vcpu.think + 1));
    loop {
        // Relaxed: a vCPU that sees the window change one round late counts one round more or less.
        match control().window.load(Ordering::Relaxed) {
            WINDOW_CLOSED => return,
            WINDOW_OPEN if boot().shape.work_sections == 0 => vcpu.round(true),
            WINDOW_OPEN => match pool::take() {
                Some(sections) => {
                    (0..sections).for_each(|_| vcpu.round(true));
                    pool::done(sections);
                }
                None if boot().shape.flags.has(ShapeFlags::GO_ON) => vcpu.round(false),
                None => return,
            },
            _ => vcpu.round(false),
        }
    }
}

/// Settings in iterations, and this vCPU's dice.
struct Vcpu {
    hold: u64,
    long_hold: u64,
    think: u64,
    random: Random,
    sections: Sections,
}

impl Vcpu {
    fn new() -> Self {
        Self {
            hold: iterations(boot().hold_ns),
            long_hold: iterations(boot().shape.long_hold_ns),
            think: iterations(boot().think_ns),
            random: dice(),
            sections: Sections::of_this_vcpu(),
        }
    }

    /// One section under its lock or locks, with what it took to get and to release them, and the work after it, which
    /// varies by half to either side.
    fn round(&mut self, counts: bool) {
        let locks = u64::from(boot().lock_count);
        let index = self.random.below(locks) as usize;
        let long = self.random.one_in(boot().shape.long_one_in);
        // A lock above it to take inside, so that no two vCPUs can wait for each other.
        let above = locks as usize - 1 - index;
        let nested = above > 0 && self.random.one_in(boot().shape.nested_one_in);
        let inner = nested.then(|| index + 1 + self.random.below(above as u64) as usize);
        let hold = if long { self.long_hold } else { self.hold };
        let asks_for_no_grace = long && boot().shape.flags.has(ShapeFlags::ONLY_SHORT_ASK);

        let asked = on_cpu();
        let (mut lock_ticks, mut leaving) = (0, 0);
        let asks_not = &this().activity.asks_for_no_grace;
        let times = self.sections.exclusive(index, || {
            lock_ticks = on_cpu().wrapping_sub(asked);
            // Relaxed: this line is this vCPU's own, and the VMM reads it when it has stopped.
            asks_not.store(u32::from(asks_for_no_grace), Ordering::Relaxed);
            match inner {
                Some(inner) => lock_ticks += self.inside(inner, hold),
                None => work(hold),
            }
            asks_not.store(0, Ordering::Relaxed);
            leaving = on_cpu();
        });
        lock_ticks += on_cpu().wrapping_sub(leaving);
        if counts {
            measure::count(&times);
            add(&this().results.lock_ticks, lock_ticks);
        }
        work(self.think / 2 + self.random.below(self.think + 1));
    }

    /// The inner of two nested sections, with half of the work in it. Ticks on the pCPU in its lock's code.
    fn inside(&self, index: usize, iterations: u64) -> u64 {
        work(iterations / 2);
        let (asked, mut lock_ticks, mut leaving) = (on_cpu(), 0, 0);
        self.sections.inner(index, || {
            lock_ticks = on_cpu().wrapping_sub(asked);
            work(iterations - iterations / 2);
            leaving = on_cpu();
        });
        lock_ticks + on_cpu().wrapping_sub(leaving)
    }
}
