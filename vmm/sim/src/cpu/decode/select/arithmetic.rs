//! Arithmetic, logic and shifts.

use iced_x86::{Instruction, Mnemonic, OpKind};

use super::forms::{of_source, sized, wide};
use crate::cpu::bus::Bus;
use crate::cpu::decode::operands::Form;
use crate::cpu::decode::operands::OperandPlace::{Immediate, Memory, Register as InRegister};
use crate::cpu::op::Run;
use crate::cpu::operations::{AtAddress as At, First, Immediate as AsImmediate, Memory as InMemory, Second};
use crate::cpu::operations::{arithmetic as a, multiply, shifts};

/// SHLD and SHRD.
macro_rules! shift_double {
    ($instruction:expr, $form:expr, $right:literal) => {{
        let by_register = $instruction.op_kind(2) == OpKind::Register;
        Some(match ($form.first, by_register) {
            (InRegister, false) => wide!($form.width, shifts::shift_double, [First, AsImmediate], $right),
            (InRegister, true) => wide!($form.width, shifts::shift_double, [First, shifts::Cl], $right),
            (Memory, false) => wide!($form.width, shifts::shift_double, [At<false>, AsImmediate], $right),
            (Memory, true) => wide!($form.width, shifts::shift_double, [At<false>, shifts::Cl], $right),
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
        Mnemonic::Mul => Some(of_source!(form, multiply::multiply)),
        Mnemonic::Div => Some(of_source!(form, multiply::divide)),
        Mnemonic::Idiv => Some(of_source!(form, multiply::divide_signed)),
        Mnemonic::Imul => multiply_signed(instruction, form),
        Mnemonic::Shld => shift_double!(instruction, form, false),
        Mnemonic::Shrd => shift_double!(instruction, form, true),
        _ => None,
    }
}

fn binary<B: Bus, K: a::Binary>(form: &Form) -> Option<Run<B>> {
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

fn compare<B: Bus, K: a::Binary>(form: &Form) -> Option<Run<B>> {
    Some(match (form.first, form.second) {
        (InRegister, InRegister) => sized!(form.width, a::compare, [K, First, Second]),
        (InRegister, Memory) => sized!(form.width, a::compare, [K, First, InMemory]),
        (InRegister, Immediate) => sized!(form.width, a::compare, [K, First, AsImmediate]),
        (Memory, InRegister) => sized!(form.width, a::compare, [K, InMemory, Second]),
        (Memory, Immediate) => sized!(form.width, a::compare, [K, InMemory, AsImmediate]),
        _ => return None,
    })
}

fn unary<B: Bus, K: a::Unary>(form: &Form) -> Option<Run<B>> {
    Some(match (form.first, form.lock) {
        (InRegister, _) => sized!(form.width, a::unary, [K, First]),
        (Memory, false) => sized!(form.width, a::unary, [K, At<false>]),
        (Memory, true) => sized!(form.width, a::unary, [K, At<true>]),
        _ => return None,
    })
}

fn shift<B: Bus, K: shifts::Shift>(form: &Form) -> Option<Run<B>> {
    Some(match (form.first, form.second) {
        (InRegister, Immediate) => sized!(form.width, shifts::shift, [K, First, AsImmediate]),
        (InRegister, InRegister) => sized!(form.width, shifts::shift, [K, First, shifts::Cl]),
        (Memory, Immediate) => sized!(form.width, shifts::shift, [K, At<false>, AsImmediate]),
        (Memory, InRegister) => sized!(form.width, shifts::shift, [K, At<false>, shifts::Cl]),
        _ => return None,
    })
}

fn multiply_signed<B: Bus>(instruction: &Instruction, form: &Form) -> Option<Run<B>> {
    Some(match (instruction.op_count(), form.second) {
        (1, _) => of_source!(form, multiply::multiply_signed),
        (2, InRegister) => wide!(form.width, multiply::multiply_to, [First, Second]),
        (2, Memory) => wide!(form.width, multiply::multiply_to, [First, InMemory]),
        (3, InRegister) => wide!(form.width, multiply::multiply_to, [Second, AsImmediate]),
        (3, Memory) => wide!(form.width, multiply::multiply_to, [InMemory, AsImmediate]),
        _ => return None,
    })
}
