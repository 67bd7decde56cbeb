//! Page tables in guest memory: four levels, pages of 4 KiB, 2 MiB and 1 GiB (Intel SDM vol. 3, 4.5).

use crate::cpu::bus::{Access, Bus, Fault, LINE, Refused};
use crate::cpu::state::{Cpu, Out};

const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
/// Bit in entries of the second and third level: a page, not a table.
const LARGE: u64 = 1 << 7;
const NO_EXECUTE: u64 = 1 << 63;
const FRAME: u64 = 0x000f_ffff_ffff_f000;

const CR0_WRITE_PROTECT: u64 = 1 << 16;
const EFER_NO_EXECUTE: u64 = 1 << 11;

// Bits of the error code.
const WAS_PRESENT: u32 = 1;
const WAS_WRITE: u32 = 1 << 1;
const WAS_USER: u32 = 1 << 2;
const WAS_RESERVED: u32 = 1 << 3;
const WAS_FETCH: u32 = 1 << 4;

/// Result of a walk for one page of 4 KiB.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Translation {
    /// Physical address of its first byte, in the machine's memory.
    pub(crate) frame: u64,
    /// It may be written without another walk.
    pub(crate) writable: bool,
    /// Bits of the page number that lie inside of a larger page.
    pub(crate) inside: u32,
}

impl Cpu {
    /// Walks the tables for an access at `address` from `ring`; `None`: it fetches code. What a processor marks as accessed or dirty is
    /// marked.
    pub(crate) fn walk<B: Bus>(
        &mut self,
        bus: &mut B,
        address: u64,
        access: Option<Access>,
        ring: u8,
    ) -> Result<Translation, Out> {
        if (address << 16) as i64 >> 16 != address as i64 {
            return Err(Out::Fault(Fault::protection(0)));
        }
        let mut table = self.system.cr3 & FRAME;
        let mut rights = WRITABLE | USER;
        let mut executable = true;
        for level in (0..4_u32).rev() {
            let at = self.partition.place(table + (address >> (12 + 9 * level) & 0x1ff) * 8);
            let granted = bus.touch(self.instructions, at & !(LINE - 1), Access::Walk);
            granted.map_err(|Refused| Out::Stopped)?;
            let entry = bus.load(at, 8);
            if entry & PRESENT == 0 {
                return Err(self.page_fault(address, access, ring, 0));
            }
            let no_execute = self.system.efer & EFER_NO_EXECUTE != 0 && entry & NO_EXECUTE != 0;
            rights &= entry;
            executable &= !no_execute;
            let is_page = level == 0 || level < 3 && entry & LARGE != 0;
            let inside = if is_page { (1_u64 << (9 * level)) - 1 } else { 0 };
            // Bits of the frame that a large page must not have (but for PAT), and bit 7 of the top level.
            let reserved = if level == 3 { LARGE } else { (inside << 12) & !(1 << 12) };
            if entry & reserved != 0 {
                return Err(self.page_fault(address, access, ring, WAS_PRESENT | WAS_RESERVED));
            }
            if !is_page {
                self.mark(bus, at, entry, ACCESSED)?;
                table = entry & FRAME;
                continue;
            }
            if !self.permits(rights, executable, access, ring) {
                return Err(self.page_fault(address, access, ring, WAS_PRESENT));
            }
            let marks = if access.is_some_and(Access::writes) { ACCESSED | DIRTY } else { ACCESSED };
            self.mark(bus, at, entry, marks)?;
            let dirty = (entry | marks) & DIRTY != 0;
            let writable = dirty && self.permits(rights, true, Some(Access::Write), ring);
            let within = address & (inside << 12);
            return Ok(Translation {
                frame: self.partition.place(entry & FRAME & !(inside << 12) | within),
                writable,
                inside: inside as u32,
            });
        }
        unreachable!("the lowest level holds pages")
    }

    fn permits(&self, rights: u64, executable: bool, access: Option<Access>, ring: u8) -> bool {
        let user = ring == 3;
        let reachable = !user || rights & USER != 0;
        let protected = user || self.system.cr0 & CR0_WRITE_PROTECT != 0;
        reachable
            && match access {
                Some(access) => !access.writes() || rights & WRITABLE != 0 || !protected,
                None => executable,
            }
    }

    /// Marks an entry, as a locked operation does it: no store of anybody's to it gets lost.
    fn mark<B: Bus>(&self, bus: &mut B, at: u64, entry: u64, marks: u64) -> Result<(), Out> {
        if entry & marks == marks {
            return Ok(());
        }
        let granted = bus.touch(self.instructions, at & !(LINE - 1), Access::Atomic);
        granted.map_err(|Refused| Out::Stopped)?;
        bus.store(at, 8, entry | marks);
        Ok(())
    }

    fn page_fault(&mut self, address: u64, access: Option<Access>, ring: u8, error: u32) -> Out {
        self.system.cr2 = address;
        let kind = match access {
            Some(access) if access.writes() => WAS_WRITE,
            // Only told apart where pages can be closed to fetches.
            None if self.system.efer & EFER_NO_EXECUTE != 0 => WAS_FETCH,
            _ => 0,
        };
        let user = if ring == 3 { WAS_USER } else { 0 };
        Out::Fault(Fault { vector: 14, error: Some(error | kind | user) })
    }
}
