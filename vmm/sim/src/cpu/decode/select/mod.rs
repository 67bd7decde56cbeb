//! Which function carries out an instruction.

mod arithmetic;
mod control;
mod moves;

use iced_x86::{ConditionCode, FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::{Form, address, general};
use crate::cpu::bus::Bus;
use crate::cpu::flags;
use crate::cpu::op::{Address, Op, Run};
use crate::cpu::operations;
use crate::cpu::state::slot;

// An operation has one function for each width, place of its operands, or condition. These macros name it.

/// A function for the width at hand.
macro_rules! sized {
    ($width:expr, $function:path, [$($generic:ty),*] $(, $constant:expr)?) => {{
        use $function as function;
        match $width {
            8 => function::<B, $($generic,)* 8 $(, { $constant })?> as Run<B>,
            16 => function::<B, $($generic,)* 16 $(, { $constant })?>,
            32 => function::<B, $($generic,)* 32 $(, { $constant })?>,
            64 => function::<B, $($generic,)* 64 $(, { $constant })?>,
            _ => return None,
        }
    }};
}

/// A function for the width at hand, of an instruction without a form for 8 bits.
macro_rules! wide {
    ($width:expr, $function:path, [$($generic:ty),*] $(, $constant:expr)?) => {{
        use $function as function;
        match $width {
            16 => function::<B, $($generic,)* 16 $(, { $constant })?> as Run<B>,
            32 => function::<B, $($generic,)* 32 $(, { $constant })?>,
            64 => function::<B, $($generic,)* 64 $(, { $constant })?>,
            _ => return None,
        }
    }};
}

/// A function for a condition, which it knows by the name given.
macro_rules! conditional {
    ($code:expr, $name:ident => $function:expr) => {
        conditional!($code, $name => $function; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    ($code:expr, $name:ident => $function:expr; $($number:literal)*) => {
        match $code {
            $($number => {
                const $name: u8 = $number;
                $function as Run<B>
            })*
            _ => return None,
        }
    };
}

/// A function for the place of an operand, which it knows as the type `$name`.
macro_rules! placed {
    ($place:expr, $name:ident: $($case:pat => $type:ty),+; $function:expr) => {
        match $place {
            $($case => {
                type $name = $type;
                $function
            })+
            _ => return None,
        }
    };
}

/// A function that reads and writes the first operand.
macro_rules! target {
    ($form:expr, $name:ident => $function:expr) => {
        placed!(
            ($form.first, $form.lock),
            $name: (InRegister, _) => First, (Memory, false) => At<false>, (Memory, true) => At<true>;
            $function
        )
    };
}

/// A function that reads the first operand.
macro_rules! first {
    ($form:expr, $name:ident => $function:expr) => {
        placed!($form.first, $name: InRegister => First, Memory => InMemory; $function)
    };
}

/// A function that reads the second operand, a register or memory.
macro_rules! second {
    ($form:expr, $name:ident => $function:expr) => {
        placed!($form.second, $name: InRegister => Second, Memory => InMemory; $function)
    };
}

/// A function that reads the second operand, a register or an immediate one.
macro_rules! value {
    ($form:expr, $name:ident => $function:expr) => {
        placed!($form.second, $name: InRegister => Second, Immediate => AsImmediate; $function)
    };
}

use {conditional, first, placed, second, sized, target, value, wide};

pub(super) fn not_covered<B: Bus>() -> Op<B> {
    plain(operations::control::not_covered)
}

fn plain<B: Bus>(run: Run<B>) -> Op<B> {
    let (first, second) = (slot::ZERO, slot::ZERO);
    Op { run, immediate: 0, address: Address::NONE, first, second, position: 0, length: 0, offset: 0 }
}

/// The operation of an instruction, but for its place. `None`: not covered.
pub(super) fn operation<B: Bus>(instruction: &Instruction) -> Option<Op<B>> {
    let run = function(instruction, &Form::of(instruction))?;
    let mut op = plain(run);
    let mut has_memory = false;
    // The third of three registers, which most operations know: CL.
    let mut third = None;
    for operand in 0..instruction.op_count() {
        match instruction.op_kind(operand) {
            OpKind::Register => {
                let number = register(instruction.op_register(operand));
                match operand {
                    0 => op.first = number,
                    2 if instruction.op_kind(1) == OpKind::Register => third = Some(number.into()),
                    _ => op.second = number,
                }
            }
            OpKind::Memory => has_memory = true,
            _ => {}
        }
    }
    if has_memory {
        op.address = address(instruction)?;
    }
    op.immediate = third.unwrap_or_else(|| immediate(instruction));
    if instruction.flow_control() == FlowControl::Call {
        op.address.displacement = instruction.next_ip() as i64;
    }
    Some(op)
}

/// The number of a register within its kind.
fn register(register: Register) -> u8 {
    general(register).unwrap_or_else(|| register.number() as u8)
}

/// The immediate operand, or what takes its place.
fn immediate(instruction: &Instruction) -> i64 {
    use Mnemonic::{Clc, Cld, Cmc, Int3, Stc, Std};
    /// Flags to clear, and flags to invert then.
    const fn change(clear: u64, invert: u64) -> i64 {
        (invert << 32 | 0xffff_ffff & !clear) as i64
    }
    match instruction.mnemonic() {
        Clc => return change(flags::CARRY, 0),
        Stc => return change(flags::CARRY, flags::CARRY),
        Cmc => return change(0, flags::CARRY),
        Cld => return change(flags::BACKWARD, 0),
        Std => return change(flags::BACKWARD, flags::BACKWARD),
        Int3 => return 3,
        _ => {}
    }
    match instruction.flow_control() {
        FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch | FlowControl::Call => {
            return instruction.near_branch_target() as i64;
        }
        FlowControl::IndirectCall => return instruction.next_ip() as i64,
        _ => {}
    }
    let operand = (0..instruction.op_count()).find_map(|operand| instruction.try_immediate(operand).ok());
    operand.unwrap_or(0) as i64
}

fn function<B: Bus>(instruction: &Instruction, form: &Form) -> Option<Run<B>> {
    if instruction.condition_code() != ConditionCode::None {
        return moves::on_condition(instruction, form);
    }
    arithmetic::arithmetic(instruction, form)
        .or_else(|| moves::moves(instruction, form))
        .or_else(|| arithmetic::bit_operations(instruction, form))
        .or_else(|| control::fixed(instruction, form))
        .or_else(|| moves::string(instruction))
        .or_else(|| control::system(instruction, form))
}
