//! Data in memory: from a virtual address to bytes.
//!
//! ```text
//!  virtual address -> Tlb of the ring -> physical address -> Bus::touch (each line) -> Bus::load, Bus::store
//!                      | nothing there: the operation is given up (`Out::Fill`), `run` walks the page tables, and the
//!                      v instruction begins anew
//! ```
//! A translation for stores exists only where the page may be written, is marked as dirty in its table, and holds no
//! decoded instructions: so that such stores come by `run`, and code that changes is noticed.

use crate::bus::{Access, Bus, LINE, Moment, Verdict};
use crate::cpu::{Cpu, Out};
use crate::op::{Left, Op};

/// Sets of translations.
const SETS: usize = 64;
/// Translations in a set: one instruction can need four pages at once, an operand and the stack, both across a boundary. It
/// would never find them all if they put each other out.
const WAYS: usize = 4;
const FETCH_ENTRIES: usize = 64;
const EMPTY: u64 = u64::MAX;
pub(crate) const PAGE_BITS: u32 = 12;
pub(crate) const PAGE: u64 = 1 << PAGE_BITS;
/// In what [`Cpu::place`] returns: the operand goes on in the page at [`Tlb::second`].
const CROSSES: u64 = 1 << 63;

/// The translation of 4 KiB, perhaps a part of a larger page.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Number of the virtual page, if it may be read.
    read: u64,
    /// The same, if it may be written.
    write: u64,
    /// Physical address of its first byte.
    frame: u64,
    /// Bits of the page number that are those of a larger page's inside.
    inside: u32,
}

impl Entry {
    #[inline(always)]
    fn tag<const WRITE: bool>(&self) -> u64 {
        if WRITE { self.write } else { self.read }
    }
}

/// The translation of 4 KiB of code.
#[derive(Clone, Copy, Debug)]
struct FetchEntry {
    number: u64,
    /// Index in [`Code`](crate::code::Code)'s pages.
    page: u32,
    inside: u32,
}

/// Translations that a CPU has cached. One set for each ring, whose rights differ.
#[derive(Clone, Debug)]
pub(crate) struct Tlb {
    /// Of each set the one that was used last first.
    data: [[[Entry; WAYS]; SETS]; 2],
    fetch: [[FetchEntry; FETCH_ENTRIES]; 2],
    /// The second page of an operand that lies in two.
    second: u64,
}

impl Tlb {
    pub(crate) fn new() -> Self {
        Self {
            data: [[[Entry { read: EMPTY, write: EMPTY, frame: 0, inside: 0 }; WAYS]; SETS]; 2],
            fetch: [[FetchEntry { number: EMPTY, page: 0, inside: 0 }; FETCH_ENTRIES]; 2],
            second: 0,
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::new();
    }

    pub(crate) fn drop_page(&mut self, address: u64) {
        let number = address >> PAGE_BITS;
        let same = |cached: u64, inside: u32| (cached ^ number) & !u64::from(inside) == 0;
        for entry in self.data.iter_mut().flatten().flatten().filter(|entry| same(entry.read, entry.inside)) {
            (entry.read, entry.write) = (EMPTY, EMPTY);
        }
        for entry in self.fetch.iter_mut().flatten().filter(|entry| same(entry.number, entry.inside)) {
            entry.number = EMPTY;
        }
    }

    /// Drops the right to store, everywhere.
    pub(crate) fn drop_writes(&mut self) {
        for entry in self.data.iter_mut().flatten().flatten() {
            entry.write = EMPTY;
        }
    }

    pub(crate) fn insert(&mut self, ring: u8, address: u64, frame: u64, writable: bool, inside: u32) {
        let number = address >> PAGE_BITS;
        let write = if writable { number } else { EMPTY };
        let ways = &mut self.data[of(ring)][set(number)];
        // The one that is replaced: the same page with less rights, or the one that was used least recently.
        let at = ways.iter().position(|entry| entry.read == number).unwrap_or(WAYS - 1);
        ways[at] = Entry { read: number, write, frame, inside };
        ways[..=at].rotate_right(1);
    }

    pub(crate) fn insert_code(&mut self, ring: u8, address: u64, page: u32, inside: u32) {
        let number = address >> PAGE_BITS;
        self.fetch[of(ring)][number as usize % FETCH_ENTRIES] = FetchEntry { number, page, inside };
    }

    /// The physical address, if it is cached.
    #[inline(always)]
    pub(crate) fn find<const WRITE: bool>(&mut self, ring: u8, address: u64) -> Option<u64> {
        let number = address >> PAGE_BITS;
        let ways = &mut self.data[of(ring)][set(number)];
        if ways[0].tag::<WRITE>() != number {
            let at = ways[1..].iter().position(|entry| entry.tag::<WRITE>() == number)? + 1;
            ways[..=at].rotate_right(1);
        }
        Some(ways[0].frame | address & (PAGE - 1))
    }

    /// The page of code, if it is cached.
    #[inline(always)]
    pub(crate) fn find_code(&self, ring: u8, address: u64) -> Option<u32> {
        let number = address >> PAGE_BITS;
        let entry = &self.fetch[of(ring)][number as usize % FETCH_ENTRIES];
        (entry.number == number).then_some(entry.page)
    }
}

/// Ring 0 or ring 3.
#[inline(always)]
fn of(ring: u8) -> usize {
    usize::from(ring & 1)
}

/// The set of a page.
#[inline(always)]
fn set(number: u64) -> usize {
    number as usize % SETS
}

impl Cpu {
    /// How far it is, at `op`.
    #[inline(always)]
    pub(crate) fn moment<B>(&self, op: &Op<B>) -> Moment {
        Moment { cpu: self.id, instructions: self.retired + u64::from(op.position) }
    }

    #[cold]
    pub(crate) fn leave(&mut self, out: Out) -> Left {
        self.out = out;
        Left
    }

    /// Asks for `bytes` at `address`, all lines of them, and says where they lie.
    #[inline(always)]
    fn place<B: Bus, const WRITE: bool>(
        &mut self,
        bus: &mut B,
        op: &Op<B>,
        address: u64,
        bytes: u64,
        access: Access,
    ) -> Result<u64, Left> {
        let Some(physical) = self.tlb.find::<WRITE>(self.ring, address) else {
            return Err(self.leave(Out::Fill { address, access }));
        };
        if address % LINE + bytes > LINE {
            return self.place_in_two_lines::<B, WRITE>(bus, op, address, bytes, access);
        }
        match bus.touch(self.moment(op), physical & !(LINE - 1), access) {
            Verdict::Go => Ok(physical),
            Verdict::Stop => Err(self.leave(Out::Stopped)),
        }
    }

    #[cold]
    fn place_in_two_lines<B: Bus, const WRITE: bool>(
        &mut self,
        bus: &mut B,
        op: &Op<B>,
        address: u64,
        bytes: u64,
        access: Access,
    ) -> Result<u64, Left> {
        let last = address.wrapping_add(bytes - 1);
        let mut physical = [0; 2];
        for (physical, address) in physical.iter_mut().zip([address, last]) {
            *physical = match self.tlb.find::<WRITE>(self.ring, address) {
                Some(physical) => physical,
                // A fault names the first byte that faults: here the first one of the second page.
                None if address == last => {
                    let address = last & !(PAGE - 1);
                    return Err(self.leave(Out::Fill { address, access }));
                }
                None => return Err(self.leave(Out::Fill { address, access })),
            };
        }
        for physical in physical {
            if bus.touch(self.moment(op), physical & !(LINE - 1), access) == Verdict::Stop {
                return Err(self.leave(Out::Stopped));
            }
        }
        if address >> PAGE_BITS == last >> PAGE_BITS {
            return Ok(physical[0]);
        }
        self.tlb.second = physical[1] & !(PAGE - 1);
        Ok(physical[0] | CROSSES)
    }

    /// Reads what [`Self::place`] has found.
    #[inline(always)]
    pub(crate) fn read_at<B: Bus, const W: u32>(&self, bus: &mut B, at: u64) -> u64 {
        if at & CROSSES != 0 {
            return self.read_across(bus, at, W / 8);
        }
        bus.load(at, W as usize / 8)
    }

    /// Writes there.
    #[inline(always)]
    pub(crate) fn write_at<B: Bus, const W: u32>(&self, bus: &mut B, at: u64, value: u64) {
        if at & CROSSES != 0 {
            return self.write_across(bus, at, W / 8, value);
        }
        bus.store(at, W as usize / 8, value);
    }

    /// Physical address of byte `byte` of an operand that lies in two pages.
    fn byte_across(&self, at: u64, byte: u32) -> u64 {
        let address = (at & !CROSSES) + u64::from(byte);
        let left = PAGE - (at & (PAGE - 1));
        if u64::from(byte) < left { address } else { self.tlb.second + (u64::from(byte) - left) }
    }

    #[cold]
    fn read_across<B: Bus>(&self, bus: &mut B, at: u64, bytes: u32) -> u64 {
        (0..bytes).map(|byte| bus.load(self.byte_across(at, byte), 1) << (byte * 8)).sum()
    }

    #[cold]
    fn write_across<B: Bus>(&self, bus: &mut B, at: u64, bytes: u32, value: u64) {
        for byte in 0..bytes {
            bus.store(self.byte_across(at, byte), 1, value >> (byte * 8) & 0xff);
        }
    }

    /// A load of `W` bits.
    #[inline(always)]
    pub(crate) fn load<B: Bus, const W: u32>(
        &mut self,
        bus: &mut B,
        op: &Op<B>,
        address: u64,
    ) -> Result<u64, Left> {
        let at = self.place::<B, false>(bus, op, address, u64::from(W / 8), Access::Read)?;
        Ok(self.read_at::<B, W>(bus, at))
    }

    /// Where a store of `W` bits would go, granted. For instructions that must not have done anything if it is not.
    #[inline(always)]
    pub(crate) fn place_to_store<B: Bus, const W: u32>(
        &mut self,
        bus: &mut B,
        op: &Op<B>,
        address: u64,
    ) -> Result<u64, Left> {
        self.place::<B, true>(bus, op, address, u64::from(W / 8), Access::Write)
    }

    /// A store of `W` bits.
    #[inline(always)]
    pub(crate) fn store<B: Bus, const W: u32>(
        &mut self,
        bus: &mut B,
        op: &Op<B>,
        address: u64,
        value: u64,
    ) -> Result<(), Left> {
        let at = self.place_to_store::<B, W>(bus, op, address)?;
        self.write_at::<B, W>(bus, at, value);
        Ok(())
    }

    /// Where `W` bits lie that are to be read and written, granted.
    #[inline(always)]
    pub(crate) fn place_to_modify<B: Bus, const W: u32, const LOCK: bool>(
        &mut self,
        bus: &mut B,
        op: &Op<B>,
        address: u64,
    ) -> Result<u64, Left> {
        let access = if LOCK { Access::Atomic } else { Access::Modify };
        self.place::<B, true>(bus, op, address, u64::from(W / 8), access)
    }
}
