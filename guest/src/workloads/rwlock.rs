//! Does a writer starve? vCPU 0 writes, all others read as much as they can.
//!
//! `--hold` is the length of every section, `--think` what lies between two of a reader or a writer. `--lock` is the
//! fair lock's queue. Sections of all vCPUs count as acquisitions; wait and hold times are the writer's alone, from its
//! request to its grant. A grant after the window counts too: the readers have stopped then, and the time is what the
//! writer would have waited at least.
#![expect(unsafe_code, reason = "all vCPUs ask for the one lock that vCPU 0 has made")]

use core::sync::atomic::Ordering;

use haltkick_grants::{Exclusive, Kernel, Memory, Readers};
use haltkick_hypercalls::{WINDOW_CLOSED, WINDOW_OPEN, WINDOW_WARMUP};
use haltkick_locks::{
    CachePadded, FairRwLock, PerCpuRwDomain, PerCpuRwLock, ReaderSlot, RwLock, UnfairRwLock,
};

use crate::activity;
use crate::arena::{self, ARENA};
use crate::histogram::record;
use crate::locks::GuestLock;
use crate::oracle;
use crate::parts::{OfNothing, Part, by_part};
use crate::percpu::{add, boot, control, cpu, this};
use crate::time::{iterations, now, work};
use crate::workloads::at_rest;

/// Declares one workload per reader-writer lock. `$kernel` names the kernel whose spinlock it is made of.
macro_rules! workloads {
    ($($(#[$doc:meta])* $name:ident: |$kernel:ident| $lock:expr, |$readers:ident| $domain:expr;)+) => {$(
        $(#[$doc])*
        pub(crate) fn $name<L: GuestLock>() {
            fn with_parts<$kernel: Kernel>() {
                starve::<$kernel, _, _>(|| $lock, |$readers| $domain, true);
            }
            by_part!(Part::of_run(), with_parts(), unlocked());
        }
    )+};
}

workloads! {
    /// Readers hold the writer up for as long as they come.
    unfair: |K| UnfairRwLock::new(), |_readers| K::domain();
    /// Everybody in turn.
    fair: |K| FairRwLock::new(K::new_lock()), |_readers| K::domain();
    /// Readers have slots of their own, the lock underneath is unfair.
    per_cpu: |K| PerCpuRwLock::new(UnfairRwLock::new()), |readers| readers;
    /// Readers have slots of their own, the lock underneath is fair.
    per_cpu_fair: |K| PerCpuRwLock::new(FairRwLock::new(K::new_lock())), |readers| readers;
}

fn unlocked() {
    starve::<OfNothing, _, _>(|| Exclusive::new(OfNothing::new_lock()), |_| OfNothing::domain(), false);
}

/// The lock, and the slots of its readers.
struct Shared<K: Kernel, R> {
    lock: CachePadded<R>,
    readers: Readers<K>,
}

/// One vCPU, until the window closes. `excludes`: the lock is one.
fn starve<K: Kernel, R: RwLock<D> + 'static, D: 'static>(
    lock: fn() -> R,
    domain: fn(&'static Readers<K>) -> &'static D,
    excludes: bool,
) {
    // SAFETY: a run has one workload and one lock, so all vCPUs come here with the same types, once each.
    let shared = unsafe {
        arena::shared(|| {
            let slots = ARENA.slice(boot().vcpus as usize, |_| ReaderSlot::new());
            Shared::<K, R> {
                lock: CachePadded::new(lock()),
                readers: PerCpuRwDomain::new(K::domain(), slots),
            }
        })
    };
    let (lock, domain) = (&*shared.lock, domain(&shared.readers));
    let (hold, think) = (iterations(boot().hold_ns), iterations(boot().think_ns));
    let (results, doing, window) = (&this().results, &this().activity, &control().window);
    loop {
        // Relaxed, here and below: the window is polled; the rest is this vCPU's own.
        if window.load(Ordering::Relaxed) == WINDOW_CLOSED {
            break;
        }
        let asked = now();
        doing.since_tsc.store(asked, Ordering::Relaxed);
        if cpu() == 0 {
            let token = lock.write(domain);
            let had = now();
            activity::section_entered();
            if excludes {
                oracle::enter(0);
            }
            work(hold);
            if excludes {
                oracle::leave(0);
            }
            lock.write_unlock(domain, token);
            if window.load(Ordering::Relaxed) != WINDOW_WARMUP {
                record(&results.wait, had - asked);
                record(&results.hold, now() - had);
            }
        } else {
            let token = lock.read(domain);
            activity::section_entered();
            work(hold);
            if excludes {
                oracle::reads(0, true);
            }
            lock.read_unlock(domain, token);
        }
        activity::section_left();
        if window.load(Ordering::Relaxed) == WINDOW_OPEN {
            add(&results.acquisitions, 1);
        }
        work(think);
    }
    at_rest::arrive(|| ());
}
