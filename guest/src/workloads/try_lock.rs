//! Lock, work, unlock, work, and every second time only if the lock is free.
//!
//! A try may say no only if the lock was in use at some time while it ran. Each vCPU says in a word of its own when it begins to use a
//! lock and when it is done. If all others were done before a try and none has begun since, the lock was free throughout.

use core::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use haltkick_hypercalls::MAX_VCPUS;
use haltkick_locks::CachePadded;

use crate::cpu::percpu::{boot, cpu};
use crate::cpu::time::work;
use crate::lock::measure::{self, Sections, end_round};
use crate::lock::object;
use crate::lock::registry::workload;
use crate::work::choice::Choices;

workload! {
    "015" "try-lock", "critical-section, every second time only if the lock is free (hk_try_lock of a lock object)",
        [TRIES NOTES_WAITS], ["wait", "hold", "unlock", "try"] => run;
}

/// How often each vCPU has begun to use a lock or has done so: odd while it does.
static USES: [CachePadded<AtomicU64>; MAX_VCPUS] = [const { CachePadded::new(AtomicU64::new(0)) }; MAX_VCPUS];

fn run() {
    let sections = Sections::of_this_vcpu();
    let take = object::try_lock().expect("the VMM checked that this form has it");
    Choices::of_this_vcpu().rounds(|choices| {
        let (index, hold) = (choices.lock(), choices.hold());
        let unused = others_uses();
        begin_or_end_use();
        let tried = sections.if_free(index, take, || work(hold));
        assert!(
            tried.is_some() || unused.is_none() || others_uses() != unused,
            "the function that tries refuses lock {index}, which was free while it ran"
        );
        let waited = sections.exclusive(index, || work(hold));
        begin_or_end_use();
        end_round(|| {
            tried.iter().for_each(measure::count_tried);
            measure::count(&waited);
        })
    });
}

/// Tells the others. The stores of a section stand between two of these, in this order also for them (total store order).
fn begin_or_end_use() {
    compiler_fence(Ordering::SeqCst);
    // Relaxed: the vCPU's own word, and no read-modify-write, which would be a barrier that the lock itself must have.
    let uses = &USES[cpu()];
    uses.store(uses.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
}

/// Sum of the words of all other vCPUs, if none of them uses a lock.
fn others_uses() -> Option<u64> {
    let others = (0..boot().vcpus as usize).filter(|other| *other != cpu());
    // Acquire: what others did to a lock before they were done comes before a try that follows.
    let uses = others.map(|other| USES[other].load(Ordering::Acquire));
    uses.map(|uses| uses.is_multiple_of(2).then_some(uses)).sum()
}
