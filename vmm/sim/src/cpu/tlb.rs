//! Translations of addresses that a CPU has cached.
//!
//! A translation for stores exists only where the page may be written, is marked as dirty in its table, and holds no
//! decoded instructions: so that such stores come by `run`, and code that changes is noticed.

const SETS: usize = 64;
/// Translations in a set: one instruction can need four pages at once, an operand and the stack, both across a boundary. It
/// would never find them all if they put each other out.
const WAYS: usize = 4;
const FETCH_ENTRIES: usize = 64;
const EMPTY: u64 = u64::MAX;
pub(crate) const PAGE_BITS: u32 = 12;
pub(crate) const PAGE: u64 = 1 << PAGE_BITS;

/// The translation of 4 KiB, perhaps a part of a larger page. Two words: a set is a line of the host's cache.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Number of the virtual page, times two; plus one if it may be written.
    tag: u64,
    /// Physical address of its first byte, and in the lowest bits how many bits of the page number are those of a larger page's
    /// inside.
    frame: u64,
}

impl Entry {
    const EMPTY: Self = Self { tag: EMPTY, frame: 0 };

    fn new(number: u64, frame: u64, writable: bool, inside: u32) -> Self {
        Self { tag: number << 1 | u64::from(writable), frame: frame | u64::from(inside.count_ones()) }
    }

    /// Whether it is for this page, and stores if they are asked for.
    #[inline(always)]
    fn is_for<const WRITE: bool>(&self, number: u64) -> bool {
        if WRITE { self.tag == number << 1 | 1 } else { self.tag | 1 == number << 1 | 1 }
    }

    #[inline(always)]
    fn frame(&self) -> u64 {
        self.frame & !(PAGE - 1)
    }
}

/// Translations that a CPU has cached. One set for each ring, whose rights differ.
#[derive(Clone, Debug)]
pub(crate) struct Tlb {
    /// Sets of each ring; in a set, the entry that was used last comes first.
    data: [[[Entry; WAYS]; SETS]; 2],
    /// Entries of code, with an index in [`Code`](crate::cpu::code::Code)'s pages instead of the number of a frame.
    fetch: [[Entry; FETCH_ENTRIES]; 2],
    /// The second page of an operand that lies in two.
    pub(crate) second: u64,
    /// How often some of code have been dropped.
    pub(crate) changes: u32,
}

impl Default for Tlb {
    fn default() -> Self {
        Self {
            data: [[[Entry::EMPTY; WAYS]; SETS]; 2],
            fetch: [[Entry::EMPTY; FETCH_ENTRIES]; 2],
            second: 0,
            changes: 0,
        }
    }
}

impl Tlb {
    pub(crate) fn clear(&mut self) {
        *self = Self { changes: self.changes.wrapping_add(1), ..Self::default() };
    }

    pub(crate) fn drop_page(&mut self, address: u64) {
        self.changes = self.changes.wrapping_add(1);
        let number = address >> PAGE_BITS;
        for entry in self.data.as_flattened_mut().iter_mut().flatten().chain(self.fetch.as_flattened_mut()) {
            let inside: u64 = (1 << (entry.frame & (PAGE - 1))) - 1;
            if (entry.tag >> 1 ^ number) & !inside == 0 {
                *entry = Entry::EMPTY;
            }
        }
    }

    /// Drops the right to store, everywhere.
    pub(crate) fn drop_writes(&mut self) {
        let entries = self.data.iter_mut().flatten().flatten();
        entries.filter(|entry| entry.tag != EMPTY).for_each(|entry| entry.tag &= !1);
    }

    /// Drops where code is found.
    pub(crate) fn drop_code(&mut self) {
        self.fetch = [[Entry::EMPTY; FETCH_ENTRIES]; 2];
    }

    pub(crate) fn insert(&mut self, ring: u8, address: u64, frame: u64, writable: bool, inside: u32) {
        let number = address >> PAGE_BITS;
        let ways = &mut self.data[of(ring)][set(number)];
        // The one that is replaced: the same page with less rights, or the one that was used least recently.
        let at = ways.iter().position(|entry| entry.is_for::<false>(number)).unwrap_or(WAYS - 1);
        ways[at] = Entry::new(number, frame, writable, inside);
        ways[..=at].rotate_right(1);
    }

    pub(crate) fn insert_code(&mut self, ring: u8, address: u64, page: u32, inside: u32) {
        let number = address >> PAGE_BITS;
        self.fetch[of(ring)][number as usize % FETCH_ENTRIES] =
            Entry::new(number, u64::from(page) << PAGE_BITS, false, inside);
    }

    /// The physical address, if it is cached.
    #[inline(always)]
    pub(crate) fn find<const WRITE: bool>(&mut self, ring: u8, address: u64) -> Option<u64> {
        let number = address >> PAGE_BITS;
        let ways = &mut self.data[of(ring)][set(number)];
        if !ways[0].is_for::<WRITE>(number) {
            let at = ways[1..].iter().position(|entry| entry.is_for::<WRITE>(number))? + 1;
            ways[..=at].rotate_right(1);
        }
        Some(ways[0].frame() | address & (PAGE - 1))
    }

    #[inline(always)]
    pub(crate) fn find_code(&self, ring: u8, address: u64) -> Option<u32> {
        let number = address >> PAGE_BITS;
        let entry = &self.fetch[of(ring)][number as usize % FETCH_ENTRIES];
        entry.is_for::<false>(number).then_some((entry.frame >> PAGE_BITS) as u32)
    }
}

/// Ring 0 or ring 3.
#[inline(always)]
fn of(ring: u8) -> usize {
    usize::from(ring & 1)
}

#[inline(always)]
fn set(number: u64) -> usize {
    number as usize % SETS
}
