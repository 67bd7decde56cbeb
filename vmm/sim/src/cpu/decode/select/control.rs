//! Branches, what belongs to the system, and instructions with one form.

use iced_x86::{Code, Instruction, Mnemonic};

use super::sized;
use crate::cpu::bus::Bus;
use crate::cpu::decode::OperandPlace::{Immediate, Register as InRegister};
use crate::cpu::decode::{Form, width};
use crate::cpu::op::Run;
use crate::cpu::operations::{First, Immediate as AsImmediate, Memory as InMemory, Second, control, data};

/// Branches, and instructions with one form.
pub(super) fn fixed<B: Bus>(instruction: &Instruction, form: &Form) -> Option<Run<B>> {
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
        Code::Rdrand_r16 | Code::Rdseed_r16 => control::random::<B, 16>,
        Code::Rdrand_r32 | Code::Rdseed_r32 => control::random::<B, 32>,
        Code::Rdrand_r64 | Code::Rdseed_r64 => control::random::<B, 64>,
        Code::Clflush_m8 | Code::Clflushopt_m8 | Code::Clwb_m8 => control::flush_line,
        _ => return None,
    })
}

pub(super) fn system<B: Bus>(instruction: &Instruction, form: &Form) -> Option<Run<B>> {
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
