//! Which locks there are, in which order they are taken, and what they protect.
//!
//! The locking [schemes](Scheme) lead from one lock to many; `docs/studies/grant-tables.md` compares them.
//!
//! Locks taken for one page, mapped and unmapped. L is the mapping domain's table, R the granting one's, E the
//! entry; `pte` is the change of the mapper's page table, and `|` where all is released.
//!
//! ```text
//!          map                                        unmap
//! G0       L: handle | R: pin | pte | L+R: track      L: look | L+R: pte | R: unpin | L: handle
//! G1       maptrack: handle | R+E: pin, pte, track    L: look | R+E: pte | R+E: unpin | maptrack: handle
//! G1b      maptrack: handle | R+E: pin | pte, track   R+E: pte | R+E: unpin, maptrack: handle
//! G2 on    as G1b                                     R+E: pte | R+E: unpin | maptrack: handle
//! ```
//!
//! G0 is what there was before 2013: nine acquisitions of single locks, two of which are held together twice. G1 is the split
//! as posted then: two of maptrack, four readers, three entries.

use core::{cell::Cell, marker::PhantomData};

use self::Ordering::Relaxed;
use haltkick_locks::{
    Domain, FairRwLock, Lock, PerCpuRwDomain, PerCpuRwLock, ReaderSlot, RwLock, UnfairRwLock,
};

// The atomics of this crate: the real ones, or shuttle's.
//
// The content of a page is plain data to the protocols here, and has real atomics always (`frames.rs`).
pub(crate) use core::sync::atomic::Ordering;
#[cfg(not(shuttle))]
pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64};
#[cfg(shuttle)]
pub(crate) use shuttle::sync::atomic::{AtomicU32, AtomicU64};

/// The kernel that grant tables are part of: its spinlock, and what changing a page table costs it.
pub trait Kernel: Sized + Sync + 'static {
    /// The spinlock.
    type Lock: Lock<Self::Domain>;
    /// The memory that its spinlocks share.
    type Domain: Domain + 'static;

    /// A free spinlock.
    fn new_lock() -> Self::Lock;
    /// The shared memory.
    fn domain() -> &'static Self::Domain;
    /// Work of making or removing one mapping, beyond the store. Called for each, so a kernel may count
    /// progress by it.
    fn page_table_work() {}
    /// One of the tables' locks has been acquired, which lies at that address. For who counts them.
    #[inline(always)]
    fn acquired(_: Taken, _address: usize) {}
    /// It is about to be released, or has just been.
    #[inline(always)]
    fn released(_: Taken) {}
}

/// A lock of a table, as it was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The lock of this domain's table, for reading. Under a scheme whose tables have spinlocks that is no difference.
    TableRead(u16),
    /// The lock of a table, for writing.
    TableWrite(u16),
    /// The lock of the entry of this number.
    Entry(u32),
    /// The lock of the maptrack list of this number.
    Maptrack(usize),
    /// The lock of [`KernelLock`](crate::KernelLock), which belongs to no table.
    Kernel,
}

/// Slots for the readers of per-CPU locks.
pub type Readers<K> = PerCpuRwDomain<&'static <K as Kernel>::Domain, &'static [ReaderSlot]>;

/// Protection of the free lists of maptrack entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaptrackLocking {
    /// The mapping domain's table lock; one list.
    Table,
    /// A spinlock; one list. Lock and list have a line of their own.
    One,
    /// A lock of their own, next to the table's lock, in its line.
    Beside,
    /// A spinlock per vCPU, each with a list.
    PerVcpu,
}

/// Locks that a map holds when it changes the mapper's page table, and when it records the mapping under its
/// handle. With any, unmap looks at its handle under the mapper's table lock, before it goes where that leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapLocking {
    /// No lock: the pin keeps the page, and no other vCPU has the handle yet.
    Nothing,
    /// No lock while the page table is changed; then the tables of both domains. Unmap changes the page table under both, too, and
    /// under the granter's alone in the other cases.
    BothTables,
    /// The granter's table and the entry that was pinned under them, for both.
    Entry,
}

/// A locking scheme.
pub trait Scheme: Sized + Sync + 'static {
    /// The kernel whose spinlocks it is made of.
    type Kernel: Kernel;
    /// The lock of a table.
    type TableLock: RwLock<Self::TableDomain>;
    /// The memory that those share.
    type TableDomain;

    /// Entries have locks of their own.
    const ENTRY_LOCKS: bool = true;
    /// Map.
    const MAP: MapLocking = MapLocking::Nothing;
    /// Unmap returns the handle while it holds the entry, not after.
    const PUT_UNDER_ENTRY: bool = false;
    /// Devices of the mapper reach what is mapped and nothing else: map and unmap take the granter's table for writing, and
    /// count the mapper's mappings of the page under the maptrack lock.
    const STRICT_IOMMU: bool = false;
    /// Maptrack.
    const MAPTRACK: MaptrackLocking;
    /// A swap takes the table's lock for reading, and the entries' in ascending order; else the table's for writing.
    const SWAP_UNDER_READ: bool = false;

    /// A free table lock.
    fn new_table_lock() -> Self::TableLock;
    /// The memory of table locks.
    fn table_domain(readers: &Readers<Self::Kernel>) -> &Self::TableDomain;
}

/// A spinlock where a reader-writer lock is expected.
#[derive(Debug)]
#[repr(transparent)]
pub struct Exclusive<L>(
    /// The spinlock, which readers take as writers do.
    pub L,
);

impl<D, L: Lock<D>> RwLock<D> for Exclusive<L> {
    type ReadToken = L::Token;
    type WriteToken = L::Token;

    #[inline(always)]
    fn read(&self, domain: &D) -> L::Token {
        self.0.lock(domain)
    }

    #[inline(always)]
    fn read_unlock(&self, domain: &D, token: L::Token) {
        self.0.unlock(domain, token);
    }

    #[inline(always)]
    fn write(&self, domain: &D) -> L::Token {
        self.0.lock(domain)
    }

    #[inline(always)]
    fn write_unlock(&self, domain: &D, token: L::Token) {
        self.0.unlock(domain, token);
    }
}

/// Declares schemes, each without a strict IOMMU and with one.
macro_rules! schemes {
    ($($(#[$doc:meta])* $name:ident: $lock:ty = $new:expr, $domain:ty = $readers:ident => $of_readers:expr;
     $($constant:ident: $type:ty = $value:expr),*;)+) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name<K, const STRICT: bool = false>(PhantomData<fn() -> K>);

        impl<K: Kernel, const STRICT: bool> Scheme for $name<K, STRICT> {
            type Kernel = K;
            type TableLock = $lock;
            type TableDomain = $domain;
            const STRICT_IOMMU: bool = {
                assert!(
                    !STRICT || !matches!(Self::MAP, MapLocking::Nothing),
                    "mappings are counted where a map says what its handle names"
                );
                STRICT
            };
            $(const $constant: $type = $value;)*

            fn new_table_lock() -> $lock {
                $new
            }

            #[inline(always)]
            fn table_domain($readers: &Readers<K>) -> &$domain {
                $of_readers
            }
        }
    )+};
}

schemes! {
    /// G0: one spinlock per table, for everything in it: before 2013.
    Single: Exclusive<K::Lock> = Exclusive(K::new_lock()), K::Domain = _readers => K::domain();
    ENTRY_LOCKS: bool = false, MAP: MapLocking = MapLocking::BothTables,
    MAPTRACK: MaptrackLocking = MaptrackLocking::Table;

    /// G1: the split as posted in 2013, but for the order of locks in a swap.
    Split: UnfairRwLock = UnfairRwLock::new(), K::Domain = _readers => K::domain();
    MAP: MapLocking = MapLocking::Entry, MAPTRACK: MaptrackLocking = MaptrackLocking::One,
    SWAP_UNDER_READ: bool = true;

    /// G1 whose maptrack lock, with the list that it protects, lies in one line with the table's lock.
    Unpadded: UnfairRwLock = UnfairRwLock::new(), K::Domain = _readers => K::domain();
    MAP: MapLocking = MapLocking::Entry, MAPTRACK: MaptrackLocking = MaptrackLocking::Beside,
    SWAP_UNDER_READ: bool = true;

    /// G1b: the split with shorter sections: a map changes the page table outside of all locks, an unmap looks at its handle
    /// without one and gives it back before it releases the entry.
    Brief: UnfairRwLock = UnfairRwLock::new(), K::Domain = _readers => K::domain();
    PUT_UNDER_ENTRY: bool = true, MAPTRACK: MaptrackLocking = MaptrackLocking::One,
    SWAP_UNDER_READ: bool = true;

    /// G2: the split with its order cleaned up: maptrack is a leaf taken alone, two entries need the write lock.
    Cleaned: UnfairRwLock = UnfairRwLock::new(), K::Domain = _readers => K::domain();
    MAPTRACK: MaptrackLocking = MaptrackLocking::One;

    /// G3: and a list of free maptrack entries for each vCPU.
    Lists: UnfairRwLock = UnfairRwLock::new(), K::Domain = _readers => K::domain();
    MAPTRACK: MaptrackLocking = MaptrackLocking::PerVcpu;

    /// G4: and a per-CPU reader lock for the table.
    PerCpu: PerCpuRwLock<UnfairRwLock> = PerCpuRwLock::new(UnfairRwLock::new()), Readers<K> = readers => readers;
    MAPTRACK: MaptrackLocking = MaptrackLocking::PerVcpu;

    /// G5: and a fair queued lock underneath.
    Fair: PerCpuRwLock<FairRwLock<K::Lock>> = PerCpuRwLock::new(FairRwLock::new(K::new_lock())),
        Readers<K> = readers => readers;
    MAPTRACK: MaptrackLocking = MaptrackLocking::PerVcpu;

    /// No lock at all, for vCPUs that never touch the same entry, each with its own list. `K`'s spinlock is to be none.
    Unlocked: Exclusive<K::Lock> = Exclusive(K::new_lock()), K::Domain = _readers => K::domain();
    ENTRY_LOCKS: bool = false, MAPTRACK: MaptrackLocking = MaptrackLocking::PerVcpu;
}

/// [`Single`] with a strict IOMMU.
pub type StrictSingle<K> = Single<K, true>;

/// [`Split`] with a strict IOMMU.
pub type StrictSplit<K> = Split<K, true>;

// The lock order, and a check of it in test builds.
//
// ```text
// a kernel's own  ->  table (by address, where two are held)  ->  active entry (by reference)  ->  maptrack list, never two
// ```
//
// A vCPU that acquires only upwards in this order cannot be part of a deadlock. The check knows which locks
// each vCPU holds and panics at the first step down, whether or not another vCPU is there to make a deadlock
// of it: one thread is enough to find ABBA. It is there in builds with debug assertions; elsewhere it is
// empty.

impl Taken {
    /// Its place in the order of kinds.
    fn class(self) -> u8 {
        match self {
            Self::Kernel => 0,
            Self::TableRead(_) | Self::TableWrite(_) => 1,
            Self::Entry(_) => 2,
            Self::Maptrack(_) => 3,
        }
    }
}

/// Whether the order is checked. Not under the model checker, which is to find what happens without.
const CHECKED: bool = cfg!(debug_assertions) && !cfg!(shuttle);
/// Most locks that one vCPU holds: two tables, two entries, a list.
const DEPTH: usize = 5;

/// A lock that is held, and its address.
type Holding = Cell<Option<(Taken, usize)>>;

/// Locks that one vCPU holds.
#[derive(Debug)]
pub(crate) struct Order {
    held: [Holding; DEPTH],
}

/// Held until dropped.
pub(crate) struct Held<'a>(Option<&'a Holding>);

impl Order {
    pub(crate) const fn new() -> Self {
        Self { held: [const { Cell::new(None) }; DEPTH] }
    }

    /// Notes that the lock at `address` is about to be acquired.
    #[inline(always)]
    pub(crate) fn acquire(&self, taken: Taken, address: usize) -> Held<'_> {
        if CHECKED { self.check(taken, address) } else { Held(None) }
    }

    fn check(&self, taken: Taken, address: usize) -> Held<'_> {
        for (held, at) in self.held.iter().filter_map(Cell::get) {
            let (below, place) = ((held.class(), at), (taken.class(), address));
            assert!(below != place, "lock order: {taken:?} is held already");
            assert!(below < place, "lock order: {taken:?} comes before a lock that is held ({held:?})");
            let lists = matches!((held, taken), (Taken::Maptrack(_), Taken::Maptrack(_)));
            assert!(!lists, "lock order: two maptrack lists at a time");
        }
        let free = self.held.iter().find(|held| held.get().is_none()).expect("five locks at most");
        free.set(Some((taken, address)));
        Held(Some(free))
    }

    /// Whether anything is held.
    pub(crate) fn holds_nothing(&self) -> bool {
        self.held.iter().all(|held| held.get().is_none())
    }
}

impl Drop for Held<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(held) = self.0 {
            held.set(None);
        }
    }
}

/// A word that the lock named at its field protects.
///
/// An atomic for its type alone: order and exclusion are the lock's duty, so every access is relaxed and none is a
/// read-modify-write. A lock that fails shows as counts that do not add up.
#[derive(Debug)]
pub(crate) struct Guarded(AtomicU32);

impl Guarded {
    pub(crate) const fn new(value: u32) -> Self {
        Self(AtomicU32::new(value))
    }

    #[inline(always)]
    pub(crate) fn get(&self) -> u32 {
        self.0.load(Relaxed)
    }

    #[inline(always)]
    pub(crate) fn set(&self, value: u32) {
        self.0.store(value, Relaxed);
    }
}
