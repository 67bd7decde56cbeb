//! Call sites, rewritten before the guest starts as a kernel does at boot.
//!
//! An image marks where its workloads take and release a lock. As built, each place calls through a table. For the lock
//! of a run the VMM puts there what the table would lead to: the function itself, if it is straight code no longer than
//! the call (the native unlock of a queue spinlock is one byte store), else a direct call.
//!
//! `sites` has checked what is replaced: calls through memory, which are longer than direct ones. Memory must still hold them.

use std::ops::Range;

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, InstructionInfoFactory, Register};

use crate::host::error::RunError;
use crate::image::file::Image;
use crate::image::sites::{Calls, Operation, Site};

/// The code that replaces a site's call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A direct call of this function.
    Call(u64),
    /// The code of this function, without its return.
    Inline(u64),
}

/// One site before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// Address of the site.
    pub address: u64,
    /// The lock operation of the site.
    pub operation: Operation,
    /// Form of the code that replaces the call.
    pub form: Form,
    /// The code as built.
    pub before: Vec<u8>,
    /// The code that replaces it, of the same length.
    pub after: Vec<u8>,
}

impl Image {
    /// How form `pv` of lock number `lock` is called; `None` when the image does not say.
    #[must_use]
    pub fn calls(&self, lock: usize, pv: bool) -> Option<Calls> {
        self.calls.get(lock).map(|forms| forms[usize::from(pv)])
    }

    /// Returns the addresses of the lock `name`, if it is an object.
    pub(crate) fn object_addresses(&self, name: &str) -> Option<Range<u64>> {
        let own = self.locks.len() - self.objects.len();
        let object = self.locks.iter().skip(own).position(|lock| lock.name == name)?;
        Some(self.objects[object].addresses.clone())
    }

    /// Returns the edits after which every site serves form `pv` of lock number `lock` without the table. Empty for
    /// an image without sites, and for a lock that none of them calls.
    ///
    /// # Errors
    /// [`RunError::Image`] when a site cannot be rewritten.
    pub fn edits(&self, lock: usize, pv: bool) -> Result<Vec<Edit>, RunError> {
        let Some(calls) = self.calls(lock, pv) else { return Ok(vec![]) };
        let edit = |site: &Site| {
            let target = calls.function(site.operation)?;
            Some(
                self.edit(site, target).map_err(|reason| RunError::Image { path: self.path.clone(), reason }),
            )
        };
        self.sites.iter().filter_map(edit).collect()
    }

    fn edit(&self, site: &Site, target: u64) -> Result<Edit, String> {
        let before = self.bytes_at(site.address, site.bytes).expect("checked when the image was read");
        let (mut after, form) = match self.straight_code(target, site.bytes) {
            Some(code) => (code.to_vec(), Form::Inline(target)),
            None => (direct_call(site.address, target)?, Form::Call(target)),
        };
        fill_with_nops(&mut after, site.bytes as usize);
        Ok(Edit { address: site.address, operation: site.operation, form, before: before.to_vec(), after })
    }

    /// The code of the function at `target` up to its return, if it can stand anywhere: at most `most` bytes that
    /// neither branch nor touch the stack nor depend on where they lie.
    fn straight_code(&self, target: u64, most: u64) -> Option<&[u8]> {
        const LONGEST_INSTRUCTION: u64 = 15;
        let within =
            (1..=most + LONGEST_INSTRUCTION).rev().find_map(|length| self.bytes_at(target, length))?;
        let mut info = InstructionInfoFactory::new();
        for instruction in Decoder::with_ip(64, within, target, DecoderOptions::NONE) {
            let length = instruction.ip() - target;
            if instruction.code() == Code::Retnq {
                return self.bytes_at(target, length).filter(|code| code.len() as u64 <= most);
            }
            let uses_stack = info
                .info(&instruction)
                .used_registers()
                .iter()
                .any(|used| used.register().full_register() == Register::RSP);
            let moves = instruction.flow_control() != FlowControl::Next
                || instruction.is_ip_rel_memory_operand()
                || instruction.is_invalid();
            if moves || uses_stack {
                return None;
            }
        }
        None
    }
}

/// `call target`, for `address` (SDM vol. 2, CALL: E8 and the distance from the end of the instruction). By hand: an encoder
/// for all instructions takes longer to set up than everything else here together.
fn direct_call(address: u64, target: u64) -> Result<Vec<u8>, String> {
    const BYTES: u64 = 5;
    let distance = target.wrapping_sub(address + BYTES).cast_signed();
    let distance = i32::try_from(distance)
        .map_err(|_| format!("cannot be patched at {address:#x}: {target:#x} is too far for a call"))?;
    Ok([&[0xe8][..], &distance.to_le_bytes()].concat())
}

/// Fills up to `length` bytes with as few instructions as may be (SDM vol. 2, NOP).
fn fill_with_nops(code: &mut Vec<u8>, length: usize) {
    const NOPS: [&[u8]; 9] = [
        &[0x90],
        &[0x66, 0x90],
        &[0x0f, 0x1f, 0x00],
        &[0x0f, 0x1f, 0x40, 0x00],
        &[0x0f, 0x1f, 0x44, 0x00, 0x00],
        &[0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00],
        &[0x0f, 0x1f, 0x80, 0x00, 0x00, 0x00, 0x00],
        &[0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
        &[0x66, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
    ];
    while code.len() < length {
        code.extend_from_slice(NOPS[(length - code.len()).min(NOPS.len()) - 1]);
    }
}

#[cfg(test)]
mod tests {
    use iced_x86::{Instruction, OpKind};

    use super::*;

    fn lock(image: &Image, name: &str) -> usize {
        image.locks.iter().position(|lock| lock.name == name).expect("the image has this lock")
    }

    fn edit_of(name: &str, pv: bool, operation: Operation) -> Edit {
        let image = Image::embedded();
        let edits = image.edits(lock(&image, name), pv).expect("the embedded image can be patched");
        edits.into_iter().find(|edit| edit.operation == operation).expect("there is such a site")
    }

    #[test]
    fn a_call_becomes_code_that_is_short_enough_or_a_direct_call() {
        let native = edit_of("qspinlock", false, Operation::Unlock);
        assert_eq!(native.before[..2], [0xff, 0x15], "a call through memory");
        // mov byte ptr [rdi], 0; nop dword ptr [rax]
        assert_eq!(native.after, [0xc6, 0x07, 0x00, 0x0f, 0x1f, 0x00]);
        for operation in Operation::ALL {
            assert_eq!(edit_of("none", false, operation).after, [0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00]);
        }
        let edit = edit_of("qspinlock", true, Operation::Unlock);
        let Form::Call(target) = edit.form else { panic!("{edit:?}") };
        let relative = i32::from_le_bytes(edit.after[1..5].try_into().expect("four bytes"));
        assert_eq!((edit.after[0], &edit.after[5..]), (0xe8, &[0x90][..]));
        assert_eq!(edit.address.wrapping_add(5).wrapping_add_signed(relative.into()), target);
        let image = Image::embedded();
        assert_eq!(
            image.calls(lock(&image, "qspinlock"), true).and_then(|calls| calls.functions[1]),
            Some(target)
        );
    }

    #[test]
    fn code_that_branches_or_needs_stack_or_place_is_not_moved() {
        let straight = |code: &[u8]| {
            let mut image = Image::embedded();
            image.segments[0].address = 0x1000;
            image.segments[0].bytes = code.to_vec();
            image.straight_code(0x1000, 6).map(<[u8]>::to_vec)
        };
        assert_eq!(straight(&[0xc6, 0x07, 0x00, 0xc3]), Some(vec![0xc6, 0x07, 0x00]));
        assert_eq!(straight(&[0xc3]), Some(vec![]));
        for (what, code) in [
            ("push rax; pop rax; ret", &[0x50, 0x58, 0xc3][..]),
            ("mov eax, [rsp]; ret", &[0x8b, 0x04, 0x24, 0xc3]),
            ("jmp $; ret", &[0xeb, 0xfe, 0xc3]),
            ("mov byte ptr [rip+1], 0; ret", &[0xc6, 0x05, 1, 0, 0, 0, 0, 0xc3]),
            ("seven bytes; ret", &[0x0f, 0x1f, 0x80, 0, 0, 0, 0, 0xc3]),
            ("int3", &[0xcc, 0xc3]),
            ("ret 8", &[0xc2, 8, 0]),
            ("no return", &[0x90; 30]),
        ] {
            assert_eq!(straight(code), None, "{what}");
        }
    }

    #[test]
    fn nops_fill_any_length() {
        let is_nop =
            |it: &Instruction| matches!(it.code(), Code::Nopd | Code::Nopw | Code::Nop_rm32 | Code::Nop_rm16);
        for length in 0..40 {
            let mut code = vec![];
            fill_with_nops(&mut code, length);
            assert_eq!(code.len(), length);
            let decoded = Decoder::with_ip(64, &code, 0, DecoderOptions::NONE);
            assert!(decoded.into_iter().all(|instruction| is_nop(&instruction)), "{length}");
        }
    }

    /// LOCKed operations in the function at `address`: its slow path is a function of its own.
    fn locked_operations(image: &Image, address: u64) -> usize {
        let next = image.symbols().iter().find(|symbol| symbol.address > address).expect("not the last");
        let code = image.bytes_at(address, next.address - address).expect("it is code");
        let decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
        decoder
            .into_iter()
            .filter(|it| {
                it.has_lock_prefix()
                    || (it.mnemonic() == iced_x86::Mnemonic::Xchg && it.op0_kind() == OpKind::Memory)
            })
            .count()
    }

    #[test]
    fn an_uncontended_paravirtual_pair_has_one_more_locked_operation() {
        let image = Image::embedded();
        let pair = |name, pv| {
            let calls = image.calls(lock(&image, name), pv).expect("the image tells of its locks");
            [0, 1].map(|of| locked_operations(&image, calls.functions[of].expect("a function")))
        };
        assert_eq!(pair("qspinlock", false), [1, 0], "compare-exchange; byte store");
        assert_eq!(pair("qspinlock", true), [1, 1], "compare-exchange twice");
        // The compiler may have made two copies of the attempt: for a slice that goes on, and for one given up.
        assert!(matches!(pair("qspinlock-wc", true), [1 | 2, 1]));
    }
}
