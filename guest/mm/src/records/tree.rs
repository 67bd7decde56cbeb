//! The tree of areas: a treap, whose shape is that of a random search tree whatever the order of insertions.
//!
//! Inserting splits a subtree at the new area's start, erasing merges two; both walk down once and keep no parents. A
//! reader without a lock may see it half done: it looks at most [`MOST_STEPS`] areas down, and validates.

use super::NONE;
use super::sync::{AtomicU32, Ordering::Relaxed};
use super::vma::Vma;

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
