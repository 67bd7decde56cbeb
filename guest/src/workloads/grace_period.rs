//! Readers without a lock, and a writer that waits for all of them before it throws the old version away (RCU): a reader that
//! is preempted inside its section stalls the writer for as long as it is off.
//!
//! vCPU 0 replaces what is read, waits until every reader that may still see the old version has left, and spoils that. All
//! others read: a section of `--hold`, and `--think` in between. A reading, or a replacement, is one operation; `grace-period` is what the writer waited. A reader that finds a spoilt version
//! was let down.

use core::hint::spin_loop;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

use haltkick_hypercalls::{MAX_VCPUS, WINDOW_CLOSED, WorkloadFlags};
use haltkick_locks::CachePadded;

use crate::cpu::percpu::{add, boot, control, cpu, this};
use crate::cpu::time::{now, work};
use crate::image::hot::hot;
use crate::lock::measure::is_open;
use crate::lock::registry::workload;
use crate::observe::activity;
use crate::observe::grace;
use crate::observe::histogram::record_between;
use crate::work::choice::Choices;

workload! {
    "140" "grace-period", "vCPU 0 replaces what all others read, and waits until nobody can see the old version (RCU)",
    WorkloadFlags::IS_SHAPED, ["grace-period"] => run
}

/// Slot of the results' times.
const GRACE_PERIOD: usize = 0;
const VERSIONS: usize = 2;
/// Value of a version that is no longer visible.
const SPOILT: u64 = u64::MAX;

hot! {
    /// The version that new readers see.
    static CURRENT: AtomicUsize = AtomicUsize::new(0);
    static DATA: [CachePadded<AtomicU64>; VERSIONS] = [const { CachePadded::new(AtomicU64::new(0)) }; VERSIONS];
}

/// Per vCPU: odd while it reads.
static READING: [CachePadded<AtomicU64>; MAX_VCPUS] =
    [const { CachePadded::new(AtomicU64::new(0)) }; MAX_VCPUS];

fn run() {
    let mut choices = Choices::of_this_vcpu();
    choices.begin();
    while control().window.load(Ordering::Relaxed) != WINDOW_CLOSED {
        // A sign of life for observers.
        this().activity.since_tsc.store(now(), Ordering::Relaxed);
        if cpu() == 0 {
            replace()
        } else {
            read(choices.hold())
        }
        if is_open() {
            add(&this().results.acquisitions, 1);
        }
        choices.think();
    }
}

fn read(hold: u64) {
    let (reading, doing) = (&READING[cpu()], &this().activity);
    // Tells the VMM which vCPU it takes off: one that the writer waits for.
    activity::section_entered(doing);
    add(reading, 1);
    // The writer must see that this vCPU reads, or this vCPU the new version. Pairs with the fence in `replace`.
    fence(Ordering::SeqCst);
    let version = &DATA[CURRENT.load(Ordering::Acquire)];
    work(hold);
    assert!(version.load(Ordering::Relaxed) != SPOILT, "what a reader still saw was thrown away");
    // Release: all that was read comes before; pairs with the acquire of the writer.
    reading.store(reading.load(Ordering::Relaxed) + 1, Ordering::Release);
    activity::section_left(doing);
    grace::section_left();
}

fn replace() {
    // Relaxed, here and below: only this vCPU writes both.
    let old = CURRENT.load(Ordering::Relaxed);
    let new = (old + 1) % VERSIONS;
    DATA[new].store(0, Ordering::Relaxed);
    // Release: what it says comes before.
    CURRENT.store(new, Ordering::Release);
    let begun = now();
    // As in `read`.
    fence(Ordering::SeqCst);
    for reading in &READING[1..boot().vcpus as usize] {
        let seen = reading.load(Ordering::Acquire);
        // Acquire: what the reader has read comes before what follows.
        while seen % 2 == 1 && reading.load(Ordering::Acquire) == seen {
            if control().window.load(Ordering::Relaxed) == WINDOW_CLOSED {
                return;
            }
            spin_loop();
        }
    }
    if is_open() {
        record_between(GRACE_PERIOD, begun, now());
    }
    DATA[old].store(SPOILT, Ordering::Relaxed);
}
