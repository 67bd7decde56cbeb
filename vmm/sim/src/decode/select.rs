//! Which function carries out an instruction.

use iced_x86::{Code, ConditionCode, FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::operands::Place::{Immediate, Memory, Register as InRegister};
use super::operands::{self, Form};
use crate::bus::Bus;
use crate::cpu::slot;
use crate::flags;
use crate::op::{Address, Op, Run};
use crate::operations::{First, Immediate as AsImmediate, Memory as InMemory, Place as At, Second};
use crate::operations::{arithmetic as a, bits, branches, data, machine, multiply, shifts, strings};

/// A function for the width at hand.
macro_rules! sized {
    ($width:expr, $function:path, [$($generic:ty),*] $(, $constant:expr)?) => {{
        use $function as function;
        match $width {
            8 => function::<B, $($generic,)* 8 $(, $constant)?> as Run<B>,
            16 => function::<B, $($generic,)* 16 $(, $constant)?>,
            32 => function::<B, $($generic,)* 32 $(, $constant)?>,
            64 => function::<B, $($generic,)* 64 $(, $constant)?>,
            _ => return None,
        }
    }};
}

/// The same without the form for 8 bits, which the instruction has not.
macro_rules! wide {
    ($width:expr, $function:path, [$($generic:ty),*] $(, $constant:expr)?) => {{
        use $function as function;
        match $width {
            16 => function::<B, $($generic,)* 16 $(, $constant)?> as Run<B>,
            32 => function::<B, $($generic,)* 32 $(, $constant)?>,
            64 => function::<B, $($generic,)* 64 $(, $constant)?>,
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

/// A function whose only operand is read.
macro_rules! of_source {
    ($form:expr, $function:path) => {
        match $form.first {
            InRegister => sized!($form.width, $function, [First]),
            _ => sized!($form.width, $function, [InMemory]),
        }
    };
}

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

/// A string instruction by its prefix.
macro_rules! repeated {
    ($instruction:expr, $element:ty, $width:literal) => {
        if $instruction.has_repne_prefix() {
            strings::string::<B, $element, $width, { strings::WHILE_UNEQUAL }>
        } else if $instruction.has_rep_prefix() {
            strings::string::<B, $element, $width, { strings::WHILE_EQUAL }>
        } else {
            strings::string::<B, $element, $width, { strings::ONCE }>
        }
    };
}

pub(super) fn not_covered<B: Bus>() -> Op<B> {
    plain(machine::not_covered)
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
    for operand in 0..instruction.op_count() {
        match instruction.op_kind(operand) {
            OpKind::Register => {
                let number = register(instruction.op_register(operand));
                *(if operand == 0 { &mut op.first } else { &mut op.second }) = number;
                // A third one is CL, which its operation knows.
                if operand == 1 && instruction.op_count() == 3 {
                    break;
                }
            }
            OpKind::Memory => has_memory = true,
            _ => {}
        }
    }
    if has_memory {
        op.address = operands::address(instruction)?;
    }
    op.immediate = immediate(instruction);
    if instruction.flow_control() == FlowControl::Call {
        op.address.displacement = instruction.next_ip() as i64;
    }
    Some(op)
}

/// The number of a register within its kind.
fn register(register: Register) -> u8 {
    operands::general(register).unwrap_or_else(|| register.number() as u8)
}

/// The immediate operand, or what takes its place.
fn immediate(instruction: &Instruction) -> i64 {
    use Mnemonic::{Clc, Cld, Cmc, Invlpg, Mov, Stc, Std, Sti};
    /// What to keep of the flags, and what to invert then.
    const fn change(clear: u64, invert: u64) -> i64 {
        (invert << 32 | 0xffff_ffff & !clear) as i64
    }
    match instruction.mnemonic() {
        Clc => return change(flags::CARRY, 0),
        Stc => return change(flags::CARRY, flags::CARRY),
        Cmc => return change(0, flags::CARRY),
        Cld => return change(flags::BACKWARD, 0),
        Std => return change(flags::BACKWARD, flags::BACKWARD),
        Sti | Invlpg => return instruction.next_ip() as i64,
        Mov if instruction.op0_register().is_cr() => return instruction.next_ip() as i64,
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

/// The function, by groups of instructions.
fn function<B: Bus>(instruction: &Instruction, form: &Form) -> Option<Run<B>> {
    if instruction.condition_code() != ConditionCode::None {
        return on_condition(instruction, form);
    }
    arithmetic(instruction, form)
        .or_else(|| moves(instruction, form))
        .or_else(|| bit_operations(instruction, form))
        .or_else(|| flow(instruction, form))
        .or_else(|| string(instruction))
        .or_else(|| fixed(instruction.code()))
        .or_else(|| system(instruction, form))
}

fn on_condition<B: Bus>(instruction: &Instruction, form: &Form) -> Option<Run<B>> {
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

fn arithmetic<B: Bus>(instruction: &Instruction, form: &Form) -> Option<Run<B>> {
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

fn moves<B: Bus>(instruction: &Instruction, form: &Form) -> Option<Run<B>> {
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

fn bit_operations<B: Bus>(instruction: &Instruction, form: &Form) -> Option<Run<B>> {
    let in_memory = form.second == Memory;
    Some(match (instruction.mnemonic(), in_memory) {
        (Mnemonic::Bt, _) => return bit::<B, bits::Look>(form),
        (Mnemonic::Bts, _) => return bit::<B, bits::Set>(form),
        (Mnemonic::Btr, _) => return bit::<B, bits::Reset>(form),
        (Mnemonic::Btc, _) => return bit::<B, bits::Complement>(form),
        (Mnemonic::Bsf, false) => wide!(form.width, bits::scan, [Second], false),
        (Mnemonic::Bsf, true) => wide!(form.width, bits::scan, [InMemory], false),
        (Mnemonic::Bsr, false) => wide!(form.width, bits::scan, [Second], true),
        (Mnemonic::Bsr, true) => wide!(form.width, bits::scan, [InMemory], true),
        (Mnemonic::Tzcnt, false) => wide!(form.width, bits::count_zeros, [Second], false),
        (Mnemonic::Tzcnt, true) => wide!(form.width, bits::count_zeros, [InMemory], false),
        (Mnemonic::Lzcnt, false) => wide!(form.width, bits::count_zeros, [Second], true),
        (Mnemonic::Lzcnt, true) => wide!(form.width, bits::count_zeros, [InMemory], true),
        (Mnemonic::Popcnt, false) => wide!(form.width, bits::count_ones, [Second]),
        (Mnemonic::Popcnt, true) => wide!(form.width, bits::count_ones, [InMemory]),
        (Mnemonic::Bswap, _) => wide!(form.width, bits::swap_bytes, []),
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

fn flow<B: Bus>(instruction: &Instruction, form: &Form) -> Option<Run<B>> {
    let in_register = form.first == InRegister;
    Some(match instruction.code() {
        Code::Jmp_rel8_64 | Code::Jmp_rel32_64 => branches::jump,
        Code::Jrcxz_rel8_64 => branches::jump_if_no_count::<B, 64>,
        Code::Jecxz_rel8_64 => branches::jump_if_no_count::<B, 32>,
        Code::Loop_rel8_64_RCX => branches::jump_counting,
        Code::Jmp_rm64 if in_register => branches::jump_indirect::<B, First>,
        Code::Jmp_rm64 => branches::jump_indirect::<B, InMemory>,
        Code::Call_rm64 if in_register => branches::call_indirect::<B, First>,
        Code::Call_rm64 => branches::call_indirect::<B, InMemory>,
        Code::Call_rel32_64 => branches::call,
        Code::Retnq | Code::Retnq_imm16 => branches::ret,
        Code::Iretq => machine::interrupt_return,
        Code::Int3 => machine::breakpoint,
        Code::Int_imm8 => machine::interrupt,
        Code::Ud2 => machine::undefined,
        _ => return None,
    })
}

fn string<B: Bus>(instruction: &Instruction) -> Option<Run<B>> {
    use iced_x86::Code as C;
    let addresses = |kind| matches!(kind, OpKind::MemoryESRDI | OpKind::MemorySegRSI | OpKind::Register);
    let flat = !matches!(instruction.segment_prefix(), Register::FS | Register::GS);
    if !flat || !(0..instruction.op_count()).all(|operand| addresses(instruction.op_kind(operand))) {
        return None;
    }
    Some(match instruction.code() {
        C::Movsb_m8_m8 => repeated!(instruction, strings::Move, 8),
        C::Movsw_m16_m16 => repeated!(instruction, strings::Move, 16),
        C::Movsd_m32_m32 => repeated!(instruction, strings::Move, 32),
        C::Movsq_m64_m64 => repeated!(instruction, strings::Move, 64),
        C::Stosb_m8_AL => repeated!(instruction, strings::Store, 8),
        C::Stosw_m16_AX => repeated!(instruction, strings::Store, 16),
        C::Stosd_m32_EAX => repeated!(instruction, strings::Store, 32),
        C::Stosq_m64_RAX => repeated!(instruction, strings::Store, 64),
        C::Lodsb_AL_m8 => repeated!(instruction, strings::Load, 8),
        C::Lodsw_AX_m16 => repeated!(instruction, strings::Load, 16),
        C::Lodsd_EAX_m32 => repeated!(instruction, strings::Load, 32),
        C::Lodsq_RAX_m64 => repeated!(instruction, strings::Load, 64),
        C::Scasb_AL_m8 => repeated!(instruction, strings::Scan, 8),
        C::Scasw_AX_m16 => repeated!(instruction, strings::Scan, 16),
        C::Scasd_EAX_m32 => repeated!(instruction, strings::Scan, 32),
        C::Scasq_RAX_m64 => repeated!(instruction, strings::Scan, 64),
        C::Cmpsb_m8_m8 => repeated!(instruction, strings::Compare, 8),
        C::Cmpsw_m16_m16 => repeated!(instruction, strings::Compare, 16),
        C::Cmpsd_m32_m32 => repeated!(instruction, strings::Compare, 32),
        C::Cmpsq_m64_m64 => repeated!(instruction, strings::Compare, 64),
        C::Outsb_DX_m8 if instruction.has_rep_prefix() => machine::out_string::<B, 8, true>,
        C::Outsb_DX_m8 => machine::out_string::<B, 8, false>,
        C::Outsw_DX_m16 if instruction.has_rep_prefix() => machine::out_string::<B, 16, true>,
        C::Outsw_DX_m16 => machine::out_string::<B, 16, false>,
        C::Outsd_DX_m32 if instruction.has_rep_prefix() => machine::out_string::<B, 32, true>,
        C::Outsd_DX_m32 => machine::out_string::<B, 32, false>,
        _ => return None,
    })
}

/// Instructions with one form.
fn fixed<B: Bus>(code: Code) -> Option<Run<B>> {
    Some(match code {
        Code::Nopw | Code::Nopd | Code::Nopq | Code::Nop_rm16 | Code::Nop_rm32 | Code::Nop_rm64 => {
            data::nothing
        }
        Code::Endbr64 | Code::Prefetcht0_m8 | Code::Prefetcht1_m8 | Code::Prefetcht2_m8 => data::nothing,
        Code::Prefetchnta_m8 | Code::Prefetchw_m8 => data::nothing,
        Code::Clc | Code::Stc | Code::Cmc | Code::Cld | Code::Std => data::change_flags,
        Code::Cbw => data::extend_accumulator::<B, 16>,
        Code::Cwde => data::extend_accumulator::<B, 32>,
        Code::Cdqe => data::extend_accumulator::<B, 64>,
        Code::Cwd => data::spread_sign::<B, 16>,
        Code::Cdq => data::spread_sign::<B, 32>,
        Code::Cqo => data::spread_sign::<B, 64>,
        Code::Leaveq => data::leave,
        Code::Pushfq => data::push_flags,
        Code::Popfq => data::pop_flags,
        Code::Lahf => data::flags_to_ah,
        Code::Sahf => data::flags_from_ah,
        Code::Pause => machine::pause,
        Code::Lfence => machine::fence::<B, 0>,
        Code::Sfence => machine::fence::<B, 1>,
        Code::Mfence => machine::fence::<B, 2>,
        Code::Rdtsc => machine::clock::<B, false>,
        Code::Rdtscp => machine::clock::<B, true>,
        Code::Cpuid => machine::cpuid,
        _ => return None,
    })
}

fn system<B: Bus>(instruction: &Instruction, form: &Form) -> Option<Run<B>> {
    let port = if instruction.mnemonic() == Mnemonic::Out { form.first } else { form.second };
    Some(match (instruction.mnemonic(), port) {
        (Mnemonic::Out, Immediate) => sized!(operands::width(instruction, 1), machine::out, [AsImmediate]),
        (Mnemonic::Out, _) => sized!(operands::width(instruction, 1), machine::out, [First]),
        (Mnemonic::In, Immediate) => sized!(form.width, machine::input, [AsImmediate]),
        (Mnemonic::In, _) => sized!(form.width, machine::input, [Second]),
        (Mnemonic::Hlt, _) => machine::halt,
        (Mnemonic::Cli, _) => machine::clear_interrupts,
        (Mnemonic::Sti, _) => machine::set_interrupts,
        (Mnemonic::Vmcall | Mnemonic::Vmmcall, _) => machine::hypercall,
        (Mnemonic::Rdmsr, _) => machine::read_msr,
        (Mnemonic::Wrmsr, _) => machine::write_msr,
        (Mnemonic::Invlpg, _) => machine::invalidate_page,
        (Mnemonic::Lgdt, _) => machine::load_table::<B, false>,
        (Mnemonic::Lidt, _) => machine::load_table::<B, true>,
        (Mnemonic::Ltr, _) if form.first == InRegister => machine::load_task,
        (Mnemonic::Swapgs, _) => machine::swap_gs,
        _ => return None,
    })
}
