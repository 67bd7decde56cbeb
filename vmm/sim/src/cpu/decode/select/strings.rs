//! String instructions, repeated or not.

use iced_x86::{Code, Instruction, OpKind, Register};

use crate::cpu::bus::Bus;
use crate::cpu::op::Run;
use crate::cpu::operations::{machine, strings};

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

pub(super) fn string<B: Bus>(instruction: &Instruction) -> Option<Run<B>> {
    let addresses = |kind| matches!(kind, OpKind::MemoryESRDI | OpKind::MemorySegRSI | OpKind::Register);
    let flat = !matches!(instruction.segment_prefix(), Register::FS | Register::GS);
    if !flat || !(0..instruction.op_count()).all(|operand| addresses(instruction.op_kind(operand))) {
        return None;
    }
    Some(match instruction.code() {
        Code::Movsb_m8_m8 => repeated!(instruction, strings::Move, 8),
        Code::Movsw_m16_m16 => repeated!(instruction, strings::Move, 16),
        Code::Movsd_m32_m32 => repeated!(instruction, strings::Move, 32),
        Code::Movsq_m64_m64 => repeated!(instruction, strings::Move, 64),
        Code::Stosb_m8_AL => repeated!(instruction, strings::Store, 8),
        Code::Stosw_m16_AX => repeated!(instruction, strings::Store, 16),
        Code::Stosd_m32_EAX => repeated!(instruction, strings::Store, 32),
        Code::Stosq_m64_RAX => repeated!(instruction, strings::Store, 64),
        Code::Lodsb_AL_m8 => repeated!(instruction, strings::Load, 8),
        Code::Lodsw_AX_m16 => repeated!(instruction, strings::Load, 16),
        Code::Lodsd_EAX_m32 => repeated!(instruction, strings::Load, 32),
        Code::Lodsq_RAX_m64 => repeated!(instruction, strings::Load, 64),
        Code::Scasb_AL_m8 => repeated!(instruction, strings::Scan, 8),
        Code::Scasw_AX_m16 => repeated!(instruction, strings::Scan, 16),
        Code::Scasd_EAX_m32 => repeated!(instruction, strings::Scan, 32),
        Code::Scasq_RAX_m64 => repeated!(instruction, strings::Scan, 64),
        Code::Cmpsb_m8_m8 => repeated!(instruction, strings::Compare, 8),
        Code::Cmpsw_m16_m16 => repeated!(instruction, strings::Compare, 16),
        Code::Cmpsd_m32_m32 => repeated!(instruction, strings::Compare, 32),
        Code::Cmpsq_m64_m64 => repeated!(instruction, strings::Compare, 64),
        Code::Outsb_DX_m8 if instruction.has_rep_prefix() => machine::out_string::<B, 8, true>,
        Code::Outsb_DX_m8 => machine::out_string::<B, 8, false>,
        Code::Outsw_DX_m16 if instruction.has_rep_prefix() => machine::out_string::<B, 16, true>,
        Code::Outsw_DX_m16 => machine::out_string::<B, 16, false>,
        Code::Outsd_DX_m32 if instruction.has_rep_prefix() => machine::out_string::<B, 32, true>,
        Code::Outsd_DX_m32 => machine::out_string::<B, 32, false>,
        _ => return None,
    })
}
