//! Grant tables under load: every vCPU is a backend that serves streaming disks (`--locks` of them) of one guest.
//!
//! See `haltkick_grants::Stream` for what a request is. `--hold` is what changing one page table entry costs, `--think`
//! the work per request outside of all locks. `--lock` is what the tables' spinlocks are; each disk's ring has one of
//! its own, with the oracle inside. A page that was mapped, used and unmapped counts as one operation; `map` is the time
//! to map a request's pages, `use` that from there to the last page unmapped.
//!
//! `grant-writer-*`: how long does a writer of a table wait behind a hostile mapper? vCPU 0 has the table grow again
//! and again, all others map and unmap a page of their own without a pause. Harm that a guest can do to the
//! hypervisor with reader-writer locks that are not fair: it keeps a CPU in a loop, for as long as its other vCPUs
//! make mappings. `--think` is the time between two turns of either. Pages mapped and unmapped, and growths, count as
//! operations; wait times are the writer's alone, from its request to the end of the growth. A growth that ends after
//! the window counts too: the mappers have stopped then, and its time is a lower bound of the writer's wait.

use core::sync::atomic::Ordering;

use haltkick_grants::{
    Arrangement, Brief, Cleaned, Counter, Fair, KernelLock, Lists, PerCpu, Request, SEGMENTS, Scheme, Single,
    Split, Stream, StrictSingle, StrictSplit, Unlocked, Unpadded, Vcpu,
};
use haltkick_hypercalls::{TIME_WAIT, WINDOW_WARMUP};

use crate::cpu::percpu::{add, boot, control, cpu, this};
use crate::cpu::time::{iterations, now, work};
use crate::lock::measure::{Sections, is_open, is_over};
use crate::lock::part::{NoLocks, workloads_on_parts};
use crate::observe::events::GRANT_EVENTS;
use crate::observe::times::{Stamps, record_between};
use crate::work::arena::{self, ARENA};
use crate::work::choice::dice;

/// Requests between two acts of the hostile part of the guest, on each vCPU.
const HOSTILE_EVERY: u64 = 4;
/// Requests between two writers of the table, on each vCPU.
const GROW_EVERY: u64 = 8_192;
/// Requests between two exchanges of entries.
const SWAP_EVERY: u64 = 16_384;

/// Slots of the results' times.
const MAP: usize = 0;
const USE: usize = 1;

/// Disks that are served by the first vCPU that comes, and no lock but those of the tables.
const FREE: Arrangement = Arrangement { bound: false, kernel_lock: None };
/// Each disk is one vCPU's.
const BOUND: Arrangement = Arrangement { bound: true, ..FREE };
/// And a lock of a kernel's own.
const GRANTER_LOCK: Option<KernelLock> = Some(KernelLock::Granter);
const MAPPER_LOCK: Option<KernelLock> = Some(KernelLock::Mapper);

/// Declares one workload per locking scheme and arrangement. Without locks there is no kernel's own neither.
macro_rules! disks {
    ($($order:literal $name:literal, $summary:literal, |$kernel:ident| $scheme:ty, $arrangement:expr;)+) => {$(
        workloads_on_parts! {
            ["map", "use"],
            serve::<Unlocked<NoLocks>>(false, Arrangement { kernel_lock: None, ..$arrangement });
            $order $name, $summary, |$kernel| serve::<$scheme>(true, $arrangement);
        }
    )+};
}

disks! {
    "200" "grant-single", "disks (--locks) stream through a grant table: one spinlock per table (G0, before 2013)",
        |K| Single<K>, FREE;
    "201" "grant-single-strict", "the same, with a strict IOMMU", |K| StrictSingle<K>, FREE;
    "202" "grant-single-granter-lock", "G0, and a global lock in the granter's own kernel", |K| Single<K>,
        Arrangement { kernel_lock: GRANTER_LOCK, ..FREE };
    "203" "grant-single-mapper-lock", "G0, and a global lock in the mapper's own kernel", |K| Single<K>,
        Arrangement { kernel_lock: MAPPER_LOCK, ..FREE };
    "210" "grant-split", "disks stream: table rwlock, a spinlock per entry, one for maptrack (G1, as posted in 2013)",
        |K| Split<K>, FREE;
    "211" "grant-split-unpadded", "G1 whose maptrack lock lies in one line with the table's", |K| Unpadded<K>, FREE;
    "212" "grant-split-strict", "G1 with a strict IOMMU", |K| StrictSplit<K>, FREE;
    "213" "grant-split-bound", "G1, and each disk is served by one vCPU alone", |K| Split<K>, BOUND;
    "214" "grant-split-granter-lock", "G1, and a global lock in the granter's own kernel", |K| Split<K>,
        Arrangement { kernel_lock: GRANTER_LOCK, ..FREE };
    "215" "grant-split-granter-lock-bound", "the same, and each disk is served by one vCPU alone", |K| Split<K>,
        Arrangement { kernel_lock: GRANTER_LOCK, ..BOUND };
    "216" "grant-split-mapper-lock", "G1, and a global lock in the mapper's own kernel", |K| Split<K>,
        Arrangement { kernel_lock: MAPPER_LOCK, ..FREE };
    "217" "grant-split-mapper-lock-bound", "the same, and each disk is served by one vCPU alone", |K| Split<K>,
        Arrangement { kernel_lock: MAPPER_LOCK, ..BOUND };
    "219" "grant-brief", "disks stream: G1 that changes page tables outside of locks where it can (G1b)",
        |K| Brief<K>, FREE;
    "220" "grant-cleaned", "the same: and no lock is taken under maptrack's or a second entry's (G2)",
        |K| Cleaned<K>, FREE;
    "230" "grant-lists", "the same: and a list of free handles per vCPU (G3)", |K| Lists<K>, FREE;
    "240" "grant-per-cpu", "the same: and a per-CPU reader lock for the table (G4)", |K| PerCpu<K>, FREE;
    "250" "grant-fair", "the same: and a fair queued rwlock underneath (G5)", |K| Fair<K>, FREE;
}

workloads_on_parts! {
    ["wait"], torment::<Unlocked<NoLocks>>();
    "252" "grant-writer-single", "vCPU 0 grows a grant table, all others map and unmap: G0; wait is the writer's",
        |K| torment::<Single<K>>();
    "253" "grant-writer-split", "the same: G1, as posted in 2013", |K| torment::<Split<K>>();
    "254" "grant-writer-brief", "the same: G1b", |K| torment::<Brief<K>>();
    "255" "grant-writer-per-cpu", "the same: G4", |K| torment::<PerCpu<K>>();
    "256" "grant-writer-fair", "the same: G5", |K| torment::<Fair<K>>();
}

/// One vCPU of the backend, until the window closes; then, when all have come to rest, the last one looks at
/// everything. `locked`: several vCPUs may touch one entry. Without locks none may, so there is no hostile
/// guest and no writer.
fn serve<S: Scheme>(locked: bool, arrangement: Arrangement) {
    let stream = stream_of_run::<S>(arrangement);
    let vcpu = Vcpu::new(cpu(), dice().next());
    let (think, rings) = (iterations(boot().think_ns), Sections::of_this_vcpu());
    let mut requests = 0;
    // Empty if there are more vCPUs than disks and each disk has one vCPU.
    for disk in stream.disks_of(&vcpu).cycle() {
        if is_over() {
            break;
        }
        let mut claimed = None;
        rings.exclusive(disk, || claimed = stream.claim(disk));
        if let Some(request) = claimed {
            one_request(stream, &vcpu, request);
            requests += 1;
            if locked {
                misbehave(stream, &vcpu, requests);
            }
            work(think);
        }
    }
    come_to_rest(stream, &vcpu);
}

/// The disks of this run, which vCPU 0 makes.
fn stream_of_run<S: Scheme>(arrangement: Arrangement) -> &'static Stream<S> {
    let (disks, vcpus) = (boot().lock_count as usize, boot().vcpus as usize);
    arena::shared(|| Stream::new(&ARENA, disks, vcpus, arrangement))
}

/// This vCPU has finished; the last to do so looks at everything.
fn come_to_rest<S: Scheme>(stream: &Stream<S>, vcpu: &Vcpu) {
    for counter in Counter::ALL {
        add(&this().results.lock_events[GRANT_EVENTS + counter as usize], vcpu.counted(counter));
    }
    arena::come_to_rest(|| {
        if let Err(unrest) = stream.rest() {
            panic!("grant tables at rest: {unrest:?}");
        }
    });
}

fn one_request<S: Scheme>(stream: &Stream<S>, vcpu: &Vcpu, mut request: Request) {
    stream.publish(vcpu, &request);
    let asked = now();
    stream.map(vcpu, &mut request);
    let mapped = now();
    stream.move_data(vcpu, &request);
    stream.unmap(vcpu, &request);
    let unmapped = now();
    stream.finish(vcpu, request);
    // Relaxed: a vCPU that sees the window change one round late counts one round more or less.
    if is_open() {
        add(&this().results.acquisitions, SEGMENTS as u64);
        record_between(MAP, asked, mapped);
        record_between(USE, mapped, unmapped);
    }
}

/// The hostile part of the guest, the backend's attempts at it, and the occasional writer.
fn misbehave<S: Scheme>(stream: &Stream<S>, vcpu: &Vcpu, requests: u64) {
    if requests.is_multiple_of(HOSTILE_EVERY) {
        stream.torment(vcpu);
        stream.probe(vcpu);
    }
    if requests.is_multiple_of(GROW_EVERY) {
        stream.grow(vcpu);
    }
    if requests.is_multiple_of(SWAP_EVERY) {
        stream.swap(vcpu);
    }
}

/// The writer of a table, or one of the mappers that it waits for, until the window closes.
fn torment<S: Scheme>() {
    let stream = stream_of_run::<S>(Arrangement::default());
    let vcpu = Vcpu::new(cpu(), dice().next());
    let (think, stamps) = (iterations(boot().think_ns), Stamps::of_run());
    let (doing, window) = (&this().activity, &control().window);
    stream.grant_in_vain(&vcpu);
    // Relaxed, here and below: the window is polled; the rest is this vCPU's own.
    while !is_over() {
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
        if is_open() {
            add(&this().results.acquisitions, 1);
        }
        work(think);
    }
    come_to_rest(stream, &vcpu);
}
