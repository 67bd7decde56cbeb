//! Address spaces: their pages and page tables, and what changes them under `mmap_sem`.

pub(crate) mod deferred;
mod page;
mod space;
pub(crate) mod table;
mod vma_lock;

use crate::{
    contract::{Cpus, Machine},
    records::{AtomicU32, NONE, Ordering::*, Sequence},
};

pub use page::Memory;
pub use table::{ENTRIES, PAGE_BYTES, USER_END, USER_START};

/// How the fault path is kept from what changes the areas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// By `mmap_sem`, held for reading (`page_faults`).
    MmapSem,
    /// By nothing: it validates a sequence count of the area (`speculative`).
    Speculative,
    /// By nothing either, with areas that are given back late instead of references to them (`deferred`).
    SpeculativeSrcu,
    /// By the lock of the area (`vma_lock`).
    PerVma,
}

/// An address space, used through [`Space`].
#[derive(Debug)]
pub struct Mm<M: Machine> {
    pub(crate) scheme: Scheme,
    pub(crate) semaphore: M::Semaphore,
    /// Top-level page table.
    pub(crate) root: AtomicU32,
    /// CPUs that share it.
    pub(crate) users: AtomicU32,
    /// CPUs that may have cached translations of it.
    pub(crate) cpus: Cpus,
    /// Allocation and freeing of page tables.
    pub(crate) table_lock: M::Spin,

    /// Topmost area. Changed with `mmap_sem` held for writing, and
    /// - speculative: `tree_lock` held for writing;
    /// - speculative under SRCU, per-VMA: inside `tree_sequence`.
    pub(crate) tree: AtomicU32,
    pub(crate) tree_lock: M::TreeLock,
    pub(crate) tree_sequence: Sequence,

    /// Per-VMA: `mm_lock_seq`, odd while `mmap_sem` is held for writing.
    pub(crate) lock_sequence: AtomicU32,
    /// Per-VMA: who holds it so, to be kicked by readers that leave.
    pub(crate) writer: AtomicU32,
}

impl<M: Machine> Mm<M> {
    /// An address space without a page table; [`Space::open`] gives it one.
    pub fn new(scheme: Scheme, semaphore: M::Semaphore, tree_lock: M::TreeLock, table_lock: M::Spin) -> Self {
        Self {
            scheme,
            semaphore,
            root: AtomicU32::new(NONE),
            users: AtomicU32::new(0),
            cpus: Cpus::new(),
            table_lock,
            tree: AtomicU32::new(NONE),
            tree_lock,
            tree_sequence: Sequence::new(),
            // Not the number that a new area's lock has.
            lock_sequence: AtomicU32::new(2),
            writer: AtomicU32::new(0),
        }
    }

    /// Whether several CPUs use it.
    pub(crate) fn is_shared(&self) -> bool {
        // Relaxed: CPUs join before they fault, and one that misses a newcomer only takes the slower path.
        self.users.load(Relaxed) > 1
    }
}

/// An address space with the memory that it is made of.
pub struct Space<'a, M: Machine> {
    /// All memory there is.
    pub memory: &'a Memory<M>,
    /// The address space.
    pub mm: &'a Mm<M>,
}

impl<M: Machine> Clone for Space<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: Machine> Copy for Space<'_, M> {}
