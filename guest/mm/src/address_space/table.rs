//! Page tables in the format of x86-64 (SDM vol. 3, 4.5): four levels, changed while the CPU walks them.
//!
//! Locks that protect changes:
//! - an entry that refers to a page table: `table_lock`;
//! - an entry that refers to a page: the page lock of its table. The CPU sets accessed and dirty at any time,
//!   so that an entry is taken by exchange.

use haltkick_locks::{Lock as _, mutant::mutant};

use super::Space;
use crate::contract::{Error, Machine};
use crate::records::vma::{READ, WRITE};
use crate::records::{AtomicU64, List, Ordering::*};

/// Bits of an address that choose an entry of one level. A model is small so that it can be explored, and under Miri a table of
/// 512 entries takes as long as a test.
const INDEX_BITS: u32 = if cfg!(shuttle) {
    2
} else if cfg!(miri) {
    5
} else {
    9
};
const PAGE_BITS: u32 = 12;
const LEVELS: u32 = 4;

/// Entries of a page table.
pub const ENTRIES: usize = 1 << INDEX_BITS;
/// Bytes of a page.
pub const PAGE_BYTES: u64 = 1 << PAGE_BITS;
/// First address of the user's: entry 0 of the top level is the kernel's.
pub const USER_START: u64 = span(LEVELS - 1);
/// End of the user's addresses: half of the top level, beyond which x86-64 wants sign-extended addresses.
pub const USER_END: u64 = span(LEVELS - 1) * (ENTRIES as u64 / 2);

const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
/// Ours, in an entry that is not present: it refers to a page all the same, which may not be accessed now.
const KEPT: u64 = 1 << 9;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
const TABLE: u64 = PRESENT | WRITABLE | USER;

/// Bytes that one entry at `level` maps, 0 being the lowest.
pub(crate) const fn span(level: u32) -> u64 {
    1 << (PAGE_BITS + level * INDEX_BITS)
}

fn index(address: u64, level: u32) -> usize {
    (address >> (PAGE_BITS + level * INDEX_BITS)) as usize % ENTRIES
}

/// Place of the entry for an address.
#[derive(Clone, Copy)]
pub(crate) struct Leaf {
    /// Page that is the table.
    pub(crate) table: u32,
    pub(crate) index: usize,
    /// The entry above, which refers to the table.
    parent: (u32, usize),
    /// Value that the entry had.
    pmd: u64,
}

impl<'a, M: Machine> Space<'a, M> {
    pub(crate) fn entry(self, leaf: Leaf) -> &'a AtomicU64 {
        self.memory.machine.entry(leaf.table, leaf.index)
    }

    /// The page that an entry refers to; `None` if it refers to nothing, or to what is no page of ours, as what a late
    /// walker takes for an entry may do.
    pub(crate) fn page_of(self, entry: u64) -> Option<u32> {
        if entry & (PRESENT | KEPT) == 0 {
            return None;
        }
        let page = (entry & ADDRESS).checked_sub(self.memory.machine.base())? / PAGE_BYTES;
        (page < self.memory.records.pages.len() as u64).then_some(page as u32)
    }

    fn entry_for(self, page: u32, bits: u64) -> u64 {
        (self.memory.machine.base() + u64::from(page) * PAGE_BYTES) | bits
    }

    /// The entry that maps `page` as an area with `flags` wants it.
    pub(crate) fn page_entry(self, page: u32, flags: u32) -> u64 {
        self.entry_for(page, access_bits(flags))
    }

    /// The table that holds the entries of `level` for `address`, if there is one.
    ///
    /// Acquire: pairs with the release in [`Space::make_leaf`]; a table that is found is full of zeros.
    fn find_table(self, address: u64, level: u32) -> Option<u32> {
        let mut table = self.mm.root.load(Relaxed);
        for above in (level + 1..LEVELS).rev() {
            let entry = self.memory.machine.entry(table, index(address, above)).load(Acquire);
            table = self.page_of(entry).filter(|_| entry & PRESENT != 0)?;
        }
        Some(table)
    }

    /// Walks down without making anything.
    pub(crate) fn find_leaf(self, address: u64) -> Option<Leaf> {
        let parent = (self.find_table(address, 1)?, index(address, 1));
        let pmd = self.memory.machine.entry(parent.0, parent.1).load(Acquire);
        let table = self.page_of(pmd).filter(|_| pmd & PRESENT != 0)?;
        Some(Leaf { table, index: index(address, 0), parent, pmd })
    }

    /// Whether the table is still where it was found.
    pub(crate) fn is_in_place(self, leaf: Leaf) -> bool {
        // Accessed is the CPU's to set. Relaxed: compared, not followed.
        let accessed = 1 << 5;
        let now = self.memory.machine.entry(leaf.parent.0, leaf.parent.1).load(Relaxed);
        now | accessed == leaf.pmd | accessed
    }

    /// Walks down and makes the tables that are missing.
    pub(crate) fn make_leaf(self, address: u64) -> Result<Leaf, Error> {
        let mut table = self.mm.root.load(Relaxed);
        for level in (1..LEVELS).rev() {
            let slot = self.memory.machine.entry(table, index(address, level));
            if slot.load(Acquire) & PRESENT == 0 {
                let new = self.memory.allocate().ok_or(Error::OutOfMemory)?;
                let is_first = self.memory.locked(&self.mm.table_lock, || {
                    let is_first = slot.load(Relaxed) & PRESENT == 0;
                    if is_first {
                        // Release: pairs with the acquires of the walks.
                        slot.store(self.entry_for(new, TABLE), Release);
                    }
                    is_first
                });
                if !is_first {
                    self.memory.free(new);
                }
            }
            let entry = slot.load(Acquire);
            let below = self.page_of(entry).expect("a table stays while an area that it maps is locked");
            if level == 1 {
                let parent = (table, index(address, 1));
                return Ok(Leaf { table: below, index: index(address, 0), parent, pmd: entry });
            }
            table = below;
        }
        unreachable!("the loop ends at level 1")
    }

    /// Calls `change` with every entry of a range, where there is a leaf table, with the page lock of that held.
    fn for_each_entry(self, from: u64, to: u64, mut change: impl FnMut(&AtomicU64)) {
        let mut address = from;
        while address < to {
            let end = ((address / span(1) + 1) * span(1)).min(to);
            if let Some(leaf) = self.find_leaf(address) {
                let (lock, spins) = (&self.memory.page(leaf.table).lock, self.memory.machine.spins());
                mutant!("mm-no-ptl": lock.lock(spins) => ());
                let entries = ((end - address) / PAGE_BYTES) as usize;
                for index in leaf.index..leaf.index + entries {
                    change(self.memory.machine.entry(leaf.table, index));
                }
                lock.unlock(spins, ());
            }
            address = end;
        }
    }

    /// Takes the pages out of a range. They are not to be freed before an invalidation.
    pub(crate) fn take_pages(self, from: u64, to: u64) -> List {
        let pages = List::new();
        self.for_each_entry(from, to, |slot| {
            // Most are empty, and an exchange is expensive. Filling one needs the page lock.
            if slot.load(Relaxed) != 0
                && let Some(page) = self.page_of(slot.swap(0, Relaxed))
            {
                self.memory.push(&pages, page);
            }
        });
        pages
    }

    /// Gives all pages of a range the access that `flags` say. Whether there were any.
    pub(crate) fn protect_pages(self, from: u64, to: u64, flags: u32) -> bool {
        let mut any = false;
        self.for_each_entry(from, to, |slot| {
            let changed = slot.fetch_update(Relaxed, Relaxed, |entry| {
                let kept = entry & !(PRESENT | WRITABLE | USER | KEPT);
                (entry != 0).then_some(kept | access_bits(flags))
            });
            any |= changed.is_ok();
        });
        any
    }

    /// Moves the pages of a range elsewhere, entry by entry. Whether there were any.
    pub(crate) fn move_pages(self, from: u64, to: u64, bytes: u64) -> Result<bool, Error> {
        let mut any = false;
        for offset in (0..bytes).step_by(PAGE_BYTES as usize) {
            let Some(source) = self.find_leaf(from + offset) else { continue };
            // Without the lock: others may only add an entry, and none does while both areas are marked.
            if self.entry(source).load(Relaxed) == 0 {
                continue;
            }
            let target = self.make_leaf(to + offset)?;
            // One lock at a time: the entry is nowhere in between, as it is during a fault.
            let swap = |leaf: Leaf, entry| {
                let lock = &self.memory.page(leaf.table).lock;
                self.memory.locked(lock, || self.entry(leaf).swap(entry, Relaxed))
            };
            let overwritten = swap(target, swap(source, 0));
            debug_assert!(
                overwritten == 0,
                "a page was installed where {from:#x} is being moved to, and is lost"
            );
            any = true;
        }
        Ok(any)
    }

    /// Takes out the page tables of a range that nothing between `floor` and `ceiling` needs. They are not to
    /// be freed before an invalidation.
    pub(crate) fn take_tables(self, from: u64, to: u64, floor: u64, ceiling: u64) -> List {
        let tables = List::new();
        for level in 1..LEVELS {
            let bytes = span(level);
            let mut start = from / bytes * bytes;
            while start < to {
                if start >= floor && start + bytes <= ceiling {
                    self.take_table(start, level, &tables);
                }
                start += bytes;
            }
        }
        tables
    }

    /// Takes out the table that the entry of `level` for `address` refers to.
    fn take_table(self, address: u64, level: u32, tables: &List) {
        let Some(parent) = self.find_table(address, level) else { return };
        let slot = self.memory.machine.entry(parent, index(address, level));
        let Some(table) = self.page_of(slot.load(Relaxed)) else { return };
        // Without its page lock: a speculative fault that still gets that one finds its sequence changed, since
        // `take_pages` has held it after the mark.
        self.memory.locked(&self.mm.table_lock, || mutant!("mm-keep-table": slot.store(0, Relaxed) => ()));
        self.memory.push(tables, table);
    }
}

fn access_bits(flags: u32) -> u64 {
    if flags & READ == 0 {
        return KEPT;
    }
    PRESENT | USER | if flags & WRITE != 0 { WRITABLE } else { 0 }
}
