//! The machine: page frames, the mapper's window on them, an IOMMU, and vCPUs.

pub(crate) mod frames;
pub(crate) mod window;

use core::cell::Cell;

use haltkick_locks::{Domain, Lock, Platform, named};

use crate::locking::{Kernel, Order, Taken};

pub use frames::{PAGE_BYTES, PAGE_WORDS, Page};
use window::Tlb;

/// Memory for the tables: in the guest a static arena, on the host the heap. Nothing is given back.
pub trait Memory {
    /// `length` values, made by `make` from their index.
    fn slice<T: Sync>(&self, length: usize, make: impl FnMut(usize) -> T) -> &'static [T];
}

/// How large a world is.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// vCPUs that take part.
    pub vcpus: usize,
    /// Domains, numbered from 0.
    pub domains: usize,
    /// Entries of each table at first.
    pub references: usize,
    /// Entries that a table can grow to.
    pub most_references: usize,
    /// Mappings that a domain can have.
    pub handles: usize,
    /// Page frames of the machine, and frame numbers of each domain.
    pub frames: usize,
}

named! {
    /// Counts of the operations, each vCPU for itself.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Counter {
        /// Mappings made.
        Map = "grant_map",
        /// Mappings removed.
        Unmap = "grant_unmap",
        /// Copies.
        Copy = "grant_copy",
        /// Times that a table was locked to grow.
        Grow = "grant_grow",
        /// Pairs of entries exchanged.
        Swap = "grant_swap",
        /// Operations refused with a [`Status`](crate::Status).
        Refused = "grant_refused",
        /// Entries that changed between check and mark.
        Unstable = "grant_unstable",
        /// Invalidations of cached translations.
        Invalidate = "grant_invalidate",
        /// Free maptrack entries taken from another vCPU's list.
        Steal = "grant_steal",
    }
}

/// One vCPU. Stays on it.
#[derive(Debug)]
pub struct Vcpu {
    pub(crate) index: usize,
    pub(crate) order: Order,
    pub(crate) tlb: Tlb,
    random: Cell<u64>,
    counters: [Cell<u64>; Counter::COUNT],
}

impl Vcpu {
    /// vCPU `index`; `seed` is of everything random.
    #[must_use]
    pub const fn new(index: usize, seed: u64) -> Self {
        Self {
            index,
            order: Order::new(),
            tlb: Tlb::new(),
            random: Cell::new(seed.wrapping_add((index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1),
            counters: [const { Cell::new(0) }; Counter::COUNT],
        }
    }

    /// A random number below `bound`: xorshift (Marsaglia 2003), good enough to vary an order.
    pub fn random(&self, bound: usize) -> usize {
        let mut x = self.random.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random.set(x);
        ((x >> 32) as usize * bound) >> 32
    }

    /// Returns a count.
    #[must_use]
    pub fn counted(&self, counter: Counter) -> u64 {
        self.counters[counter as usize].get()
    }

    /// Whether it holds no lock, as far as the check of the lock order knows.
    #[must_use]
    pub fn holds_nothing(&self) -> bool {
        self.order.holds_nothing()
    }

    /// Does `section` under the lock at `address`, in its place in the order of locks. Tells the host meanwhile that this vCPU holds a lock,
    /// one more; and the kernel, which lock it is.
    #[inline(always)]
    pub(crate) fn under<K: Kernel, T, R>(
        &self,
        (taken, address): (Taken, usize),
        lock: impl FnOnce() -> T,
        section: impl FnOnce() -> R,
        unlock: impl FnOnce(T),
    ) -> R {
        let _held = self.order.acquire(taken, address);
        let token = lock();
        K::domain().platform().section_entered();
        K::acquired(taken, address);
        let result = section();
        unlock(token);
        K::released(taken);
        K::domain().platform().section_left();
        result
    }

    /// [`under`](Self::under) a spinlock of the kernel's.
    #[inline(always)]
    pub(crate) fn locked<K: Kernel, R>(
        &self,
        taken: (Taken, usize),
        lock: &K::Lock,
        section: impl FnOnce() -> R,
    ) -> R {
        self.under::<K, _, _>(
            taken,
            || lock.lock(K::domain()),
            section,
            |token| lock.unlock(K::domain(), token),
        )
    }

    #[inline(always)]
    pub(crate) fn count(&self, counter: Counter) {
        let cell = &self.counters[counter as usize];
        cell.set(cell.get() + 1);
    }

    /// Counts a refusal, if it is one.
    pub(crate) fn settle_refusal<T, E>(&self, result: Result<T, E>) -> Result<T, E> {
        result.inspect_err(|_| self.count(Counter::Refused))
    }

    /// Counts `done` if the operation went well, and a refusal otherwise.
    #[inline(always)]
    pub(crate) fn settle<T, E>(&self, done: Counter, result: Result<T, E>) -> Result<T, E> {
        self.count(if result.is_ok() { done } else { Counter::Refused });
        result
    }
}

/// How far the devices of a mapping domain reach where an IOMMU is strict, in order.
pub(crate) const NOT: u32 = 0;
pub(crate) const FOR_READING: u32 = 1;
pub(crate) const FOR_WRITING: u32 = 2;
