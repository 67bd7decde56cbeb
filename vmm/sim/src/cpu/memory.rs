//! Data in memory: from a virtual address to bytes.
//!
//! ```text
//!  virtual address -> Tlb of the ring -> physical address -> Bus::touch (each line) -> Bus::load, Bus::store
//!                      | nothing there: the operation is given up (`Out::Fill`), `run` walks the page tables, and the
//!                      v instruction begins anew
//! ```

use crate::cpu::bus::{Access, Bus, LINE, Refused};
use crate::cpu::op::{Left, Op};
use crate::cpu::state::{Cpu, Out};
use crate::cpu::tlb::{PAGE, PAGE_BITS};

/// In what [`Cpu::place`] returns: the operand goes on in the page at [`Tlb::second`](crate::cpu::tlb::Tlb).
const CROSSES: u64 = 1 << 63;

impl Cpu {
    /// Instructions that it has completed before `op`.
    #[inline(always)]
    pub(crate) fn before<B>(&self, op: &Op<B>) -> u64 {
        self.instructions + u64::from(op.position)
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
        let granted = bus.touch(self.before(op), physical & !(LINE - 1), access);
        granted.map(|()| physical).map_err(|Refused| self.leave(Out::Stopped))
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
            let Some(found) = self.tlb.find::<WRITE>(self.ring, address) else {
                // A fault names the first byte that faults: of the second page that is its first one.
                let address = if address == last { last & !(PAGE - 1) } else { address };
                return Err(self.leave(Out::Fill { address, access }));
            };
            *physical = found;
        }
        bus.crosses(self.before(op), physical.map(|physical| physical & !(LINE - 1)), access);
        for physical in physical {
            let granted = bus.touch(self.before(op), physical & !(LINE - 1), access);
            granted.map_err(|Refused| self.leave(Out::Stopped))?;
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
            return self.read_across(bus, at, W as usize / 8);
        }
        bus.load(at, W as usize / 8)
    }

    #[inline(always)]
    pub(crate) fn write_at<B: Bus, const W: u32>(&self, bus: &mut B, at: u64, value: u64) {
        if at & CROSSES != 0 {
            return self.write_across(bus, at, W as usize / 8, value);
        }
        bus.store(at, W as usize / 8, value);
    }

    /// Physical addresses of the parts of an operand that lies in two pages, and the length of the first.
    fn parts(&self, at: u64) -> ([u64; 2], usize) {
        let first = at & !CROSSES;
        ([first, self.tlb.second], (PAGE - (first & (PAGE - 1))) as usize)
    }

    #[cold]
    fn read_across<B: Bus>(&self, bus: &mut B, at: u64, bytes: usize) -> u64 {
        let ([first, second], length) = self.parts(at);
        bus.load(first, length) | bus.load(second, bytes - length) << (8 * length)
    }

    #[cold]
    fn write_across<B: Bus>(&self, bus: &mut B, at: u64, bytes: usize, value: u64) {
        let ([first, second], length) = self.parts(at);
        bus.store(first, length, value);
        bus.store(second, bytes - length, value >> (8 * length));
    }

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

    #[inline(always)]
    pub(crate) fn store<B: Bus, const W: u32>(
        &mut self,
        bus: &mut B,
        op: &Op<B>,
        address: u64,
        value: u64,
    ) -> Result<(), Left> {
        let at = self.place::<B, true>(bus, op, address, u64::from(W / 8), Access::Write)?;
        self.write_at::<B, W>(bus, at, value);
        Ok(())
    }

    /// Granted place of `W` bits that are to be read and written.
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
