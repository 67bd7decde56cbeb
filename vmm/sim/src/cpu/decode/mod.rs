//! From bytes to blocks, and operands of an instruction as its operation wants them.

mod effect;
mod select;

use iced_x86::{
    Decoder, DecoderError, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
    OpKind, Register,
};

use crate::cpu::bus::Bus;
use crate::cpu::code::{BLOCK_OPS, Block, Code};
use crate::cpu::op::{Address, Left, Op};
use crate::cpu::state::{Cpu, slot};
use crate::cpu::tlb::PAGE;

/// Bytes of the longest instruction.
const LONGEST: usize = 15;

/// Whether the interpreter carries out `instruction`: if not, a CPU that comes to it leaves with
/// [`Event::NotCovered`](crate::Event::NotCovered).
#[must_use]
pub fn covers<B: Bus>(instruction: &Instruction) -> bool {
    select::operation::<B>(instruction).is_some()
}

impl Cpu {
    /// Makes the block that begins where it stands known.
    #[cold]
    pub(crate) fn prepare<B: Bus>(&mut self, code: &mut Code<B>, bus: &mut B) -> Result<(), Left> {
        code.make_room();
        self.learn(code);
        let page = self.code_page(code, bus, self.rip)?;
        self.learn(code);
        if let Some(second) = code.second_page(self, page) {
            self.code_page(code, bus, second)?;
        }
        if code.find(self).is_some() {
            return Ok(());
        }
        let physical = code.frame(page) | self.rip & (PAGE - 1);
        let in_page = (PAGE - (self.rip & (PAGE - 1))) as usize;
        let mut bytes: Vec<u8> = (0..in_page.min(BLOCK_OPS * LONGEST))
            .map(|byte| bus.load(physical + byte as u64, 1) as u8)
            .collect();
        let block = match decode(code, &bytes, self.rip, physical, None) {
            Some(block) => block,
            None => {
                let behind = self.code_page(code, bus, (self.rip & !(PAGE - 1)).wrapping_add(PAGE))?;
                let second = code.frame(behind);
                bytes.extend((0..LONGEST as u64).map(|byte| bus.load(second + byte, 1) as u8));
                let whole = decode(code, &bytes, self.rip, physical, Some(second));
                whole.expect("no instruction is longer than the longest")
            }
        };
        code.add(block);
        self.learn(code);
        Ok(())
    }

    /// The page of code that `address` lies in, translated anew if it must be.
    fn code_page<B: Bus>(&mut self, code: &mut Code<B>, bus: &mut B, address: u64) -> Result<u32, Left> {
        if let Some(page) = self.tlb.find_code(self.ring, address) {
            return Ok(page);
        }
        let found = self.walk(bus, address, None, self.ring).map_err(|out| self.leave(out))?;
        let page = code.page_of(found.frame);
        self.tlb.insert_code(self.ring, address, page, found.inside);
        Ok(page)
    }
}

/// As many instructions as make a block: one, if that ends in the page at `second`. `None` if the first one goes on behind `bytes`.
fn decode<B: Bus>(
    code: &Code<B>,
    bytes: &[u8],
    start: u64,
    physical: u64,
    second: Option<u64>,
) -> Option<Block<B>> {
    let most = if second.is_some() { 1 } else { BLOCK_OPS };
    let mut decoder = Decoder::with_ip(64, bytes, start, DecoderOptions::NONE);
    let mut factory = InstructionInfoFactory::new();
    let (mut ops, mut effects) = (Vec::new(), Vec::new());
    let mut end = start;
    while ops.len() < most && decoder.can_decode() {
        let instruction = decoder.decode();
        let incomplete = decoder.last_error() == DecoderError::NoMoreBytes;
        if incomplete || !ops.is_empty() && code.is_watched(instruction.ip()) {
            break;
        }
        let op = select::operation(&instruction).unwrap_or_else(select::not_covered);
        let (position, length) = (ops.len() as u8, instruction.len() as u8);
        ops.push(Op { position, length, offset: (instruction.ip() - start) as u16, ..op });
        effects.push(effect::of(&mut factory, &instruction));
        end = instruction.next_ip();
        if ends_block(&instruction) {
            break;
        }
    }
    let watched = code.is_watched(start);
    // The last instruction of all addresses ends at 0.
    let is_empty = ops.is_empty();
    let (ops, effects) = (ops.into(), effects.into());
    (!is_empty).then_some(Block {
        ops,
        effects,
        start,
        end,
        physical,
        second,
        watched,
        next: Default::default(),
    })
}

/// Whether nothing behind an instruction is executed with it. A conditional branch that is not taken goes on in its block.
fn ends_block(instruction: &Instruction) -> bool {
    let goes_on = matches!(instruction.flow_control(), FlowControl::Next | FlowControl::ConditionalBranch);
    let to_driver = matches!(
        instruction.mnemonic(),
        Mnemonic::Out
            | Mnemonic::In
            | Mnemonic::Hlt
            | Mnemonic::Invlpg
            | Mnemonic::Vmcall
            | Mnemonic::Vmmcall
    );
    let control = instruction.mnemonic() == Mnemonic::Mov && instruction.op0_register().is_cr();
    !goes_on || to_driver || control
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OperandPlace {
    Register,
    Memory,
    Immediate,
    Absent,
}

/// The operands of an instruction.
#[derive(Clone, Copy, Debug)]
struct Form {
    /// Bits of the first operand.
    width: u32,
    first: OperandPlace,
    second: OperandPlace,
    lock: bool,
}

impl Form {
    fn of(instruction: &Instruction) -> Self {
        Self {
            width: width(instruction, 0),
            first: place(instruction, 0),
            second: place(instruction, 1),
            lock: instruction.has_lock_prefix(),
        }
    }
}

fn place(instruction: &Instruction, operand: u32) -> OperandPlace {
    match instruction.op_kind(operand) {
        _ if operand >= instruction.op_count() => OperandPlace::Absent,
        OpKind::Register => OperandPlace::Register,
        OpKind::Memory => OperandPlace::Memory,
        _ if instruction.try_immediate(operand).is_ok() => OperandPlace::Immediate,
        _ => OperandPlace::Absent,
    }
}

/// Bits of an operand; 0 of none.
fn width(instruction: &Instruction, operand: u32) -> u32 {
    match place(instruction, operand) {
        OperandPlace::Register => instruction.op_register(operand).size() as u32 * 8,
        OperandPlace::Memory => instruction.memory_size().size() as u32 * 8,
        OperandPlace::Immediate | OperandPlace::Absent => 0,
    }
}

/// The number of a general register.
fn general(register: Register) -> Option<u8> {
    match register {
        Register::AH => Some(slot::HIGH_BYTE),
        Register::CH => Some(slot::HIGH_BYTE | 1),
        Register::DH => Some(slot::HIGH_BYTE | 2),
        Register::BH => Some(slot::HIGH_BYTE | 3),
        register if register.is_gpr() => Some(register.full_register() as u8 - Register::RAX as u8),
        _ => None,
    }
}

/// The memory operand. `None` if its address has 32 bits, or a base of some other kind.
fn address(instruction: &Instruction) -> Option<Address> {
    let part = |register: Register| match register {
        Register::None | Register::RIP => Some(slot::ZERO),
        register if register.is_gpr64() => general(register),
        _ => None,
    };
    let segment = match instruction.memory_segment() {
        Register::FS => slot::FS_BASE,
        Register::GS => slot::GS_BASE,
        _ => slot::ZERO,
    };
    Some(Address {
        // Absolute already, if the operand is relative to RIP.
        displacement: instruction.memory_displacement64() as i64,
        base: part(instruction.memory_base())?,
        index: part(instruction.memory_index())?,
        scale: instruction.memory_index_scale().trailing_zeros() as u8,
        segment,
    })
}
