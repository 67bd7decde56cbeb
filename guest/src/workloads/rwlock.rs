//! Does a writer starve? vCPU 0 writes, all others read as much as they can.
//!
//! `--hold` is the length of every section, `--think` what lies between two of a reader or a writer. `--lock` is the
//! fair lock's queue. Sections of all vCPUs count as acquisitions; wait and hold times are the writer's alone, from its
//! request to its grant. A grant after the window counts too: the readers have stopped then, and the time is what the
//! writer would have waited at least.

use core::sync::atomic::Ordering;

use haltkick_grants::{Exclusive, Kernel, Memory, Readers};
use haltkick_hypercalls::{TIME_HOLD, TIME_UNLOCK, TIME_WAIT, WINDOW_WARMUP};
use haltkick_locks::{
    CachePadded, FairRwLock, PerCpuRwDomain, PerCpuRwLock, ReaderSlot, RwLock, UnfairRwLock,
};

use crate::cpu::percpu::{add, boot, control, cpu, this};
use crate::cpu::time::{iterations, work};
use crate::lock::measure::{is_open, is_over};
use crate::lock::oracle::Watch;
use crate::lock::part::{NoLocks, workloads_on_parts};
use crate::observe::activity;
use crate::observe::times::{Stamps, record_between};
use crate::work::arena::{self, ARENA};

workloads_on_parts! {
    ["wait", "hold", "unlock"],
    starve::<NoLocks, _, _>(|| Exclusive(NoLocks::new_lock()), |_| NoLocks::domain());
    "260" "rwlock-unfair", "vCPU 0 writes, all others read: a counter of readers; wait is the writer's",
        |K| starve::<K, _, _>(UnfairRwLock::new, |_| K::domain());
    "270" "rwlock-fair", "the same: a fair queued rwlock, whose queue is --lock",
        |K| starve::<K, _, _>(|| FairRwLock::new(K::new_lock()), |_| K::domain());
    "280" "rwlock-per-cpu", "the same: a slot per reading CPU, on the unfair rwlock",
        |K| starve::<K, _, _>(|| PerCpuRwLock::new(UnfairRwLock::new()), |readers| readers);
    "290" "rwlock-per-cpu-fair", "the same: a slot per reading CPU, on the fair rwlock",
        |K| starve::<K, _, _>(|| PerCpuRwLock::new(FairRwLock::new(K::new_lock())), |readers| readers);
}

/// The lock, and the slots of its readers.
struct Shared<K: Kernel, R> {
    lock: CachePadded<R>,
    readers: Readers<K>,
}

/// One vCPU, until the window closes.
fn starve<K: Kernel, R: RwLock<D> + 'static, D: 'static>(
    lock: fn() -> R,
    domain: fn(&'static Readers<K>) -> &'static D,
) {
    let shared = arena::shared(|| {
        let slots = ARENA.slice(boot().vcpus as usize, |_| ReaderSlot::new());
        Shared::<K, R> { lock: CachePadded::new(lock()), readers: PerCpuRwDomain::new(K::domain(), slots) }
    });
    let (lock, domain) = (&*shared.lock, domain(&shared.readers));
    let (hold, think) = (iterations(boot().hold_ns), iterations(boot().think_ns));
    let (results, doing, window) = (&this().results, &this().activity, &control().window);
    let (watch, stamps) = (Watch::of_this_vcpu(), Stamps::of_run());
    // Relaxed, here and below: the window is polled; the rest is this vCPU's own.
    while !is_over() {
        let asked = stamps.now();
        doing.since_tsc.store(asked, Ordering::Relaxed);
        if cpu() == 0 {
            let token = lock.write(domain);
            let had = stamps.now();
            activity::section_entered(doing);
            watch.enter(0);
            work(hold);
            let left = stamps.now();
            watch.leave(0, left);
            lock.write_unlock(domain, token);
            let released = stamps.now();
            if window.load(Ordering::Relaxed) != WINDOW_WARMUP {
                record_between(TIME_WAIT, asked, had);
                record_between(TIME_HOLD, had, left);
                record_between(TIME_UNLOCK, left, released);
            }
        } else {
            let token = lock.read(domain);
            activity::section_entered(doing);
            work(hold);
            watch.reads(0, true);
            lock.read_unlock(domain, token);
        }
        activity::section_left(doing);
        activity::end_grace();
        if is_open() {
            add(&results.acquisitions, 1);
        }
        work(think);
    }
    arena::come_to_rest(|| ());
}
