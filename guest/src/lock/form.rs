//! The forms of a lock: the code of a kind behind the table of calls, and the memory that the locks of a run lie in.
#![expect(unsafe_code, reason = "places locks in a static, and measures one there")]

use core::cell::UnsafeCell;
use core::sync::atomic::Ordering;

use haltkick_hypercalls::{
    COST_COUNTING, COST_ORACLE, COST_ORDERED_STAMP, COST_SECTION, COST_STAMP, LockFlags, MAX_LOCKS,
    MAX_VCPUS, PAIR_AT_SITES, PAIR_COMPILED_IN, PAIR_THROUGH_TABLE, WorkloadFlags,
};
use haltkick_locks::{Domain, Queues, RwLock};

use crate::cpu::percpu::{boot, control};
use crate::image::{locks, workloads};
use crate::lock::calls::{self, Calls};
use crate::lock::cost::{self, pair_ticks};
use crate::lock::kind::{INSTANCE_BYTES, Kind, MMAP_SEM, Serving};
use crate::lock::object;

/// Most bytes of a lock that is a part of another structure.
const PART_BYTES: usize = 8;

#[derive(Clone, Copy)]
pub(crate) struct Form {
    pub(crate) calls: Calls,
    /// Makes the locks, and lets the sites call them.
    install: fn(&Calls),
    /// Measures an uncontended pair, compiled into its caller; `None`: its code comes from elsewhere. After `install`.
    pair_ticks: Option<fn() -> u64>,
    /// How page faults are served in such a run.
    pub(crate) faults: Option<Serving>,
}

impl Form {
    /// Makes the form of a kind of the image's own.
    pub(crate) const fn of_kind<K: Kind>() -> Self {
        Self {
            calls: Calls {
                lock: Some(calls::lock::<K, false>),
                unlock: Some(calls::unlock::<K, false>),
                read: Some(calls::lock::<K, true>),
                read_unlock: Some(calls::unlock::<K, true>),
                lock_bytes: size_of::<K::Lock>() as u32,
                cpu_bytes: (size_of::<K::Domain>() / MAX_VCPUS) as u32,
            },
            install: |calls| {
                let locks = place(K::new);
                calls::install(calls, locks, K::EXCLUDES);
                publish(locks, K::WORD, K::domain().queues());
            },
            pair_ticks: Some(|| {
                // SAFETY: `install` has placed locks of this kind.
                let lock = unsafe { first::<K::Lock>() };
                pair_ticks(|| RwLock::write_unlock(lock, K::domain(), RwLock::write(lock, K::domain())))
            }),
            faults: K::FAULTS,
        }
    }

    /// Makes the form of a lock whose code the VMM has linked behind the image.
    pub(crate) fn of_object(calls: Calls) -> Self {
        Self {
            calls,
            install: |calls| {
                let locks = address();
                object::init((0..boot().lock_count as usize).map(|index| locks + index * INSTANCE_BYTES));
                calls::install(calls, locks, true);
                publish(locks, haltkick_hypercalls::WORD_OPAQUE, None);
            },
            pair_ticks: None,
            faults: Some(MMAP_SEM),
        }
    }

    /// Prepares the locks on vCPU 0 before any other vCPU runs.
    pub(crate) fn prepare(&self) {
        let control = control();
        (self.install)(&self.calls);
        let entry = locks().get(boot().lock as usize);
        let is_part = entry.is_some_and(|it| LockFlags(it.flags).has(LockFlags::IS_PART));
        let needs_parts =
            WorkloadFlags(workloads()[boot().workload as usize].flags).has(WorkloadFlags::NEEDS_PARTS);
        assert!(is_part || !needs_parts, "the VMM checked that the lock can be a part");
        if is_part {
            let bytes = self.calls.lock_bytes as usize;
            assert!(bytes <= PART_BYTES && is_clear(bytes), "a part is small, and zeros when free");
        }
        let pairs = &control.pair_ticks;
        // Relaxed: the hypercall lies between this and the first instruction of every other vCPU.
        pairs[PAIR_COMPILED_IN].store(self.pair_ticks.map_or(0, |measure| measure()), Ordering::Relaxed);
        let through_table = pair_ticks(|| calls::with_lock_through_table(0, || core::hint::black_box(())));
        pairs[PAIR_THROUGH_TABLE].store(through_table, Ordering::Relaxed);
        let at_sites = pair_ticks(|| calls::with_lock(0, || core::hint::black_box(())));
        pairs[PAIR_AT_SITES].store(at_sites, Ordering::Relaxed);
        for (slot, ticks) in [
            (COST_STAMP, cost::stamp_ticks(false)),
            (COST_ORDERED_STAMP, cost::stamp_ticks(true)),
            (COST_ORACLE, cost::oracle_ticks()),
            (COST_SECTION, cost::section_ticks(at_sites)),
            (COST_COUNTING, cost::counting_ticks()),
        ] {
            control.cost_ticks[slot].store(ticks, Ordering::Relaxed);
        }
        debug_assert!(boot().lock_count <= MAX_LOCKS);
    }
}

/// Publishes where the locks are, for readers of a guest that failed.
fn publish(locks: usize, word: u32, queues: Option<Queues>) {
    let (control, queues) = (control(), queues.unwrap_or_default());
    let to = &control.queues;
    // Relaxed: as in `prepare`.
    control.lock_stride.store(INSTANCE_BYTES as u32, Ordering::Relaxed);
    control.lock_word.store(word, Ordering::Relaxed);
    control.locks.store(locks as u64, Ordering::Relaxed);
    for (address, value) in
        [(&to.nodes, queues.nodes), (&to.in_use, queues.in_use), (&to.table, queues.table)]
    {
        address.store(value as u64, Ordering::Relaxed);
    }
    for (number, value) in [
        (&to.cpu_bytes, queues.cpu_bytes),
        (&to.node_bytes, queues.node_bytes),
        (&to.nodes_per_cpu, queues.nodes_per_cpu),
        (&to.next, queues.next),
        (&to.locked, queues.locked),
        (&to.table_entries, queues.table_entries),
    ] {
        number.store(value as u32, Ordering::Relaxed);
    }
}

// A run has locks of one kind, so that those of all kinds lie in the same place: none is nearer to something else than another.

#[repr(C, align(4096))]
struct Instances(UnsafeCell<[u8; MAX_LOCKS as usize * INSTANCE_BYTES]>);

// SAFETY: written by vCPU 0 before any other runs; from then on they are `Sync` locks, see `place`.
unsafe impl Sync for Instances {}

#[used]
#[unsafe(link_section = ".haltkick.hot")]
static INSTANCES: Instances = Instances(UnsafeCell::new([0; MAX_LOCKS as usize * INSTANCE_BYTES]));

/// Address of the first lock.
fn address() -> usize {
    INSTANCES.0.get() as usize
}

/// Whether the first `bytes` bytes of the first lock are zeros. vCPU 0, before any other vCPU runs.
fn is_clear(bytes: usize) -> bool {
    // SAFETY: within the static, which no other vCPU uses yet; the lock there is that long.
    unsafe { core::slice::from_raw_parts(INSTANCES.0.get().cast::<u8>(), bytes) }
        .iter()
        .all(|&byte| byte == 0)
}

/// Puts a free lock into each place, and says where the first lies. vCPU 0, before any other vCPU runs.
fn place<L: Sync + 'static>(new: fn() -> L) -> usize {
    const { assert!(size_of::<L>() <= INSTANCE_BYTES && align_of::<L>() <= INSTANCE_BYTES) };
    let first = INSTANCES.0.get().cast::<u8>();
    for index in 0..MAX_LOCKS as usize {
        // SAFETY: within the static, aligned and large enough by the assertion; there is no reference to it
        // yet.
        unsafe { first.add(index * INSTANCE_BYTES).cast::<L>().write(new()) };
    }
    first as usize
}

/// Lock number 0, of the kind that this run has.
///
/// # Safety
/// `L` is what [`place`] has put there.
unsafe fn first<L: Sync + 'static>() -> &'static L {
    // SAFETY: the caller's promise; the static lives as long as the guest.
    unsafe { &*INSTANCES.0.get().cast() }
}
