//! As many readers inside at once as there are vCPUs but one; then a writer comes, while they leave one by one.
//!
//! vCPU 0 is the writer. In each round it waits until all others are inside, or no more of them come in, then asks for the lock. The
//! readers leave in the order in which they came, each once the one before has given its pCPU to the writer. A lock that counts its
//! readers in too few bits lets the writer in as soon as their number looks like none.

use core::sync::atomic::{AtomicU64, Ordering};

use haltkick_locks::Platform as _;

use crate::cpu::percpu::{add, boot, cpu, this};
use crate::cpu::time::{iterations, now, work};
use crate::image::hot;
use crate::lock::measure::{self, Sections, is_open, is_over};
use crate::lock::oracle;
use crate::lock::platform::GUEST;
use crate::lock::registry::workload;
use crate::observe::events::WorkloadEvent;

workload! {
    "016" "readers-inside", "all vCPUs but vCPU 0 read at once; vCPU 0 writes while they leave one by one",
        [NOTES_WAITS], ["wait", "hold", "unlock", "read-wait", "read-hold"] => run;
}

/// Turns of the writer in a row without a further reader, after which it asks for the lock all the same.
const TURNS_WITHOUT_MORE: u32 = 100;

hot! {
    /// The round in which readers are to come in.
    static ROUND: AtomicU64 = AtomicU64::new(0);
    /// The round in which the writer has asked for the lock.
    static ASKED: AtomicU64 = AtomicU64::new(0);
    /// Readers that have come in since the start.
    static CAME: AtomicU64 = AtomicU64::new(0);
    /// Readers that have begun to leave.
    static LEFT: AtomicU64 = AtomicU64::new(0);
}

fn run() {
    let (sections, hold) = (Sections::of_this_vcpu(), iterations(boot().hold_ns));
    if cpu() == 0 { write(&sections, hold) } else { read(&sections, hold) }
}

// Relaxed, throughout: each word is a count by itself, and the sections are what the lock has to order. SeqCst where the oracle rests
// on a count: a reader that is inside has said so before it goes on.

/// Lets others run, with a sign of life for observers.
fn give_way(to: Option<usize>) {
    this().activity.since_tsc.store(now(), Ordering::Relaxed);
    GUEST.yield_to(to);
}

fn read(sections: &Sections, hold: u64) {
    let mut done = 0;
    loop {
        while ROUND.load(Ordering::Relaxed) == done {
            if is_over() {
                return;
            }
            give_way(None);
        }
        done = ROUND.load(Ordering::Relaxed);
        let times = sections.shared(0, || {
            let place = CAME.fetch_add(1, Ordering::SeqCst);
            while ASKED.load(Ordering::Relaxed) < done || LEFT.load(Ordering::Relaxed) < place {
                give_way(None);
            }
            work(hold);
            give_way(Some(0));
            LEFT.fetch_add(1, Ordering::SeqCst);
            true
        });
        if is_open() {
            measure::count_read(&times);
        }
    }
}

fn write(sections: &Sections, hold: u64) {
    let readers = u64::from(boot().vcpus) - 1;
    let mut most = 0;
    for round in 1.. {
        let before = CAME.load(Ordering::SeqCst);
        ROUND.store(round, Ordering::Relaxed);
        let (mut inside, mut without_more) = (0, 0);
        while inside < readers && without_more < TURNS_WITHOUT_MORE && !is_over() {
            give_way(None);
            let came = CAME.load(Ordering::SeqCst) - before;
            (without_more, inside) = if came > inside { (0, came) } else { (without_more + 1, inside) };
        }
        add(&this().results.lock_events[WorkloadEvent::ReadersInside.slot()], inside.saturating_sub(most));
        most = most.max(inside);
        ASKED.store(round, Ordering::Relaxed);
        let times = sections.exclusive(0, || {
            if LEFT.load(Ordering::SeqCst) != CAME.load(Ordering::SeqCst) {
                oracle::is_not_alone(0);
            }
            work(hold);
        });
        if is_open() {
            measure::count(&times);
        }
        while CAME.load(Ordering::SeqCst) < before + readers && !is_over() {
            give_way(None);
        }
        while LEFT.load(Ordering::SeqCst) < CAME.load(Ordering::SeqCst) {
            give_way(None);
        }
        if is_over() {
            return;
        }
    }
}
