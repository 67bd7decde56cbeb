//! Which function carries out an instruction.

use iced_x86::{Code, ConditionCode, FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::OperandPlace::{Immediate, Memory, Register as InRegister};
use super::{Form, address, general, width};
use crate::cpu::bus::Bus;
use crate::cpu::flags;
use crate::cpu::op::{Address, Op, Run};
use crate::cpu::operations::arithmetic::{self as a, Binary};
use crate::cpu::operations::{
    AtAddress as At, Cl, First, Immediate as AsImmediate, Memory as InMemory, Second, Third, bits, control,
    data,
};
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

pub(super) fn not_covered<B: Bus>() -> Op<B> {
    plain(control::not_covered)
}

fn plain<B: Bus>(run: Run<B>) -> Op<B> {
    let (first, second) = (slot::ZERO, slot::ZERO);
    Op { run, immediate: 0, address: Address::NONE, first, second, position: 0, length: 0, offset: 0 }
}

/// The operation of an instruction, but for its place. `None`: not covered.
pub(super) fn operation<B: Bus>(instruction: &Instruction) -> Option<Op<B>> {
    let run = selected(instruction, &Form::of(instruction))?;
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

fn selected<B: Bus>(instruction: &Instruction, form: &Form) -> Option<Run<B>> {
    if instruction.condition_code() != ConditionCode::None {
        return on_condition(instruction, form);
    }
    arithmetic(instruction, form)
        .or_else(|| moves(instruction, form))
        .or_else(|| bit_operations(instruction, form))
        .or_else(|| fixed(instruction, form))
        .or_else(|| string(instruction))
        .or_else(|| system(instruction, form))
}

macro_rules! shift_double {
    ($instruction:expr, $form:expr, $right:literal) => {
        Some(placed!($form.first, T: InRegister => First, Memory => At<false>;
            placed!($instruction.op_kind(2), S: OpKind::Register => Cl, OpKind::Immediate8 => AsImmediate;
                wide!($form.width, a::shift_double, [T, S], $right))))
    };
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
        Mnemonic::Shl | Mnemonic::Sal => shift::<B, a::Left>(form),
        Mnemonic::Shr => shift::<B, a::Right>(form),
        Mnemonic::Sar => shift::<B, a::ArithmeticRight>(form),
        Mnemonic::Rol => shift::<B, a::RotateLeft>(form),
        Mnemonic::Ror => shift::<B, a::RotateRight>(form),
        Mnemonic::Rcl => shift::<B, a::RotateCarryLeft>(form),
        Mnemonic::Rcr => shift::<B, a::RotateCarryRight>(form),
        Mnemonic::Mul => Some(first!(form, S => sized!(form.width, a::multiply, [S], false))),
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
            sized!(form.width, a::shift, [K, T, S]))))
}

fn multiply_signed<B: Bus>(instruction: &Instruction, form: &Form) -> Option<Run<B>> {
    Some(match instruction.op_count() {
        1 => first!(form, S => sized!(form.width, a::multiply, [S], true)),
        2 => second!(form, S => wide!(form.width, bits::combine, [a::Multiply, First, S])),
        _ => second!(form, S => wide!(form.width, bits::combine, [a::Multiply, S, AsImmediate])),
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

/// Single bits, searches for bits, fields of bits (BMI1, BMI2), CRC32, and random bits.
fn bit_operations<B: Bus>(instruction: &Instruction, form: &Form) -> Option<Run<B>> {
    match instruction.mnemonic() {
        Mnemonic::Bt => bit::<B, bits::Look>(form),
        Mnemonic::Bts => bit::<B, bits::Set>(form),
        Mnemonic::Btr => bit::<B, bits::Reset>(form),
        Mnemonic::Btc => bit::<B, bits::Complement>(form),
        Mnemonic::Bsf => Some(second!(form, S => wide!(form.width, bits::scan, [S], false))),
        Mnemonic::Bsr => Some(second!(form, S => wide!(form.width, bits::scan, [S], true))),
        Mnemonic::Tzcnt => of_one::<B, bits::TrailingZeros>(form),
        Mnemonic::Lzcnt => of_one::<B, bits::LeadingZeros>(form),
        Mnemonic::Popcnt => of_one::<B, bits::CountOnes>(form),
        Mnemonic::Bswap => Some(wide!(form.width, bits::swap_bytes, [])),
        Mnemonic::Andn => of_two::<B, bits::AndNot>(instruction, form),
        Mnemonic::Pdep => of_two::<B, bits::Deposit>(instruction, form),
        Mnemonic::Pext => of_two::<B, bits::Gather>(instruction, form),
        Mnemonic::Bextr => of_two::<B, bits::Extract>(instruction, form),
        Mnemonic::Bzhi => of_two::<B, bits::ZeroHigh>(instruction, form),
        Mnemonic::Shlx => of_two::<B, bits::ShiftLeft>(instruction, form),
        Mnemonic::Shrx => of_two::<B, bits::ShiftRight>(instruction, form),
        Mnemonic::Sarx => of_two::<B, bits::ShiftArithmetic>(instruction, form),
        Mnemonic::Blsi => of_one::<B, bits::LowestSet>(form),
        Mnemonic::Blsmsk => of_one::<B, bits::MaskToLowest>(form),
        Mnemonic::Blsr => of_one::<B, bits::ResetLowest>(form),
        Mnemonic::Rorx => of_one::<B, bits::RotateRight>(form),
        Mnemonic::Rdrand | Mnemonic::Rdseed => Some(wide!(form.width, control::random, [])),
        Mnemonic::Mulx if ends_in_memory(instruction) => Some(wide!(form.width, bits::multiply, [InMemory])),
        Mnemonic::Mulx => Some(wide!(form.width, bits::multiply, [Third])),
        Mnemonic::Crc32 => Some(second!(form, S => sized!(width(instruction, 1), bits::checksum, [S]))),
        _ => None,
    }
}

fn ends_in_memory(instruction: &Instruction) -> bool {
    instruction.op_kind(2) == OpKind::Memory
}

/// Operation of three operands. The last may lie in memory; or else the one in the middle, and the last is then the second register.
fn of_two<B: Bus, K: Binary>(instruction: &Instruction, form: &Form) -> Option<Run<B>> {
    Some(match form.second {
        Memory => wide!(form.width, bits::combine, [K, InMemory, Second]),
        _ if ends_in_memory(instruction) => wide!(form.width, bits::combine, [K, Second, InMemory]),
        _ => wide!(form.width, bits::combine, [K, Second, Third]),
    })
}

/// An operation on one operand, or on one and a constant.
fn of_one<B: Bus, K: Binary>(form: &Form) -> Option<Run<B>> {
    Some(second!(form, S => wide!(form.width, bits::combine, [K, S, AsImmediate])))
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
        (Mnemonic::Xadd, ..) => target!(form, T => sized!(form.width, a::exchange_add, [T])),
        (Mnemonic::Cmpxchg, InRegister, _) => sized!(form.width, a::compare_exchange_register, []),
        (Mnemonic::Cmpxchg, Memory, false) => sized!(form.width, a::compare_exchange, [At<false>]),
        (Mnemonic::Cmpxchg, Memory, true) => sized!(form.width, a::compare_exchange, [At<true>]),
        (Mnemonic::Cmpxchg8b, Memory, false) => a::compare_exchange_pair::<B, 32, false>,
        (Mnemonic::Cmpxchg8b, Memory, true) => a::compare_exchange_pair::<B, 32, true>,
        (Mnemonic::Cmpxchg16b, Memory, false) => a::compare_exchange_pair::<B, 64, false>,
        (Mnemonic::Cmpxchg16b, Memory, true) => a::compare_exchange_pair::<B, 64, true>,
        (Mnemonic::Movbe, InRegister, _) => {
            wide!(form.width, bits::combine, [bits::SwapBytes, InMemory, AsImmediate])
        }
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
fn on_condition<B: Bus>(instruction: &Instruction, form: &Form) -> Option<Run<B>> {
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
            sized!($width, data::string, [$element], data::WHILE_UNEQUAL)
        } else if $instruction.has_rep_prefix() {
            sized!($width, data::string, [$element], data::WHILE_EQUAL)
        } else {
            sized!($width, data::string, [$element], data::ONCE)
        }
    };
}

fn string<B: Bus>(instruction: &Instruction) -> Option<Run<B>> {
    use Mnemonic as M;
    let addresses = |kind| matches!(kind, OpKind::MemoryESRDI | OpKind::MemorySegRSI | OpKind::Register);
    let flat = !matches!(instruction.segment_prefix(), Register::FS | Register::GS);
    let is_string = instruction.is_string_instruction() && flat;
    if !is_string || !(0..instruction.op_count()).all(|operand| addresses(instruction.op_kind(operand))) {
        return None;
    }
    let width = instruction.memory_size().size() as u32 * 8;
    Some(match instruction.mnemonic() {
        M::Movsb | M::Movsw | M::Movsd | M::Movsq => repeated!(instruction, width, data::Move),
        M::Stosb | M::Stosw | M::Stosd | M::Stosq => repeated!(instruction, width, data::Store),
        M::Lodsb | M::Lodsw | M::Lodsd | M::Lodsq => repeated!(instruction, width, data::Load),
        M::Scasb | M::Scasw | M::Scasd | M::Scasq => repeated!(instruction, width, data::Scan),
        M::Cmpsb | M::Cmpsw | M::Cmpsd | M::Cmpsq => repeated!(instruction, width, data::Compare),
        M::Outsb | M::Outsw | M::Outsd if instruction.has_rep_prefix() => {
            sized!(width, control::out_string, [], true)
        }
        M::Outsb | M::Outsw | M::Outsd => sized!(width, control::out_string, [], false),
        _ => return None,
    })
}

/// Branches, and instructions with one form.
fn fixed<B: Bus>(instruction: &Instruction, form: &Form) -> Option<Run<B>> {
    let in_register = form.first == InRegister;
    Some(match instruction.code() {
        Code::Jmp_rel8_64 | Code::Jmp_rel32_64 => control::jump_indirect::<B, AsImmediate>,
        Code::Jrcxz_rel8_64 => control::jump_if_no_count::<B, 64>,
        Code::Jecxz_rel8_64 => control::jump_if_no_count::<B, 32>,
        Code::Loop_rel8_64_RCX => control::jump_counting,
        Code::Jmp_rm64 if in_register => control::jump_indirect::<B, First>,
        Code::Jmp_rm64 => control::jump_indirect::<B, InMemory>,
        Code::Call_rm64 if in_register => control::call_indirect::<B, First>,
        Code::Call_rm64 => control::call_indirect::<B, InMemory>,
        Code::Call_rel32_64 => control::call,
        Code::Retnq | Code::Retnq_imm16 => control::ret,
        Code::Iretq => control::interrupt_return,
        Code::Int3 | Code::Int_imm8 => control::interrupt,
        Code::Ud2 => control::undefined,
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
        Code::Pause => control::pause,
        Code::Lfence => control::fence::<B, false>,
        Code::Sfence | Code::Mfence => control::fence::<B, true>,
        Code::Rdtsc => control::clock::<B, false>,
        Code::Rdtscp => control::clock::<B, true>,
        Code::Cpuid => control::cpuid,
        // Its weaker order is not simulated: a store like any other.
        Code::Movnti_m32_r32 => data::move_to_memory::<B, Second, 32>,
        Code::Movnti_m64_r64 => data::move_to_memory::<B, Second, 64>,
        Code::Clflush_m8 | Code::Clflushopt_m8 | Code::Clwb_m8 => control::flush_line,
        _ => return None,
    })
}

fn system<B: Bus>(instruction: &Instruction, form: &Form) -> Option<Run<B>> {
    let port = if instruction.mnemonic() == Mnemonic::Out { form.first } else { form.second };
    Some(match (instruction.mnemonic(), port) {
        (Mnemonic::Out, Immediate) => sized!(width(instruction, 1), control::out, [AsImmediate]),
        (Mnemonic::Out, _) => sized!(width(instruction, 1), control::out, [First]),
        (Mnemonic::In, Immediate) => sized!(form.width, control::input, [AsImmediate]),
        (Mnemonic::In, _) => sized!(form.width, control::input, [Second]),
        (Mnemonic::Hlt, _) => control::halt,
        (Mnemonic::Cli, _) => control::change_interrupts::<B, false>,
        (Mnemonic::Sti, _) => control::change_interrupts::<B, true>,
        (Mnemonic::Vmcall | Mnemonic::Vmmcall, _) => control::hypercall,
        (Mnemonic::Rdmsr, _) => control::read_msr,
        (Mnemonic::Wrmsr, _) => control::write_msr,
        (Mnemonic::Invlpg, _) => control::invalidate_page,
        (Mnemonic::Lgdt, _) => control::load_table::<B, false>,
        (Mnemonic::Lidt, _) => control::load_table::<B, true>,
        (Mnemonic::Ltr, _) if form.first == InRegister => control::load_task,
        (Mnemonic::Swapgs, _) => control::swap_gs,
        _ => return None,
    })
}
