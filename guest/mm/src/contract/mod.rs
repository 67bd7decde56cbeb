//! Services that the memory manager needs from the machine, and the events that it counts.

use haltkick_locks::{Domain, Lock, RwLock, named};

use crate::records::{AtomicU64, Ordering::Relaxed};

/// Memory, translation hardware and locks, as seen by the memory manager.
///
/// # What the memory manager relies on
///
/// When [`invalidate`](Machine::invalidate) returns, every CPU of the set has dropped the translations that the page
/// table did not have when it was called.
pub trait Machine: Sync + Sized {
    /// Page-table locks, and the lock of the free lists.
    type Spin: Lock<Self::Spins, Token = ()> + 'static;
    /// `mm_rb_lock`, around the tree of areas.
    type TreeLock: RwLock<Self::Spins, ReadToken = (), WriteToken = ()>;
    /// Memory that those of both kinds share.
    type Spins: Domain;
    /// `mmap_sem`.
    type Semaphore: RwLock<Self::Sleepers, ReadToken = (), WriteToken = ()>;
    /// Memory that those share.
    type Sleepers;

    /// The memory of spinlocks.
    fn spins(&self) -> &Self::Spins;
    /// The platform that serves them.
    #[inline(always)]
    fn platform(&self) -> &<Self::Spins as Domain>::Platform {
        self.spins().platform()
    }
    /// The memory of semaphores.
    fn sleepers(&self) -> &Self::Sleepers;

    /// Physical address of page 0; the others follow.
    fn base(&self) -> u64;
    /// Entry `index` of page `page`, taken for a page table. Also called with pages that are no longer page
    /// tables.
    fn entry(&self, page: u32, index: usize) -> &AtomicU64;
    /// Fills page `page` with zeros.
    fn clear(&self, page: u32);
    /// Fills in the part of a new top-level table that all address spaces share.
    fn prepare_root(&self, page: u32);
    /// Makes `cpus` forget the translations of `bytes` bytes at `address`; all of them if `tables`, since page tables went
    /// with them.
    fn invalidate(&self, cpus: &Cpus, address: u64, bytes: u64, tables: bool);

    /// Adds `n` to the calling CPU's counter for `event`.
    fn event(&self, event: Event, n: u64);
    /// A place where tests interfere. Empty, and inlined, elsewhere.
    #[inline(always)]
    fn step(&self, step: Step) {
        _ = step;
    }
}

/// Places in the speculative path, in its order, and some in each of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// The area is found and held by a reference.
    VmaHeld,
    /// Its sequence is read.
    SequenceRead,
    /// Area and access are checked.
    Checked,
    /// The page table is walked.
    Walked,
    /// The sequence was still the same, and a page is allocated.
    Allocated,
    /// The sequence was still the same, once more.
    Rechecked,
    /// The entry of the page table was still the same; its lock is about to be tried.
    BeforeLock,
    /// Per-VMA: the walk has found an area and not looked at its lock.
    Found,
    /// Per-VMA: the area was found unlocked, and no reference is taken.
    BeforeReference,
    /// Per-VMA: a writer has seen the last reader leave, and not locked the area yet.
    ReadersGone,
    /// A writer has marked what it changes, and not changed it.
    Marked,
    /// A new area is in the tree, where others find it.
    Added,
}

/// How memory is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Load.
    Read,
    /// Store.
    Write,
}

/// Why something cannot be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The address is not mapped.
    NotMapped,
    /// The mapping forbids the access.
    NotAllowed,
    /// No page, or no area, is left.
    OutOfMemory,
    /// No gap is large enough.
    NoRoom,
    /// An address or a length that is not of whole pages, or not the user's.
    Invalid,
}

/// A set of CPUs.
#[derive(Debug)]
pub struct Cpus([AtomicU64; Self::MOST / 64]);

impl Cpus {
    /// Most CPUs in a set.
    pub const MOST: usize = 1024;

    pub(crate) fn new() -> Self {
        Self(core::array::from_fn(|_| AtomicU64::new(0)))
    }

    pub(crate) fn insert(&self, cpu: usize) {
        self.0[cpu / 64].fetch_or(1 << (cpu % 64), Relaxed);
    }

    /// Its members in order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + Clone {
        self.0.iter().enumerate().flat_map(|(word, bits)| {
            let mut left = bits.load(Relaxed);
            core::iter::from_fn(move || {
                let bit = left.trailing_zeros() as usize;
                left &= left.wrapping_sub(1);
                (bit < 64).then_some(word * 64 + bit)
            })
        })
    }
}

// Events that the memory manager counts, under the names of the threads that it comes from.
named! {
    /// One event; its discriminant indexes an array of [`Event::COUNT`] counters.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[repr(u8)]
    pub enum Event {
        /// Page faults of user addresses.
        PgFault = "pgfault",
        /// Faults handled speculatively.
        SpeculativePgfault = "speculative_pgfault",
        /// Given up: the area changed, is being changed, or does not cover the address.
        SpfVmaChanged = "spf_vma_changed",
        /// Given up: no `anon_vma` is attached yet.
        SpfVmaNoanon = "spf_vma_noanon",
        /// Given up: there is no page table yet, which is not made here.
        SpfVmaNotsup = "spf_vma_notsup",
        /// The access is wrong: an error at once.
        SpfVmaAccess = "spf_vma_access",
        /// Given up: the entry that refers to the page table changed.
        SpfPmdChanged = "spf_pmd_changed",
        /// Given up: the page-table lock is taken.
        SpfPteLock = "spf_pte_lock",
        /// Faults handled under the lock of one area.
        VmaLockSuccess = "vma_lock_success",
        /// Given up: the area is locked by a writer, or is another one by now.
        VmaLockAbort = "vma_lock_abort",
        /// Given up after locking: needs what only `mmap_sem` protects.
        VmaLockRetry = "vma_lock_retry",
        /// The walk found an area that is gone, or a tree that changes; it is walked again.
        VmaLockMiss = "vma_lock_miss",
        /// A page that was there already when it was to be installed.
        PgFaultSpurious = "pgfault_spurious",
        /// Accesses where nothing is mapped, or of a kind that is not allowed.
        SegmentationFault = "segmentation_fault",
        /// Requests for a page or an area when none was left.
        OutOfMemory = "mm_out_of_memory",
        /// Invalidations of cached translations, on the CPU that takes the mapping away.
        TlbFlush = "tlb_flush",
        /// CPUs that were asked, and waited for, to do the same.
        TlbRemoteFlush = "tlb_remote_flush",
        /// Areas that had to wait for faults to be over before they were given back.
        VmaDeferred = "vma_deferred",
        /// Times that all faults were found to be over.
        VmaGracePeriod = "vma_grace_period",
    }
}
