//! How long does a writer of a grant table wait behind a hostile mapper? vCPU 0 has the table grow again and again, all others
//! map and unmap a page of their own without a pause.
//!
//! Harm that a guest can do to the hypervisor with reader-writer locks that are not fair: it keeps a CPU in a
//! loop, for as long as its other vCPUs make mappings. `--hold` is the cost of changing one page table entry,
//! `--think` the time between two turns of either. Pages mapped and unmapped, and growths, count as operations;
//! wait times are the writer's alone, from its request to the end of the growth. A growth that ends after the
//! window counts too: the mappers have stopped then, and its time is a lower bound of the writer's wait.

use core::sync::atomic::Ordering;

use haltkick_grants::{Arrangement, Brief, Fair, Kernel, PerCpu, Scheme, Single, Split, Unlocked, Vcpu};
use haltkick_hypercalls::{TIME_WAIT, WINDOW_CLOSED, WINDOW_OPEN, WINDOW_WARMUP, WorkloadFlags};

use crate::cpu::percpu::{add, boot, control, cpu, this};
use crate::cpu::time::{iterations, work};
use crate::lock::parts::{OfNothing, by_part, part_of_run};
use crate::lock::registry::workload;
use crate::observe::histogram::record_between;
use crate::observe::stamp::Stamps;
use crate::work::choice::dice;
use crate::workloads::grant::{come_to_rest, stream_of_run};

/// Without a lock there is the same work, without contention.
const FLAGS: WorkloadFlags =
    WorkloadFlags::CHECKS_AT_REST.with(WorkloadFlags::NEEDS_PARTS).with(WorkloadFlags::IDEAL_IS_LOCK_FREE);

/// Declares one workload per locking scheme.
macro_rules! workloads {
    ($($order:literal $name:literal, $summary:literal, $scheme:ident;)+) => {$(
        workload! {
            $order $name, $summary, FLAGS,
            ["wait"] => || {
                fn with_parts<K: Kernel>() {
                    torment::<$scheme<K>>();
                }
                by_part!(part_of_run(), with_parts(), torment::<Unlocked<OfNothing>>());
            }
        }
    )+};
}

workloads! {
    "252" "grant-writer-single", "vCPU 0 grows a grant table, all others map and unmap: G0; wait is the writer's", Single;
    "253" "grant-writer-split", "the same: G1, as posted in 2013", Split;
    "254" "grant-writer-brief", "the same: G1b", Brief;
    "255" "grant-writer-per-cpu", "the same: G4", PerCpu;
    "256" "grant-writer-fair", "the same: G5", Fair;
}

/// One vCPU, until the window closes.
fn torment<S: Scheme>() {
    let stream = stream_of_run::<S>(Arrangement::default());
    let vcpu = Vcpu::new(cpu(), dice().next());
    let (think, stamps) = (iterations(boot().think_ns), Stamps::of_run());
    let (results, doing, window) = (&this().results, &this().activity, &control().window);
    stream.grant_in_vain(&vcpu);
    // Relaxed, here and below: the window is polled; the rest is this vCPU's own.
    while window.load(Ordering::Relaxed) != WINDOW_CLOSED {
        let asked = stamps.now();
        doing.since_tsc.store(asked, Ordering::Relaxed);
        if cpu() == 0 {
            stream.grow_in_vain(&vcpu);
            if window.load(Ordering::Relaxed) != WINDOW_WARMUP {
                record_between(TIME_WAIT, asked, stamps.now());
            }
        } else {
            stream.map_in_vain(&vcpu);
        }
        if window.load(Ordering::Relaxed) == WINDOW_OPEN {
            add(&results.acquisitions, 1);
        }
        work(think);
    }
    come_to_rest(stream, &vcpu);
}
