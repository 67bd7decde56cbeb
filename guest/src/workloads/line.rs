//! One word in a cache line of its own, which all vCPUs change as fast as they can: how long a machine takes to move a line. And a lock
//! with nothing around it.
//!
//! No stamps, nothing to watch: what is counted is the operation and as little as possible around it. `--think` lies
//! between two operations. `--each` ends it after as many of each vCPU, as in most published curves.

use core::sync::atomic::{AtomicU64, Ordering};

use haltkick_hypercalls::{WINDOW_CLOSED, WINDOW_OPEN};
use haltkick_locks::{RwLock as _, UnfairRwLock};

use crate::cpu::percpu::{add, boot, control, this};
use crate::cpu::time::{iterations, work};
use crate::lock::calls::{with_lock, with_read_lock};
use crate::lock::kind::Paged;
use crate::lock::platform::GUEST;
use crate::lock::registry::workload;
use crate::work::pool;

/// Operations from one look at the window to the next.
const BATCH: u64 = 16;

static WORD: Paged<AtomicU64> = Paged(AtomicU64::new(0));
static READ_LOCK: Paged<UnfairRwLock> = Paged(UnfairRwLock::new());

/// Declares one workload per operation. `$seen` is what the vCPU believes to be in the word.
macro_rules! workloads {
    ($($order:literal $name:literal, $summary:literal, |$seen:pat_param| $operation:expr;)+) => {$(
        workload! {
            $order $name, $summary, [TAKES_NO_LOCK HAS_WORK_FOR_EACH], [] => || over_and_over(|$seen| $operation);
        }
    )+};
}

/// Takes, holds and releases the lock of the run by `$with`.
macro_rules! locked {
    ($order:literal $name:literal, $summary:literal, $with:path) => {
        workload! {
            $order $name, $summary, [HAS_WORK_FOR_EACH], [] => || {
                let hold = iterations(boot().hold_ns);
                over_and_over(|_| $with(0, || work_if_any(hold)));
            };
        }
    };
}

locked! { "066" "line-lock", "acquire and release a lock, held for --hold, and nothing else; work for --think", with_lock }
locked! { "067" "line-lock-read", "acquire and release a lock for reading, as line-lock does", with_read_lock }

// Relaxed, all of them: the word orders nothing, and x86 locks the line whatever the order is.
workloads! {
    "061" "line-add", "fetch-add one word that all vCPUs share, work for --think",
        |_| _ = WORD.0.fetch_add(1, Ordering::Relaxed);
    "062" "line-pair", "increment and decrement that word (one operation), work for --think",
        |_| {
            WORD.0.fetch_add(1, Ordering::Relaxed);
            WORD.0.fetch_sub(1, Ordering::Relaxed);
        };
    "063" "line-cas", "compare-and-swap that word with what the last one found, successful or not, work for --think",
        |seen| {
            let cas = WORD.0.compare_exchange(*seen, seen.wrapping_add(1), Ordering::Relaxed, Ordering::Relaxed);
            *seen = cas.map_or_else(|found| found, |before| before.wrapping_add(1));
        };
    "064" "line-load-cas", "load that word and compare-and-swap it, until one succeeds, work for --think",
        |_| loop {
            let found = WORD.0.load(Ordering::Relaxed);
            let cas = WORD.0.compare_exchange(found, found.wrapping_add(1), Ordering::Relaxed, Ordering::Relaxed);
            if cas.is_ok() {
                break;
            }
        };
    "065" "line-read-lock", "acquire and release a counter rwlock for reading (one operation), work for --think",
        |_| {
            READ_LOCK.0.read(&GUEST);
            READ_LOCK.0.read_unlock(&GUEST, ());
        };
}

/// Does the work, if there is any, with not even a call where there is none.
#[inline(always)]
fn work_if_any(iterations: u64) {
    if iterations > 0 {
        work(iterations);
    }
}

#[inline(always)]
fn over_and_over(operation: impl Fn(&mut u64)) {
    let (think, window, mut seen) = (iterations(boot().think_ns), &control().window, 0);
    let each = boot().shape.work().map(|work| work / u64::from(boot().vcpus));
    let mut left = each.unwrap_or(u64::MAX);
    loop {
        // Relaxed: a vCPU that sees the window change one batch late counts one batch more or less.
        let seen_window = window.load(Ordering::Relaxed);
        if seen_window == WINDOW_CLOSED {
            return;
        }
        let batch = BATCH.min(left);
        for _ in 0..batch {
            operation(&mut seen);
            work_if_any(think);
        }
        if seen_window == WINDOW_OPEN {
            add(&this().results.acquisitions, batch);
            left -= batch;
        }
        if left == 0 {
            return pool::done(each.unwrap_or(0));
        }
    }
}
