//! Single bits of an operand, and where its bits are.

use iced_x86::{Instruction, Mnemonic};

use super::forms::wide;
use crate::cpu::bus::Bus;
use crate::cpu::decode::operands::Form;
use crate::cpu::decode::operands::OperandPlace::{Immediate, Memory, Register as InRegister};
use crate::cpu::op::Run;
use crate::cpu::operations::{Immediate as AsImmediate, Memory as InMemory, Second, bits};

pub(super) fn bit_operations<B: Bus>(instruction: &Instruction, form: &Form) -> Option<Run<B>> {
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
