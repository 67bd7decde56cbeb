//! Arithmetic, logic and shifts; single bits and fields of bits.

use iced_x86::{Instruction, Mnemonic, OpKind};

use super::{of_source, reading_second, sized, wide};
use crate::cpu::bus::Bus;
use crate::cpu::decode::OperandPlace::{Immediate, Memory, Register as InRegister};
use crate::cpu::decode::{Form, width};
use crate::cpu::op::Run;
use crate::cpu::operations::arithmetic::{self as a, Binary, Unary};
use crate::cpu::operations::{
    AtAddress as At, Cl, First, Immediate as AsImmediate, Memory as InMemory, Second, Third, bits, shifts,
};

/// SHLD and SHRD.
macro_rules! shift_double {
    ($instruction:expr, $form:expr, $right:literal) => {{
        let by_register = $instruction.op_kind(2) == OpKind::Register;
        Some(match ($form.first, by_register) {
            (InRegister, false) => wide!($form.width, shifts::shift_double, [First, AsImmediate], $right),
            (InRegister, true) => wide!($form.width, shifts::shift_double, [First, Cl], $right),
            (Memory, false) => wide!($form.width, shifts::shift_double, [At<false>, AsImmediate], $right),
            (Memory, true) => wide!($form.width, shifts::shift_double, [At<false>, Cl], $right),
            _ => return None,
        })
    }};
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
        Mnemonic::Mul => Some(of_source!(form, a::multiply)),
        Mnemonic::Div => Some(of_source!(form, a::divide)),
        Mnemonic::Idiv => Some(of_source!(form, a::divide_signed)),
        Mnemonic::Imul => multiply_signed(instruction, form),
        Mnemonic::Shld => shift_double!(instruction, form, false),
        Mnemonic::Shrd => shift_double!(instruction, form, true),
        _ => None,
    }
}

fn binary<B: Bus, K: Binary>(form: &Form) -> Option<Run<B>> {
    Some(match (form.first, form.second, form.lock) {
        (InRegister, InRegister, _) => sized!(form.width, a::binary, [K, First, Second]),
        (InRegister, Memory, _) => sized!(form.width, a::binary, [K, First, InMemory]),
        (InRegister, Immediate, _) => sized!(form.width, a::binary, [K, First, AsImmediate]),
        (Memory, InRegister, false) => sized!(form.width, a::binary, [K, At<false>, Second]),
        (Memory, InRegister, true) => sized!(form.width, a::binary, [K, At<true>, Second]),
        (Memory, Immediate, false) => sized!(form.width, a::binary, [K, At<false>, AsImmediate]),
        (Memory, Immediate, true) => sized!(form.width, a::binary, [K, At<true>, AsImmediate]),
        _ => return None,
    })
}

fn compare<B: Bus, K: Binary>(form: &Form) -> Option<Run<B>> {
    Some(match (form.first, form.second) {
        (InRegister, InRegister) => sized!(form.width, a::compare, [K, First, Second]),
        (InRegister, Memory) => sized!(form.width, a::compare, [K, First, InMemory]),
        (InRegister, Immediate) => sized!(form.width, a::compare, [K, First, AsImmediate]),
        (Memory, InRegister) => sized!(form.width, a::compare, [K, InMemory, Second]),
        (Memory, Immediate) => sized!(form.width, a::compare, [K, InMemory, AsImmediate]),
        _ => return None,
    })
}

fn unary<B: Bus, K: Unary>(form: &Form) -> Option<Run<B>> {
    Some(match (form.first, form.lock) {
        (InRegister, _) => sized!(form.width, a::unary, [K, First]),
        (Memory, false) => sized!(form.width, a::unary, [K, At<false>]),
        (Memory, true) => sized!(form.width, a::unary, [K, At<true>]),
        _ => return None,
    })
}

fn shift<B: Bus, K: Binary>(form: &Form) -> Option<Run<B>> {
    Some(match (form.first, form.second) {
        (InRegister, Immediate) => sized!(form.width, shifts::shift, [K, First, AsImmediate]),
        (InRegister, InRegister) => sized!(form.width, shifts::shift, [K, First, Cl]),
        (Memory, Immediate) => sized!(form.width, shifts::shift, [K, At<false>, AsImmediate]),
        (Memory, InRegister) => sized!(form.width, shifts::shift, [K, At<false>, Cl]),
        _ => return None,
    })
}

fn multiply_signed<B: Bus>(instruction: &Instruction, form: &Form) -> Option<Run<B>> {
    Some(match instruction.op_count() {
        1 => of_source!(form, a::multiply_signed),
        2 => reading_second!(wide, form.width, form.second, a::multiply_to, [First], []),
        _ => reading_second!(wide, form.width, form.second, a::multiply_to, [], [AsImmediate]),
    })
}

/// Single bits of an operand, and where its bits are.
pub(super) fn bit_operations<B: Bus>(instruction: &Instruction, form: &Form) -> Option<Run<B>> {
    let (width, second) = (form.width, form.second);
    Some(match instruction.mnemonic() {
        Mnemonic::Bt => return bit::<B, bits::Look>(form),
        Mnemonic::Bts => return bit::<B, bits::Set>(form),
        Mnemonic::Btr => return bit::<B, bits::Reset>(form),
        Mnemonic::Btc => return bit::<B, bits::Complement>(form),
        Mnemonic::Bsf => reading_second!(wide, width, second, bits::scan, [], [], false),
        Mnemonic::Bsr => reading_second!(wide, width, second, bits::scan, [], [], true),
        Mnemonic::Tzcnt => reading_second!(wide, width, second, bits::count_zeros, [], [], false),
        Mnemonic::Lzcnt => reading_second!(wide, width, second, bits::count_zeros, [], [], true),
        Mnemonic::Popcnt => reading_second!(wide, width, second, bits::count_ones, [], []),
        Mnemonic::Bswap => wide!(width, bits::swap_bytes, []),
        _ => return None,
    })
}

fn bit<B: Bus, K: bits::BitChange>(form: &Form) -> Option<Run<B>> {
    Some(match (form.first, form.second, form.lock) {
        (InRegister, InRegister, _) => wide!(form.width, bits::bit_of_register, [K, Second]),
        (InRegister, Immediate, _) => wide!(form.width, bits::bit_of_register, [K, AsImmediate]),
        (Memory, InRegister, false) => wide!(form.width, bits::bit_of_memory, [K, Second], false),
        (Memory, InRegister, true) => wide!(form.width, bits::bit_of_memory, [K, Second], true),
        (Memory, Immediate, false) => wide!(form.width, bits::bit_of_memory, [K, AsImmediate], false),
        (Memory, Immediate, true) => wide!(form.width, bits::bit_of_memory, [K, AsImmediate], true),
        _ => return None,
    })
}

/// BMI1, BMI2 and CRC32.
pub(super) fn fields<B: Bus>(instruction: &Instruction, form: &Form) -> Option<Run<B>> {
    match instruction.mnemonic() {
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
        Mnemonic::Rorx => Some(reading_second!(
            wide,
            form.width,
            form.second,
            bits::combine,
            [bits::RotateRight],
            [AsImmediate]
        )),
        Mnemonic::Mulx if ends_in_memory(instruction) => Some(wide!(form.width, bits::multiply, [InMemory])),
        Mnemonic::Mulx => Some(wide!(form.width, bits::multiply, [Third])),
        Mnemonic::Crc32 => {
            Some(reading_second!(sized, width(instruction, 1), form.second, bits::checksum, [], []))
        }
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

fn of_one<B: Bus, K: Unary>(form: &Form) -> Option<Run<B>> {
    Some(reading_second!(wide, form.width, form.second, bits::of_one, [K], []))
}
