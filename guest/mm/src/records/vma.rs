//! Areas: ranges of addresses that are mapped alike.

use haltkick_locks::CachePadded;

use super::{AtomicU32, AtomicU64, NONE, Ordering::Relaxed, Sequence};

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

// The tree of areas: a treap, whose shape is that of a random search tree whatever the order of insertions.
//
// Inserting splits a subtree at the new area's start, erasing merges two; both walk down once and keep no parents. A
// reader without a lock may see it half done: it looks at most [`MOST_STEPS`] areas down, and validates.

/// Far deeper than the tree of as many areas as there can be.
const MOST_STEPS: u32 = 128;

/// The areas' slots, and the link to the topmost one. Relaxed throughout: changed under locks, or validated.
#[derive(Clone, Copy)]
pub(crate) struct Tree<'a> {
    pub(crate) slots: &'a [Vma],
    pub(crate) root: &'a AtomicU32,
}

impl<'a> Tree<'a> {
    fn at(self, index: u32) -> &'a Vma {
        &self.slots[index as usize]
    }

    /// The first area that ends above `address`: it covers it, or is the next one above.
    pub(crate) fn find(self, address: u64) -> Option<u32> {
        let (mut node, mut best) = (self.root.load(Relaxed), None);
        for _ in 0..MOST_STEPS {
            let Some(area) = self.slots.get(node as usize) else { break };
            node = if area.end() > address {
                best = Some(node);
                if area.start() <= address {
                    break;
                }
                area.left.load(Relaxed)
            } else {
                area.right.load(Relaxed)
            };
        }
        best
    }

    /// The last area that starts below `address`.
    pub(crate) fn last_below(self, address: u64) -> Option<u32> {
        let (mut node, mut best) = (self.root.load(Relaxed), None);
        while node != NONE {
            let area = self.at(node);
            node = if area.start() < address {
                best = Some(node);
                area.right.load(Relaxed)
            } else {
                area.left.load(Relaxed)
            };
        }
        best
    }

    /// Adds the area in slot `index`, which overlaps with none.
    pub(crate) fn insert(self, index: u32) {
        let area = self.at(index);
        let (start, priority) = (area.start(), area.priority.load(Relaxed));
        let mut link = self.root;
        let mut node = link.load(Relaxed);
        while node != NONE && self.at(node).priority.load(Relaxed) >= priority {
            link = if self.at(node).start() < start { &self.at(node).right } else { &self.at(node).left };
            node = link.load(Relaxed);
        }
        let (mut low, mut high) = (&area.left, &area.right);
        while node != NONE {
            let side = self.at(node);
            if side.start() < start {
                low.store(node, Relaxed);
                low = &side.right;
                node = low.load(Relaxed);
            } else {
                high.store(node, Relaxed);
                high = &side.left;
                node = high.load(Relaxed);
            }
        }
        low.store(NONE, Relaxed);
        high.store(NONE, Relaxed);
        link.store(index, Relaxed);
    }

    /// Takes out the area in slot `index`.
    pub(crate) fn erase(self, index: u32) {
        let area = self.at(index);
        let mut link = self.root;
        while link.load(Relaxed) != index {
            let node = self.at(link.load(Relaxed));
            link = if node.start() < area.start() { &node.right } else { &node.left };
        }
        let (mut low, mut high) = (area.left.load(Relaxed), area.right.load(Relaxed));
        while low != NONE && high != NONE {
            if self.at(low).priority.load(Relaxed) >= self.at(high).priority.load(Relaxed) {
                link.store(low, Relaxed);
                link = &self.at(low).right;
                low = link.load(Relaxed);
            } else {
                link.store(high, Relaxed);
                link = &self.at(high).left;
                high = link.load(Relaxed);
            }
        }
        link.store(if low == NONE { high } else { low }, Relaxed);
    }
}

/// A priority for slot `index`: any function that has nothing to do with addresses will do (SplitMix64's, cut short).
pub(crate) fn priority(index: u32) -> u32 {
    let mixed = u64::from(index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32) as u32
}
