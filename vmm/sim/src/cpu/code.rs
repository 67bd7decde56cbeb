//! Decoded instructions: blocks that are entered at their first one only, found by the physical address of that.
//!
//! ```text
//!  virtual address -> Tlb (fetch) -> page of code -> block that begins at this offset -> operations
//! ```
//! One [`Code`] serves all CPUs of a machine. A block knows the virtual address that it was decoded for, since branches
//! within it are absolute: code that is mapped twice is decoded again when it is entered by its other address.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use crate::cpu::bus::{Bus, LINE};
use crate::cpu::op::{Effect, Op};
use crate::cpu::state::Cpu;
use crate::cpu::tlb::PAGE;

/// Most blocks: several times those of a guest that leaves its code alone. One that rewrites its code would add blocks forever.
const MOST_BLOCKS: usize = 1 << 15;

/// Most pages, likewise: a guest may have its code anywhere, also where there is no memory.
const MOST_PAGES: usize = 1 << 12;

pub(crate) const BLOCK_OPS: usize = 64;

/// Most bytes that decoded instructions take.
pub(crate) const fn most_bytes<B>() -> usize {
    let of_op = size_of::<Op<B>>() + size_of::<Effect>();
    let of_page = size_of::<Page>() + PAGE as usize * size_of::<u32>();
    MOST_BLOCKS * (size_of::<Block<B>>() + BLOCK_OPS * of_op) + MOST_PAGES * of_page
}

/// A block that another one of its page went on to: the address of its first instruction, and its number.
pub(crate) type Next = (u64, u32);

pub(crate) struct Block<B> {
    pub(crate) ops: Box<[Op<B>]>,
    pub(crate) effects: Box<[Effect]>,
    /// Virtual address of the first byte, and of the byte behind the last one.
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Physical address of the first byte.
    pub(crate) physical: u64,
    /// Physical address of the second page, if the only instruction ends in another page.
    pub(crate) second: Option<u64>,
    pub(crate) watched: bool,
    /// The blocks in the same page that it went on to last: the one behind it, and another.
    pub(crate) next: [Cell<Option<Next>>; 2],
}

/// A page that holds decoded instructions.
struct Page {
    frame: u64,
    /// Lines that they lie in.
    lines: u64,
    /// The block that begins at each byte, plus one; 0: none.
    starts: Box<[u32]>,
}

/// All code of a machine, as far as it has been executed.
pub struct Code<B> {
    blocks: Vec<Block<B>>,
    pages: Vec<Page>,
    by_frame: BTreeMap<u64, u32>,
    watched: BTreeSet<u64>,
    /// Grows with the number of pages: CPUs that know fewer may hold translations for stores to the newer ones.
    pub(crate) generation: u64,
    /// The generation that began without pages: what CPUs hold of older ones leads to none.
    pub(crate) first_generation: u64,
}

impl<B: Bus> Code<B> {
    /// Begins without code. CPUs leave with [`Event::Reached`](crate::Event::Reached) before they execute an instruction at one of the
    /// addresses in `watched`: the driver has them go on elsewhere.
    #[must_use]
    pub fn new(watched: BTreeSet<u64>) -> Self {
        let (blocks, pages, by_frame) = (Vec::new(), Vec::new(), BTreeMap::new());
        Self { blocks, pages, by_frame, watched, generation: 0, first_generation: 0 }
    }

    /// Number of blocks, and of pages with code, that are kept.
    #[must_use]
    pub fn kept(&self) -> (usize, usize) {
        (self.blocks.len(), self.pages.len())
    }

    pub(crate) fn is_watched(&self, address: u64) -> bool {
        self.watched.contains(&address)
    }

    /// The block that begins where `cpu` stands, if it is known and its address translated.
    #[inline(always)]
    pub(crate) fn find(&self, cpu: &Cpu) -> Option<&Block<B>> {
        let page = cpu.tlb.find_code(cpu.ring, cpu.rip)?;
        let number = self.pages[page as usize].starts[(cpu.rip & (PAGE - 1)) as usize];
        let block = self.blocks.get((number as usize).wrapping_sub(1))?;
        (block.start == cpu.rip && block.second.is_none_or(|_| self.still_crosses(block, cpu)))
            .then_some(block)
    }

    /// [`Self::find`] for a CPU that comes from `block`, with the translations by which that was found. A page is forgotten as a whole:
    /// a block that is still entered leads to none that is not.
    #[inline(always)]
    pub(crate) fn find_next(&self, block: &Block<B>, cpu: &Cpu) -> Option<&Block<B>> {
        let next = &block.next[usize::from(cpu.rip != block.end)];
        if let Some((_, number)) = next.get().filter(|(start, _)| *start == cpu.rip) {
            return self.blocks.get(number as usize);
        }
        let found = self.find(cpu)?;
        if (cpu.rip ^ block.start) & !(PAGE - 1) == 0 && found.second.is_none() {
            let page = cpu.tlb.find_code(cpu.ring, cpu.rip)?;
            let number = self.pages[page as usize].starts[(cpu.rip & (PAGE - 1)) as usize] - 1;
            next.set(Some((cpu.rip, number)));
        }
        Some(found)
    }

    /// Whether the second page of a block is still the one that it was decoded from.
    #[cold]
    fn still_crosses(&self, block: &Block<B>, cpu: &Cpu) -> bool {
        let page = cpu.tlb.find_code(cpu.ring, block.end);
        page.is_some_and(|page| Some(self.pages[page as usize].frame) == block.second)
    }

    /// Sees to it that there is room for the two pages that an instruction may lie in.
    pub(crate) fn make_room(&mut self) {
        if self.pages.len() + 2 > MOST_PAGES {
            self.blocks.clear();
            self.pages.clear();
            self.by_frame.clear();
            self.generation += 1;
            self.first_generation = self.generation;
        }
    }

    /// The page of `frame`, new if it must be.
    pub(crate) fn page_of(&mut self, frame: u64) -> u32 {
        if let Some(page) = self.by_frame.get(&frame) {
            return *page;
        }
        let page = self.pages.len() as u32;
        self.pages.push(Page { frame, lines: 0, starts: vec![0; PAGE as usize].into() });
        self.by_frame.insert(frame, page);
        self.generation += 1;
        page
    }

    pub(crate) fn add(&mut self, block: Block<B>) {
        if self.blocks.len() >= MOST_BLOCKS {
            (0..self.pages.len()).for_each(|page| self.forget(page));
            self.blocks.clear();
        }
        let bytes = block.end.wrapping_sub(block.start);
        for byte in 0..bytes {
            let first_page = (block.physical & (PAGE - 1)) + byte < PAGE;
            let (frame, at) = match block.second {
                Some(second) if !first_page => (second, (block.physical + byte) & (PAGE - 1)),
                _ => (block.physical & !(PAGE - 1), (block.physical & (PAGE - 1)) + byte),
            };
            let page = self.page_of(frame) as usize;
            self.pages[page].lines |= 1 << (at / LINE);
        }
        let page = self.page_of(block.physical & !(PAGE - 1)) as usize;
        self.blocks.push(block);
        let last = self.blocks.last().expect("just added");
        self.pages[page].starts[(last.physical & (PAGE - 1)) as usize] = self.blocks.len() as u32;
    }

    /// Whether stores to `frame` must be looked at; those to decoded instructions, at `physical` or in the line behind it, make
    /// the page forgotten.
    pub(crate) fn store_to(&mut self, physical: u64) -> bool {
        let Some(page) = self.by_frame.get(&(physical & !(PAGE - 1))).copied() else { return false };
        let line = (physical & (PAGE - 1)) / LINE;
        if self.pages[page as usize].lines >> line & 3 != 0 {
            self.forget(page as usize);
        }
        true
    }

    /// Whether `frame` holds decoded instructions.
    pub(crate) fn holds(&self, frame: u64) -> bool {
        self.by_frame.contains_key(&frame)
    }

    pub(crate) fn frame(&self, page: u32) -> u64 {
        self.pages[page as usize].frame
    }

    /// The virtual address of the second page that the block at `cpu` needs, if one is known and it has one.
    pub(crate) fn second_page(&self, cpu: &Cpu, page: u32) -> Option<u64> {
        let number = self.pages[page as usize].starts[(cpu.rip & (PAGE - 1)) as usize];
        let block = self.blocks.get((number as usize).wrapping_sub(1))?;
        block.second.map(|_| block.end & !(PAGE - 1))
    }

    fn forget(&mut self, page: usize) {
        self.pages[page].starts.fill(0);
        self.pages[page].lines = 0;
    }
}
