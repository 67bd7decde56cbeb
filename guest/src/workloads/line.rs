//! One word in a cache line of its own, which all vCPUs change as fast as they can: how long a machine takes to move a line.
//!
//! No lock, no stamps, nothing to watch: what is counted is the operation and as little as possible around it. `--think` lies
//! between two operations; the curves that others have published have none (`--think 0ns`).

use core::sync::atomic::{AtomicU64, Ordering};

use haltkick_grants::Kernel as _;
use haltkick_hypercalls::{WINDOW_CLOSED, WINDOW_OPEN, WorkloadFlags};
use haltkick_locks::{RwLock as _, UnfairRwLock};

use crate::cpu::percpu::{add, boot, control, this};
use crate::cpu::time::{iterations, work};
use crate::lock::kind::Paged;
use crate::lock::parts::OfNothing;
use crate::lock::registry::workload;

/// Operations from one look at the window to the next.
const BATCH: u64 = 16;

static WORD: Paged<AtomicU64> = Paged(AtomicU64::new(0));
static READ_LOCK: Paged<UnfairRwLock> = Paged(UnfairRwLock::new());

/// Declares one workload per operation. `$seen` is what the vCPU believes to be in the word.
macro_rules! workloads {
    ($($order:literal $name:literal, $summary:literal, |$seen:pat_param| $operation:expr;)+) => {$(
        workload! {
            $order $name, $summary, WorkloadFlags::TAKES_NO_LOCK, [] => || {
                over_and_over(|$seen| $operation);
            }
        }
    )+};
}

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
            READ_LOCK.0.read(OfNothing::domain());
            READ_LOCK.0.read_unlock(OfNothing::domain(), ());
        };
}

/// The workload on one vCPU.
#[inline(always)]
fn over_and_over(operation: impl Fn(&mut u64)) {
    let (think, window, mut seen) = (iterations(boot().think_ns), &control().window, 0);
    loop {
        for _ in 0..BATCH {
            operation(&mut seen);
            if think > 0 {
                work(think);
            }
        }
        // Relaxed: a vCPU that sees the window change one batch late counts one batch more or less.
        match window.load(Ordering::Relaxed) {
            WINDOW_OPEN => add(&this().results.acquisitions, BATCH),
            WINDOW_CLOSED => return,
            _ => {}
        }
    }
}
