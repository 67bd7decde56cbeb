//! How often a vCPU is overtaken: lock, work, unlock, work, with a look at how many sections others have begun between
//! asking for the lock and having it.
//!
//! At most as many as there are other vCPUs can have asked before it, and been served first with good reason; what goes
//! beyond is overtaking. In a workload of its own, for the look takes the line away from the holder.

use core::sync::atomic::Ordering;

use haltkick_locks::Event;

use crate::cpu::percpu::{add, oracles, this};
use crate::cpu::time::work;
use crate::lock::measure::{self, Sections, end_round};
use crate::lock::registry::workload;
use crate::work::choice::Choices;

workload! {
    "160" "overtaking",
        "as critical-section, and how many sections others begin while one waits (lock event overtaken_most)",
        [NOTES_SECTIONS NOTES_WAITS IDEAL_IS_SERIAL NEEDS_ORACLE], ["wait", "hold", "unlock"] => run;
}

fn run() {
    let sections = Sections::of_this_vcpu();
    Choices::of_this_vcpu().rounds(|choices| {
        let (index, hold) = (choices.lock(), choices.hold());
        // Relaxed, here and below: a count that the lock orders, but for this look from outside, which may miss what happens
        // just then.
        let before = oracles()[index].entered.load(Ordering::Relaxed);
        let mut overtaken = 0;
        let times = sections.exclusive(index, || {
            // This section is among those that have begun.
            let begun = oracles()[index].entered.load(Ordering::Relaxed).wrapping_sub(before);
            overtaken = begun.saturating_sub(1);
            work(hold);
        });
        end_round(|| {
            measure::count(&times);
            count(overtaken);
        })
    });
}

fn count(overtaken: u64) {
    let events = &this().results.lock_events;
    add(&events[Event::Overtaken as usize], overtaken);
    let most = &events[Event::OvertakenMost as usize];
    most.store(most.load(Ordering::Relaxed).max(overtaken), Ordering::Relaxed);
}
