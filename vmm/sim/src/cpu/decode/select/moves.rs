//! Moves and exchanges, unconditional or on a condition; string instructions.

use iced_x86::{ConditionCode, Instruction, Mnemonic, OpKind, Register};

use super::{conditional, placed, second, sized, target, value, wide};
use crate::cpu::bus::Bus;
use crate::cpu::decode::OperandPlace::{Immediate, Memory, Register as InRegister};
use crate::cpu::decode::{Form, width};
use crate::cpu::op::Run;
use crate::cpu::operations::{AtAddress as At, First, Immediate as AsImmediate, Memory as InMemory, Second};
use crate::cpu::operations::{arithmetic as a, bits, control, data, strings};

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
        (Mnemonic::Xadd, ..) => target!(form, T => sized!(form.width, a::exchange_add, [T])),
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
        return control(to).then_some(control::write_control);
    }
    if from.is_cr() {
        return control(from).then_some(control::read_control);
    }
    if from.is_segment_register() && form.first == InRegister {
        return Some(wide!(form.width, control::read_segment, []));
    }
    if to.is_segment_register() && form.second == InRegister && to != Register::CS {
        return Some(control::write_segment);
    }
    let special = |register: Register| register != Register::None && !register.is_gpr();
    if special(to) || special(from) {
        return None;
    }
    Some(match (form.first, form.second) {
        (InRegister, Immediate) => sized!(form.width, data::move_to_register, [AsImmediate]),
        (InRegister, _) => second!(form, S => sized!(form.width, data::move_to_register, [S])),
        (Memory, _) => value!(form, S => sized!(form.width, data::move_to_memory, [S])),
        _ => return None,
    })
}

fn extend<B: Bus>(instruction: &Instruction, form: &Form) -> Option<Run<B>> {
    let signed = instruction.mnemonic() != Mnemonic::Movzx;
    Some(match (width(instruction, 1), signed) {
        (8, false) => second!(form, S => wide!(form.width, data::extend_zero, [S], 8)),
        (16, false) => second!(form, S => wide!(form.width, data::extend_zero, [S], 16)),
        (8, true) => second!(form, S => wide!(form.width, data::extend_sign, [S], 8)),
        (16, true) => second!(form, S => wide!(form.width, data::extend_sign, [S], 16)),
        (32, true) => second!(form, S => wide!(form.width, data::extend_sign, [S], 32)),
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
        return Some(conditional!(code, C => control::jump_if::<B, C>));
    }
    Some(match (instruction.op_count(), form.first, form.width) {
        (1, InRegister, 8) => conditional!(code, C => data::set_register::<B, C>),
        (1, Memory, 8) => conditional!(code, C => data::set_memory::<B, C>),
        (2, InRegister, _) => {
            conditional!(code, C => second!(form, S => wide!(form.width, data::move_if, [S], C)))
        }
        _ => return None,
    })
}

/// A string instruction by its prefix.
macro_rules! repeated {
    ($instruction:expr, $width:expr, $element:ty) => {
        if $instruction.has_repne_prefix() {
            sized!($width, strings::string, [$element], strings::WHILE_UNEQUAL)
        } else if $instruction.has_rep_prefix() {
            sized!($width, strings::string, [$element], strings::WHILE_EQUAL)
        } else {
            sized!($width, strings::string, [$element], strings::ONCE)
        }
    };
}

pub(super) fn string<B: Bus>(instruction: &Instruction) -> Option<Run<B>> {
    use Mnemonic as M;
    let addresses = |kind| matches!(kind, OpKind::MemoryESRDI | OpKind::MemorySegRSI | OpKind::Register);
    let flat = !matches!(instruction.segment_prefix(), Register::FS | Register::GS);
    let is_string = instruction.is_string_instruction() && flat;
    if !is_string || !(0..instruction.op_count()).all(|operand| addresses(instruction.op_kind(operand))) {
        return None;
    }
    let width = instruction.memory_size().size() as u32 * 8;
    Some(match instruction.mnemonic() {
        M::Movsb | M::Movsw | M::Movsd | M::Movsq => repeated!(instruction, width, strings::Move),
        M::Stosb | M::Stosw | M::Stosd | M::Stosq => repeated!(instruction, width, strings::Store),
        M::Lodsb | M::Lodsw | M::Lodsd | M::Lodsq => repeated!(instruction, width, strings::Load),
        M::Scasb | M::Scasw | M::Scasd | M::Scasq => repeated!(instruction, width, strings::Scan),
        M::Cmpsb | M::Cmpsw | M::Cmpsd | M::Cmpsq => repeated!(instruction, width, strings::Compare),
        M::Outsb | M::Outsw | M::Outsd if instruction.has_rep_prefix() => {
            sized!(width, control::out_string, [], true)
        }
        M::Outsb | M::Outsw | M::Outsd => sized!(width, control::out_string, [], false),
        _ => return None,
    })
}
