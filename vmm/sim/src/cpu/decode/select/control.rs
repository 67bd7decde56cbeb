//! Branches, what belongs to the system, and instructions with one form.

use iced_x86::{Code, Instruction, Mnemonic};

use super::forms::sized;
use crate::cpu::bus::Bus;
use crate::cpu::decode::operands::OperandPlace::Immediate;
use crate::cpu::decode::operands::OperandPlace::Register as InRegister;
use crate::cpu::decode::operands::{self, Form};
use crate::cpu::op::Run;
use crate::cpu::operations::{First, Immediate as AsImmediate, Memory as InMemory, Second};
use crate::cpu::operations::{branches, data, machine};

pub(super) fn flow<B: Bus>(instruction: &Instruction, form: &Form) -> Option<Run<B>> {
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

/// Instructions with one form.
pub(super) fn fixed<B: Bus>(code: Code) -> Option<Run<B>> {
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
        // Its weaker order is not simulated: a store like any other.
        Code::Movnti_m32_r32 => data::move_to_memory::<B, Second, 32>,
        Code::Movnti_m64_r64 => data::move_to_memory::<B, Second, 64>,
        Code::Rdrand_r16 | Code::Rdseed_r16 => machine::random::<B, 16>,
        Code::Rdrand_r32 | Code::Rdseed_r32 => machine::random::<B, 32>,
        Code::Rdrand_r64 | Code::Rdseed_r64 => machine::random::<B, 64>,
        Code::Clflush_m8 | Code::Clflushopt_m8 | Code::Clwb_m8 => machine::flush_line,
        _ => return None,
    })
}

pub(super) fn system<B: Bus>(instruction: &Instruction, form: &Form) -> Option<Run<B>> {
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
