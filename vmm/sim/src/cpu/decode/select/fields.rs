//! BMI1, BMI2 and CRC32.

use iced_x86::{Instruction, Mnemonic};

use super::forms::{sized, wide};
use crate::cpu::bus::Bus;
use crate::cpu::decode::operands::OperandPlace::Memory;
use crate::cpu::decode::operands::{self, Form};
use crate::cpu::op::Run;
use crate::cpu::operations::arithmetic::{Binary, Unary};
use crate::cpu::operations::{Immediate, Memory as InMemory, Second, Third, fields as f};

pub(super) fn fields<B: Bus>(instruction: &Instruction, form: &Form) -> Option<Run<B>> {
    match instruction.mnemonic() {
        Mnemonic::Andn => by_last::<B, f::AndNot>(instruction, form),
        Mnemonic::Pdep => by_last::<B, f::Deposit>(instruction, form),
        Mnemonic::Pext => by_last::<B, f::Gather>(instruction, form),
        Mnemonic::Bextr => of_middle::<B, f::Extract>(form),
        Mnemonic::Bzhi => of_middle::<B, f::ZeroHigh>(form),
        Mnemonic::Shlx => of_middle::<B, f::ShiftLeft>(form),
        Mnemonic::Shrx => of_middle::<B, f::ShiftRight>(form),
        Mnemonic::Sarx => of_middle::<B, f::ShiftArithmetic>(form),
        Mnemonic::Blsi => of_one::<B, f::LowestSet>(form),
        Mnemonic::Blsmsk => of_one::<B, f::MaskToLowest>(form),
        Mnemonic::Blsr => of_one::<B, f::ResetLowest>(form),
        Mnemonic::Rorx if form.second == Memory => {
            Some(wide!(form.width, f::combine, [f::RotateRight, InMemory, Immediate]))
        }
        Mnemonic::Rorx => Some(wide!(form.width, f::combine, [f::RotateRight, Second, Immediate])),
        Mnemonic::Mulx if ends_in_memory(instruction) => Some(wide!(form.width, f::multiply, [InMemory])),
        Mnemonic::Mulx => Some(wide!(form.width, f::multiply, [Third])),
        Mnemonic::Crc32 if form.second == Memory => {
            Some(sized!(operands::width(instruction, 1), f::checksum, [InMemory]))
        }
        Mnemonic::Crc32 => Some(sized!(operands::width(instruction, 1), f::checksum, [Second])),
        _ => None,
    }
}

fn ends_in_memory(instruction: &Instruction) -> bool {
    instruction.op_kind(2) == iced_x86::OpKind::Memory
}

/// The last of three operands may lie in memory.
fn by_last<B: Bus, K: Binary>(instruction: &Instruction, form: &Form) -> Option<Run<B>> {
    Some(match ends_in_memory(instruction) {
        true => wide!(form.width, f::combine, [K, Second, InMemory]),
        false => wide!(form.width, f::combine, [K, Second, Third]),
    })
}

/// The one in the middle may, and the last is then the second register.
fn of_middle<B: Bus, K: Binary>(form: &Form) -> Option<Run<B>> {
    Some(match form.second {
        Memory => wide!(form.width, f::combine, [K, InMemory, Second]),
        _ => wide!(form.width, f::combine, [K, Second, Third]),
    })
}

fn of_one<B: Bus, K: Unary>(form: &Form) -> Option<Run<B>> {
    Some(match form.second {
        Memory => wide!(form.width, f::of_one, [K, InMemory]),
        _ => wide!(form.width, f::of_one, [K, Second]),
    })
}
