//! Arithmetic, logic and shifts; single bits and fields of bits.

use iced_x86::{Instruction, Mnemonic, OpKind};

use super::{first, placed, second, sized, target, value, wide};
use crate::cpu::bus::Bus;
use crate::cpu::decode::OperandPlace::{Immediate, Memory, Register as InRegister};
use crate::cpu::decode::{Form, width};
use crate::cpu::op::Run;
use crate::cpu::operations::arithmetic::{self as a, Binary};
use crate::cpu::operations::{
    AtAddress as At, Cl, First, Immediate as AsImmediate, Memory as InMemory, Second, Third, bits, shifts,
};

macro_rules! shift_double {
    ($instruction:expr, $form:expr, $right:literal) => {
        Some(placed!($form.first, T: InRegister => First, Memory => At<false>;
            placed!($instruction.op_kind(2), S: OpKind::Register => Cl, OpKind::Immediate8 => AsImmediate;
                wide!($form.width, shifts::shift_double, [T, S], $right))))
    };
}

pub(super) fn arithmetic<B: Bus>(instruction: &Instruction, form: &Form) -> Option<Run<B>> {
    match instruction.mnemonic() {
        Mnemonic::Add => binary::<B, a::Add>(form),
        Mnemonic::Adc => binary::<B, a::AddCarry>(form),
        Mnemonic::Sub => binary::<B, a::Subtract>(form),
        Mnemonic::Sbb => binary::<B, a::SubtractBorrow>(form),
        Mnemonic::And => binary::<B, a::And>(form),
        Mnemonic::Or => binary::<B, a::Or>(form),
        Mnemonic::Xor => binary::<B, a::Xor>(form),
        Mnemonic::Cmp => compare::<B, a::Subtract>(form),
        Mnemonic::Test => compare::<B, a::And>(form),
        Mnemonic::Inc => unary::<B, a::Increment>(form),
        Mnemonic::Dec => unary::<B, a::Decrement>(form),
        Mnemonic::Neg => unary::<B, a::Negate>(form),
        Mnemonic::Not => unary::<B, a::Invert>(form),
        Mnemonic::Shl | Mnemonic::Sal => shift::<B, shifts::Left>(form),
        Mnemonic::Shr => shift::<B, shifts::Right>(form),
        Mnemonic::Sar => shift::<B, shifts::ArithmeticRight>(form),
        Mnemonic::Rol => shift::<B, shifts::RotateLeft>(form),
        Mnemonic::Ror => shift::<B, shifts::RotateRight>(form),
        Mnemonic::Rcl => shift::<B, shifts::RotateCarryLeft>(form),
        Mnemonic::Rcr => shift::<B, shifts::RotateCarryRight>(form),
        Mnemonic::Mul => Some(first!(form, S => sized!(form.width, a::multiply, [S]))),
        Mnemonic::Div => Some(first!(form, S => sized!(form.width, a::divide, [S]))),
        Mnemonic::Idiv => Some(first!(form, S => sized!(form.width, a::divide_signed, [S]))),
        Mnemonic::Imul => multiply_signed(instruction, form),
        Mnemonic::Shld => shift_double!(instruction, form, false),
        Mnemonic::Shrd => shift_double!(instruction, form, true),
        _ => None,
    }
}

fn binary<B: Bus, K: Binary>(form: &Form) -> Option<Run<B>> {
    Some(match form.second {
        Memory => sized!(form.width, a::binary, [K, First, InMemory]),
        _ => target!(form, T => value!(form, S => sized!(form.width, a::binary, [K, T, S]))),
    })
}

fn compare<B: Bus, K: Binary>(form: &Form) -> Option<Run<B>> {
    Some(match form.second {
        Memory => sized!(form.width, a::compare, [K, First, InMemory]),
        _ => first!(form, A => value!(form, S => sized!(form.width, a::compare, [K, A, S]))),
    })
}

/// Operations on one operand ignore the other.
fn unary<B: Bus, K: Binary>(form: &Form) -> Option<Run<B>> {
    Some(target!(form, T => sized!(form.width, a::binary, [K, T, AsImmediate])))
}

fn shift<B: Bus, K: Binary>(form: &Form) -> Option<Run<B>> {
    Some(placed!(form.first, T: InRegister => First, Memory => At<false>;
        placed!(form.second, S: InRegister => Cl, Immediate => AsImmediate;
            sized!(form.width, shifts::shift, [K, T, S]))))
}

fn multiply_signed<B: Bus>(instruction: &Instruction, form: &Form) -> Option<Run<B>> {
    Some(match instruction.op_count() {
        1 => first!(form, S => sized!(form.width, a::multiply_signed, [S])),
        2 => second!(form, S => wide!(form.width, a::multiply_to, [First, S])),
        _ => second!(form, S => wide!(form.width, a::multiply_to, [S, AsImmediate])),
    })
}

fn bit<B: Bus, K: bits::BitChange>(form: &Form) -> Option<Run<B>> {
    Some(match (form.first, form.lock) {
        (InRegister, _) => value!(form, S => wide!(form.width, bits::bit_of_register, [K, S])),
        (Memory, false) => value!(form, S => wide!(form.width, bits::bit_of_memory, [K, S], false)),
        (Memory, true) => value!(form, S => wide!(form.width, bits::bit_of_memory, [K, S], true)),
        _ => return None,
    })
}

/// Single bits, searches for bits, fields of bits (BMI1, BMI2), and CRC32.
pub(super) fn bit_operations<B: Bus>(instruction: &Instruction, form: &Form) -> Option<Run<B>> {
    match instruction.mnemonic() {
        Mnemonic::Bt => bit::<B, bits::Look>(form),
        Mnemonic::Bts => bit::<B, bits::Set>(form),
        Mnemonic::Btr => bit::<B, bits::Reset>(form),
        Mnemonic::Btc => bit::<B, bits::Complement>(form),
        Mnemonic::Bsf => Some(second!(form, S => wide!(form.width, bits::scan, [S], false))),
        Mnemonic::Bsr => Some(second!(form, S => wide!(form.width, bits::scan, [S], true))),
        Mnemonic::Tzcnt => Some(second!(form, S => wide!(form.width, bits::count_zeros, [S], false))),
        Mnemonic::Lzcnt => Some(second!(form, S => wide!(form.width, bits::count_zeros, [S], true))),
        Mnemonic::Popcnt => Some(second!(form, S => wide!(form.width, bits::count_ones, [S]))),
        Mnemonic::Bswap => Some(wide!(form.width, bits::swap_bytes, [])),
        Mnemonic::Andn => by_last::<B, bits::AndNot>(instruction, form),
        Mnemonic::Pdep => by_last::<B, bits::Deposit>(instruction, form),
        Mnemonic::Pext => by_last::<B, bits::Gather>(instruction, form),
        Mnemonic::Bextr => of_middle::<B, bits::Extract>(form),
        Mnemonic::Bzhi => of_middle::<B, bits::ZeroHigh>(form),
        Mnemonic::Shlx => of_middle::<B, bits::ShiftLeft>(form),
        Mnemonic::Shrx => of_middle::<B, bits::ShiftRight>(form),
        Mnemonic::Sarx => of_middle::<B, bits::ShiftArithmetic>(form),
        Mnemonic::Blsi => of_one::<B, bits::LowestSet>(form),
        Mnemonic::Blsmsk => of_one::<B, bits::MaskToLowest>(form),
        Mnemonic::Blsr => of_one::<B, bits::ResetLowest>(form),
        Mnemonic::Rorx => {
            Some(second!(form, S => wide!(form.width, bits::combine, [bits::RotateRight, S, AsImmediate])))
        }
        Mnemonic::Mulx if ends_in_memory(instruction) => Some(wide!(form.width, bits::multiply, [InMemory])),
        Mnemonic::Mulx => Some(wide!(form.width, bits::multiply, [Third])),
        Mnemonic::Crc32 => Some(second!(form, S => sized!(width(instruction, 1), bits::checksum, [S]))),
        _ => None,
    }
}

fn ends_in_memory(instruction: &Instruction) -> bool {
    instruction.op_kind(2) == OpKind::Memory
}

/// The last of three operands may lie in memory.
fn by_last<B: Bus, K: Binary>(instruction: &Instruction, form: &Form) -> Option<Run<B>> {
    Some(match ends_in_memory(instruction) {
        true => wide!(form.width, bits::combine, [K, Second, InMemory]),
        false => wide!(form.width, bits::combine, [K, Second, Third]),
    })
}

/// The one in the middle may, and the last is then the second register.
fn of_middle<B: Bus, K: Binary>(form: &Form) -> Option<Run<B>> {
    Some(match form.second {
        Memory => wide!(form.width, bits::combine, [K, InMemory, Second]),
        _ => wide!(form.width, bits::combine, [K, Second, Third]),
    })
}

fn of_one<B: Bus, K: Binary>(form: &Form) -> Option<Run<B>> {
    Some(second!(form, S => wide!(form.width, bits::combine, [K, S, AsImmediate])))
}
