//! All that a lock can do, in turn: sections that exclude, sections of readers, tries, and several locks at once.

use crate::cpu::percpu::{boot, cpu};
use crate::cpu::time::work;
use crate::lock::calls::TryFunction;
use crate::lock::measure::{self, Sections, Times, end_round};
use crate::lock::object;
use crate::lock::registry::workload;
use crate::work::choice::Choices;

workload! {
    "017" "every-call", "sections of all kinds in turn, up to four locks at once; simulated, vCPUs are off at each instruction",
        [IS_MEDDLED_WITH NOTES_WAITS], ["wait", "hold", "unlock"] => run;
}

/// Most locks that a vCPU holds at once.
const MOST_HELD: usize = 4;

fn run() {
    let mut calls = EveryCall::of_this_vcpu(boot().lock_count as usize);
    rounds(|hold| calls.next(hold));
}

/// Sections by `take`, which is told their length, until the window closes.
pub(crate) fn rounds(mut take: impl FnMut(u64) -> Option<Times>) {
    Choices::of_this_vcpu().rounds(|choices| {
        let times = take(choices.hold());
        end_round(|| times.iter().for_each(measure::count))
    });
}

/// The next section of a vCPU.
pub(crate) struct EveryCall {
    sections: Sections,
    take: Option<TryFunction>,
    locks: usize,
    round: usize,
}

impl EveryCall {
    /// Sections under the first `locks` locks.
    pub(crate) fn of_this_vcpu(locks: usize) -> Self {
        Self { sections: Sections::of_this_vcpu(), take: object::try_lock(), locks, round: cpu() }
    }

    /// One section of `hold` iterations; none if a lock that was tried was not free.
    pub(crate) fn next(&mut self, hold: u64) -> Option<Times> {
        self.round += 1;
        let lock = self.round / 4 % self.locks;
        match (self.round % 4, self.take) {
            (1, _) => Some(self.sections.shared(lock, || {
                work(hold);
                true
            })),
            (2, Some(take)) => self.sections.if_free(lock, take, || work(hold)),
            (3, _) => {
                let last = (lock + MOST_HELD).min(self.locks);
                Some(self.sections.exclusive(lock, || self.inside(lock + 1, last, hold)))
            }
            _ => Some(self.sections.exclusive(lock, || work(hold))),
        }
    }

    /// Work under further locks, from `lock` to `last`: in this order, so no two vCPUs wait for each other.
    fn inside(&self, lock: usize, last: usize, hold: u64) {
        if lock >= last {
            return work(hold);
        }
        self.sections.inner(lock, || self.inside(lock + 1, last, hold));
    }
}
