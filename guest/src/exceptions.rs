//! 256 vector stubs and the frame that they make. Whatever comes here is reported and stops the guest.
#![expect(unsafe_code, reason = "interrupt entry code and the frame it leaves on the stack")]

use core::arch::{asm, global_asm};
use core::sync::atomic::Ordering;

use crate::{hypercall, percpu};

/// Bytes per stub, as the image's note says.
pub(crate) const STUB_BYTES: u32 = 16;

// Stub n pushes an error code where the CPU did not (SDM vol. 3, 6.15), then its number. The direction flag is
// cleared for the System V ABI; nothing is restored, because nothing returns.
global_asm!(
    ".pushsection .text.haltkick_vectors, \"ax\"",
    ".global haltkick_vectors",
    ".p2align 4",
    "haltkick_vectors:",
    ".set vector, 0",
    ".rept 256",
    ".p2align 4",
    ".if !(vector == 8 || (vector >= 10 && vector <= 14) || vector == 17 || vector == 21 || vector == 29 || vector == 30)",
    "push 0",
    ".endif",
    "push vector",
    "jmp haltkick_exception",
    ".set vector, vector + 1",
    ".endr",
    "haltkick_exception:",
    "cld",
    "mov rdi, rsp",
    "and rsp, -16",
    "call {report}",
    "ud2",
    ".popsection",
    report = sym report,
);

unsafe extern "C" {
    /// The stubs, for the image's note.
    #[link_name = "haltkick_vectors"]
    pub(crate) static STUBS: u8;
}

/// What a stub and the CPU have pushed, lowest address first.
#[repr(C)]
struct Frame {
    vector: u64,
    error_code: u64,
    rip: u64,
    cs: u64,
    rflags: u64,
    rsp: u64,
    ss: u64,
}

extern "C" fn report(frame: &Frame) -> ! {
    let report = &percpu::this().report;
    let cr2: u64;
    // SAFETY: every vector is entered through an interrupt gate to ring 0, where CR2 may be read.
    unsafe { asm!("mov {}, cr2", out(reg) cr2, options(nomem, nostack, preserves_flags)) };
    // Relaxed: the VMM reads the report after the exit that ends this vCPU.
    for (field, value) in [
        (&report.code, frame.vector),
        (&report.error_code, frame.error_code),
        (&report.rip, frame.rip),
        (&report.cs, frame.cs),
        (&report.rflags, frame.rflags),
        (&report.rsp, frame.rsp),
        (&report.cr2, cr2),
    ] {
        field.store(value, Ordering::Relaxed);
    }
    let _ = frame.ss;
    hypercall::exception()
}
