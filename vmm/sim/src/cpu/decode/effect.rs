//! An instruction's effect on registers and flags, as the decoder knows it.

use iced_x86::{ConditionCode, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, Register};

use super::{Form, OperandPlace, general};
use crate::cpu::flags::mask;
use crate::cpu::op::{Effect, Simple};

pub(super) fn of(factory: &mut InstructionInfoFactory, instruction: &Instruction) -> Effect {
    let mut effect = Effect {
        flags_read: instruction.rflags_read(),
        flags_changed: instruction.rflags_modified(),
        flags_settled: instruction.rflags_modified() & !instruction.rflags_undefined(),
        simple: simple(instruction),
        ..Effect::default()
    };
    for used in factory.info(instruction).used_registers() {
        let Some(bit) = bit_of(used.register()) else { continue };
        let (reads, writes) = match used.access() {
            OpAccess::Read | OpAccess::CondRead => (true, false),
            OpAccess::Write if is_whole(used.register()) => (false, true),
            OpAccess::None | OpAccess::NoMemAccess => (false, false),
            _ => (true, true),
        };
        effect.reads |= if reads { bit } else { 0 };
        effect.writes |= if writes { bit } else { 0 };
    }
    effect
}

/// The bit of the general register that `register` is, or is a part of.
fn bit_of(register: Register) -> Option<u16> {
    let whole = register.full_register();
    whole.is_gpr64().then(|| 1 << whole.number())
}

/// Whether nothing is left of a register whose part `register` has been written.
fn is_whole(register: Register) -> bool {
    register.is_gpr64() || register.is_gpr32()
}

fn simple(instruction: &Instruction) -> Option<Simple> {
    use OperandPlace::{Absent, Immediate, Memory, Register as Place};
    let form = Form::of(instruction);
    let register = |operand| whole_or_low(instruction.op_register(operand));
    let constant = || instruction.immediate(1) & mask(form.width);
    let to = || (form.width >= 32).then(|| register(0)).flatten();
    let width = form.width;
    if form.first != Place || width > 64 {
        return None;
    }
    let add = |plus: u64| Some(Simple::Add { to: to()?, from: to()?, plus, width });
    let is_same = |other: Register| other.full_register() == instruction.op0_register().full_register();
    let count = |depends: bool| Some(Simple::Count { register: to().filter(|_| !depends)?, width });
    let (base, index) = (instruction.memory_base(), instruction.memory_index());
    match (instruction.mnemonic(), form.second) {
        (Mnemonic::Mov, Place) => Some(Simple::Add { to: to()?, from: register(1)?, plus: 0, width }),
        (Mnemonic::Lea, Memory) if base.is_gpr64() && index == Register::None => {
            let plus = instruction.memory_displacement64();
            Some(Simple::Add { to: to()?, from: whole_or_low(base)?, plus, width })
        }
        // The sum is an address, of which the register is a part, once.
        (Mnemonic::Lea, Memory) => count(!base.is_gpr64() || !is_same(base) || is_same(index)),
        (Mnemonic::Add | Mnemonic::Sub, Place) => count(is_same(instruction.op1_register())),
        (Mnemonic::Add | Mnemonic::Sub, Memory) => count(is_same(base) || is_same(index)),
        (Mnemonic::Inc, Absent) => add(1),
        (Mnemonic::Dec, Absent) => add(1_u64.wrapping_neg()),
        (Mnemonic::Add, Immediate) => add(constant()),
        (Mnemonic::Sub, Immediate) => add(constant().wrapping_neg()),
        (Mnemonic::Test, Immediate) => Some(Simple::Test { register: register(0)?, mask: constant(), width }),
        (Mnemonic::Test, Place) if instruction.op0_register() == instruction.op1_register() => {
            Some(Simple::Test { register: register(0)?, mask: mask(width), width })
        }
        (Mnemonic::Cmp, Place) => {
            Some(Simple::CompareBoth { first: register(0)?, second: register(1)?, width })
        }
        (Mnemonic::Cmp, Immediate) => {
            Some(Simple::Compare { register: register(0)?, with: constant(), width })
        }
        // Two registers: neither a branch nor SETcc.
        (_, Place) if instruction.condition_code() != ConditionCode::None => {
            let condition = instruction.condition_code() as u8 - ConditionCode::o as u8;
            Some(Simple::Select { to: to()?, from: register(1)?, condition, width })
        }
        _ => None,
    }
}

/// The number of a general register, if `register` is one or the low part of one.
fn whole_or_low(register: Register) -> Option<u8> {
    let is_high = matches!(register, Register::AH | Register::CH | Register::DH | Register::BH);
    if is_high { None } else { general(register.full_register()) }
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions, RflagsBits};

    use super::*;

    fn effect(bytes: &[u8]) -> Effect {
        let instruction = Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE).decode();
        of(&mut InstructionInfoFactory::new(), &instruction)
    }

    #[test]
    fn sums_and_counts_are_told_from_what_depends_on_more() {
        let add = |to, from, plus, width| Some(Simple::Add { to, from, plus, width });
        let count = |register, width| Some(Simple::Count { register, width });
        for (bytes, expected) in [
            (&[0x49, 0xff, 0xc1][..], add(9, 9, 1, 64)),     // inc r9
            (&[0xff, 0xc8], add(0, 0, u64::MAX, 32)),        // dec eax
            (&[0x48, 0x83, 0xc0, 0x05], add(0, 0, 5, 64)),   // add rax, 5
            (&[0x48, 0x01, 0xc8], count(0, 64)),             // add rax, rcx
            (&[0x48, 0x03, 0x01], count(0, 64)),             // add rax, [rcx]
            (&[0x48, 0x8d, 0x40, 0x01], add(0, 0, 1, 64)),   // lea rax, [rax + 1]
            (&[0x48, 0x8d, 0x44, 0x08, 0x01], count(0, 64)), // lea rax, [rax + rcx + 1]
            (&[0x48, 0x8d, 0x04, 0x00], None),               // lea rax, [rax + rax]
            (&[0x48, 0x8d, 0x41, 0x01], add(0, 1, 1, 64)),   // lea rax, [rcx + 1]
            (&[0x48, 0x01, 0xc0], None),                     // add rax, rax
            (&[0x48, 0x03, 0x00], None),                     // add rax, [rax]
            (&[0xfe, 0xc0], None),                           // inc al
            (&[0x48, 0xff, 0x00], None),                     // inc qword [rax]
            (&[0x48, 0x0f, 0xaf, 0xc1], None),               // imul rax, rcx
            (&[0x48, 0x89, 0xc8], add(0, 1, 0, 64)),         // mov rax, rcx
        ] {
            assert_eq!(effect(bytes).simple, expected, "{bytes:02x?}");
        }
        // mov al, cl: the rest of RAX stays, and is read.
        let Effect { reads, writes, .. } = effect(&[0x88, 0xc8]);
        assert_eq!((reads, writes), (0b11, 0b01));
        // test eax, eax: AF is undefined.
        assert_eq!(effect(&[0x85, 0xc0]).flags_settled & (RflagsBits::AF | RflagsBits::ZF), RflagsBits::ZF);
    }
}
