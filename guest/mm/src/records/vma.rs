//! Areas: ranges of addresses that are mapped alike.

use haltkick_locks::CachePadded;

use super::NONE;
use super::sequence::Sequence;
use super::sync::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Permitted uses of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// No access.
    None,
    /// Load.
    Read,
    /// Load and store.
    ReadWrite,
}

/// May be read.
pub(crate) const READ: u32 = 1 << 0;
/// May be written.
pub(crate) const WRITE: u32 = 1 << 1;
/// An `anon_vma` is attached: the area has had a page.
pub(crate) const ANON: u32 = 1 << 2;
/// Has operations of its own, as files and devices have: no speculation.
pub(crate) const SPECIAL: u32 = 1 << 3;

/// An area. Slots are reused and never given back, so that a late comer may always look into one.
///
/// The fields of a mapped area change with `mmap_sem` held for writing, inside its
/// sequence or with the area locked, as its scheme has it. `ANON` alone is also set with the semaphore held for reading.
#[derive(Debug)]
#[repr(align(128))]
pub struct Vma {
    pub(crate) start: AtomicU64,
    pub(crate) end: AtomicU64,
    pub(crate) flags: AtomicU32,
    /// Whose it is: the top-level page table.
    pub(crate) owner: AtomicU32,
    /// Place in the tree; protected by the tree's own means.
    pub(crate) left: AtomicU32,
    pub(crate) right: AtomicU32,
    pub(crate) priority: AtomicU32,
    /// Next in the list of free slots, under that list's lock.
    pub(crate) next_free: AtomicU32,
    /// Speculative: `vm_sequence`. Odd from the moment that the area leaves the tree until its slot is used anew.
    pub(crate) sequence: Sequence,
    /// Speculative: `vm_ref_count`, the tree's one included; the slot is free at 0.
    pub(crate) references: AtomicU32,
    /// Per-VMA, on a line of its own: readers would take the line of the fields away from each other.
    pub(crate) lock: CachePadded<VmaLock>,
}

/// The lock of one area.
#[derive(Debug)]
pub(crate) struct VmaLock {
    /// 0: in no tree; 1: in one, plus one for each reader; [`VmaLock::WRITER`] in addition while a writer waits or sets
    /// `sequence`.
    pub(crate) references: AtomicU32,
    /// Equal to the address space's: locked by a writer, until that one's `mmap_sem` is released.
    pub(crate) sequence: AtomicU32,
}

impl VmaLock {
    pub(crate) const WRITER: u32 = 0x4000_0000;
}

impl Vma {
    /// A free slot.
    #[expect(clippy::new_without_default, reason = "made in tables, never by default")]
    pub fn new() -> Self {
        Self {
            start: AtomicU64::new(0),
            end: AtomicU64::new(0),
            flags: AtomicU32::new(0),
            owner: AtomicU32::new(NONE),
            left: AtomicU32::new(NONE),
            right: AtomicU32::new(NONE),
            priority: AtomicU32::new(0),
            next_free: AtomicU32::new(NONE),
            sequence: Sequence::new(),
            references: AtomicU32::new(0),
            lock: CachePadded::new(VmaLock { references: AtomicU32::new(0), sequence: AtomicU32::new(0) }),
        }
    }

    // Relaxed: either `mmap_sem` or the area's lock is held, or the sequence is validated afterwards.

    pub(crate) fn start(&self) -> u64 {
        self.start.load(Relaxed)
    }

    pub(crate) fn end(&self) -> u64 {
        self.end.load(Relaxed)
    }

    pub(crate) fn flags(&self) -> u32 {
        self.flags.load(Relaxed)
    }

    pub(crate) fn covers(&self, address: u64) -> bool {
        self.start() <= address && address < self.end()
    }
}

impl Protection {
    pub(crate) fn flags(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Read => READ,
            Self::ReadWrite => READ | WRITE,
        }
    }
}
