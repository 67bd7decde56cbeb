//! Operands of an instruction, as its operation wants them.

use iced_x86::{Instruction, OpKind, Register};

use crate::cpu::op::Address;
use crate::cpu::state::slot;

/// Place of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OperandPlace {
    Register,
    Memory,
    Immediate,
    Absent,
}

/// The operands of an instruction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    /// Bits of the first operand.
    pub(super) width: u32,
    pub(super) first: OperandPlace,
    pub(super) second: OperandPlace,
    pub(super) lock: bool,
}

impl Form {
    pub(super) fn of(instruction: &Instruction) -> Self {
        let place = |operand| {
            if operand < instruction.op_count() { place(instruction, operand) } else { OperandPlace::Absent }
        };
        Self {
            width: width(instruction, 0),
            first: place(0),
            second: place(1),
            lock: instruction.has_lock_prefix(),
        }
    }
}

fn place(instruction: &Instruction, operand: u32) -> OperandPlace {
    match instruction.op_kind(operand) {
        OpKind::Register => OperandPlace::Register,
        OpKind::Memory => OperandPlace::Memory,
        OpKind::Immediate8
        | OpKind::Immediate8to16
        | OpKind::Immediate8to32
        | OpKind::Immediate8to64
        | OpKind::Immediate16
        | OpKind::Immediate32
        | OpKind::Immediate32to64
        | OpKind::Immediate64 => OperandPlace::Immediate,
        _ => OperandPlace::Absent,
    }
}

/// Bits of an operand; 0 of none.
pub(super) fn width(instruction: &Instruction, operand: u32) -> u32 {
    if operand >= instruction.op_count() {
        return 0;
    }
    match place(instruction, operand) {
        OperandPlace::Register => instruction.op_register(operand).size() as u32 * 8,
        OperandPlace::Memory => instruction.memory_size().size() as u32 * 8,
        OperandPlace::Immediate | OperandPlace::Absent => 0,
    }
}

/// The number of a general register.
pub(super) fn general(register: Register) -> Option<u8> {
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
pub(super) fn address(instruction: &Instruction) -> Option<Address> {
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
