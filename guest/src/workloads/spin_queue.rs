//! The optimistic spin queue with nothing on top: what it costs to pass it on, and what the layouts of its nodes change in that.
//!
//! The run's lock says which layout, and nothing else of it is used. Exclusion of the queue is not checked:
//! that would need lines of its own, which the head would have to fetch. The runs of the sleeping locks, which
//! have the same queue, check it.

use haltkick_hypercalls::MAX_VCPUS;
use haltkick_locks::osq::{Cached, Layout, Packed, PrevCpu, Split};
use haltkick_locks::{CachePadded, Osq, OsqNodes, Platform as _};

use crate::cpu::percpu::{add, boot, this};
use crate::cpu::time::{iterations, work};
use crate::lock::kind::Paged;
use crate::lock::measure::end_round;
use crate::lock::platform::GUEST;
use crate::lock::registry::{lock_of_run, workload};

workload! {
    "075" "spin-queue",
        "queue in the spin queue of the mutex in its layout, work for --hold as head, leave, work for --think",
        [TAKES_NO_LOCK IDEAL_IS_LOCK_FREE NEEDS_SPIN_QUEUE], [] => run;
}

/// A queue, and the nodes of all vCPUs.
struct Queue<L> {
    tail: CachePadded<Osq<L>>,
    nodes: OsqNodes<L, MAX_VCPUS>,
}

impl<L: Layout> Queue<L> {
    const fn new() -> Paged<Self> {
        Paged(Self { tail: CachePadded::new(Osq::new()), nodes: OsqNodes::new() })
    }

    fn turns(&self) {
        turns(|| {
            while !self.tail.lock(&self.nodes, &GUEST, || false) {
                // The predecessor has been preempted.
                GUEST.yield_to(None);
            }
            work(iterations(boot().hold_ns));
            self.tail.unlock(&self.nodes, &GUEST);
        });
    }
}

static PACKED: Paged<Queue<Packed>> = Queue::new();
static SPLIT: Paged<Queue<Split>> = Queue::new();
static CACHED: Paged<Queue<Cached>> = Queue::new();
static PREV_CPU: Paged<Queue<PrevCpu>> = Queue::new();

fn run() {
    match lock_of_run() {
        b"mutex/packed" => PACKED.0.turns(),
        b"mutex/split" => SPLIT.0.turns(),
        b"mutex/cached" => CACHED.0.turns(),
        b"mutex/prev-cpu" => PREV_CPU.0.turns(),
        // The ideal: no queue.
        b"none" => turns(|| work(iterations(boot().hold_ns))),
        _ => panic!("the queue has the layouts of the mutex: --lock mutex"),
    }
}

/// Does `turn` over and over. One turn is one operation.
fn turns(turn: impl Fn()) {
    let think = iterations(boot().think_ns);
    loop {
        turn();
        if !end_round(|| add(&this().results.acquisitions, 1)) {
            return;
        }
        work(think);
    }
}
