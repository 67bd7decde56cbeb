//! Moves and exchanges, unconditional or on a condition.

use iced_x86::{ConditionCode, Instruction, Mnemonic, Register};

use super::forms::{conditional, sized, wide};
use crate::cpu::bus::Bus;
use crate::cpu::decode::operands::OperandPlace::{Immediate, Memory, Register as InRegister};
use crate::cpu::decode::operands::{self, Form};
use crate::cpu::op::Run;
use crate::cpu::operations::{AtAddress as At, First, Immediate as AsImmediate, Memory as InMemory, Second};
use crate::cpu::operations::{arithmetic as a, bits, branches, data, machine};

pub(super) fn moves<B: Bus>(instruction: &Instruction, form: &Form) -> Option<Run<B>> {
    match instruction.mnemonic() {
        Mnemonic::Mov => return mov(instruction, form),
        Mnemonic::Movzx | Mnemonic::Movsx | Mnemonic::Movsxd => return extend(instruction, form),
        Mnemonic::Lea => return Some(wide!(form.width, data::address, [])),
        Mnemonic::Push => return push(instruction, form),
        _ => {}
    }
    Some(match (instruction.mnemonic(), form.first, form.lock) {
        (Mnemonic::Pop, InRegister, _) if instruction.op0_register().is_gpr() => {
            wide!(form.width, data::pop_register, [])
        }
        (Mnemonic::Pop, Memory, _) => wide!(form.width, data::pop_memory, []),
        (Mnemonic::Xchg, InRegister, _) => sized!(form.width, data::exchange, [First]),
        // With memory it is locked, prefix or not.
        (Mnemonic::Xchg, Memory, _) => sized!(form.width, data::exchange, [At<true>]),
        (Mnemonic::Xadd, InRegister, _) => sized!(form.width, a::exchange_add, [First]),
        (Mnemonic::Xadd, Memory, false) => sized!(form.width, a::exchange_add, [At<false>]),
        (Mnemonic::Xadd, Memory, true) => sized!(form.width, a::exchange_add, [At<true>]),
        (Mnemonic::Cmpxchg, InRegister, _) => sized!(form.width, a::compare_exchange_register, []),
        (Mnemonic::Cmpxchg, Memory, false) => sized!(form.width, a::compare_exchange, [At<false>]),
        (Mnemonic::Cmpxchg, Memory, true) => sized!(form.width, a::compare_exchange, [At<true>]),
        (Mnemonic::Cmpxchg8b, Memory, false) => a::compare_exchange_pair::<B, 32, false>,
        (Mnemonic::Cmpxchg8b, Memory, true) => a::compare_exchange_pair::<B, 32, true>,
        (Mnemonic::Cmpxchg16b, Memory, false) => a::compare_exchange_pair::<B, 64, false>,
        (Mnemonic::Cmpxchg16b, Memory, true) => a::compare_exchange_pair::<B, 64, true>,
        (Mnemonic::Movbe, InRegister, _) => wide!(form.width, bits::load_swapped, []),
        (Mnemonic::Movbe, Memory, _) => wide!(form.width, bits::store_swapped, []),
        _ => return None,
    })
}

fn mov<B: Bus>(instruction: &Instruction, form: &Form) -> Option<Run<B>> {
    let (to, from) = (instruction.op0_register(), instruction.op1_register());
    let control = |register: Register| matches!(register.number(), 0 | 2 | 3 | 4);
    if to.is_cr() {
        return control(to).then_some(machine::write_control);
    }
    if from.is_cr() {
        return control(from).then_some(machine::read_control);
    }
    if from.is_segment_register() && form.first == InRegister {
        return Some(wide!(form.width, machine::read_segment, []));
    }
    if to.is_segment_register() && form.second == InRegister && to != Register::CS {
        return Some(machine::write_segment);
    }
    let special = |register: Register| register != Register::None && !register.is_gpr();
    if special(to) || special(from) {
        return None;
    }
    Some(match (form.first, form.second) {
        (InRegister, InRegister) => sized!(form.width, data::move_to_register, [Second]),
        (InRegister, Memory) => sized!(form.width, data::move_to_register, [InMemory]),
        (InRegister, Immediate) => sized!(form.width, data::move_to_register, [AsImmediate]),
        (Memory, InRegister) => sized!(form.width, data::move_to_memory, [Second]),
        (Memory, Immediate) => sized!(form.width, data::move_to_memory, [AsImmediate]),
        _ => return None,
    })
}

fn extend<B: Bus>(instruction: &Instruction, form: &Form) -> Option<Run<B>> {
    let signed = instruction.mnemonic() != Mnemonic::Movzx;
    Some(match (operands::width(instruction, 1), form.second, signed) {
        (8, InRegister, false) => wide!(form.width, data::extend_zero, [Second], 8),
        (8, Memory, false) => wide!(form.width, data::extend_zero, [InMemory], 8),
        (16, InRegister, false) => wide!(form.width, data::extend_zero, [Second], 16),
        (16, Memory, false) => wide!(form.width, data::extend_zero, [InMemory], 16),
        (8, InRegister, true) => wide!(form.width, data::extend_sign, [Second], 8),
        (8, Memory, true) => wide!(form.width, data::extend_sign, [InMemory], 8),
        (16, InRegister, true) => wide!(form.width, data::extend_sign, [Second], 16),
        (16, Memory, true) => wide!(form.width, data::extend_sign, [InMemory], 16),
        (32, InRegister, true) => wide!(form.width, data::extend_sign, [Second], 32),
        (32, Memory, true) => wide!(form.width, data::extend_sign, [InMemory], 32),
        _ => return None,
    })
}

fn push<B: Bus>(instruction: &Instruction, form: &Form) -> Option<Run<B>> {
    Some(match (form.first, form.width) {
        (InRegister, 64) => data::push::<B, First, 64>,
        (InRegister, 16) if instruction.op0_register().is_gpr() => data::push::<B, First, 16>,
        (Memory, 64) => data::push::<B, InMemory, 64>,
        (Memory, 16) => data::push::<B, InMemory, 16>,
        (Immediate, _) if instruction.stack_pointer_increment() == -8 => data::push::<B, AsImmediate, 64>,
        (Immediate, _) => data::push::<B, AsImmediate, 16>,
        _ => return None,
    })
}

/// Operation of an instruction with a condition, also of a jump.
pub(super) fn on_condition<B: Bus>(instruction: &Instruction, form: &Form) -> Option<Run<B>> {
    let code = instruction.condition_code() as u8 - ConditionCode::o as u8;
    if instruction.is_jcc_short_or_near() {
        return Some(conditional!(code, C => branches::jump_if::<B, C>));
    }
    Some(match (instruction.op_count(), form.first, form.second, form.width) {
        (1, InRegister, _, 8) => conditional!(code, C => data::set_register::<B, C>),
        (1, Memory, _, 8) => conditional!(code, C => data::set_memory::<B, C>),
        (2, InRegister, InRegister, 16) => conditional!(code, C => data::move_if::<B, Second, 16, C>),
        (2, InRegister, InRegister, 32) => conditional!(code, C => data::move_if::<B, Second, 32, C>),
        (2, InRegister, InRegister, 64) => conditional!(code, C => data::move_if::<B, Second, 64, C>),
        (2, InRegister, Memory, 16) => conditional!(code, C => data::move_if::<B, InMemory, 16, C>),
        (2, InRegister, Memory, 32) => conditional!(code, C => data::move_if::<B, InMemory, 32, C>),
        (2, InRegister, Memory, 64) => conditional!(code, C => data::move_if::<B, InMemory, 64, C>),
        _ => return None,
    })
}
