//! 256 vector stubs, and what becomes of what they catch.
//!
//! Ring 0 may be interpreted (half a microsecond an instruction), so that nothing is done there that can be done
//! elsewhere. Four vectors are served:
//! - #PF: the stub leaves address, error code and RAX at the top of the exception stack and returns to
//!   [`haltkick_page_fault`](page_fault) in the interrupted ring, on the interrupted stack (this target has no red zone).
//!   That one ends with an IRETQ of its own, which needs no privilege to return to the same ring.
//! - #BP: what ring 3 asks of ring 0, see `mmu`.
//! - The interrupt that ends a HLT, see `halt`: acknowledged, and that is all.
//! - NMI: the VMM says that translations have gone stale. That of one page is dropped, or CR3 reloaded. Or another vCPU
//!   interrupts this one: then the stub makes the interrupted code call [`interrupts::taken`], in its ring and on its stack.
//!
//! Whatever else comes is reported and stops the guest.
#![expect(unsafe_code, reason = "interrupt entry code and the frames it leaves on the stacks")]

use core::arch::{asm, global_asm};
use core::mem::offset_of;
use core::sync::atomic::Ordering;

use haltkick_hypercalls::{
    EXCEPTION_STACK_OFFSET, Invalidation, PORT_EXCEPTION, STALE_ALL, STALE_INTERRUPT, VcpuArea, WAKE_VECTOR,
};

use crate::cpu::{apic, percpu};
use crate::monitor::hypercall;
use crate::traps::{interrupts, user};

/// Bytes per stub, as the image's note says.
pub(crate) const STUB_BYTES: u32 = 64;

/// In EDX at an INT3: drop the translation of the page at RAX.
pub(crate) const SERVICE_INVALIDATE_PAGE: u32 = 0x6b1c_0001;
/// In EDX at an INT3: load CR3 from RAX.
pub(crate) const SERVICE_LOAD_CR3: u32 = 0x6b1c_0002;

const PAGE_FAULT: u64 = 14;

// Stub n pushes an error code where the CPU did not (SDM vol. 3, 6.15), then its number. The direction flag is
// cleared for the System V ABI; nothing is restored, because nothing returns.
//
// The #PF stub finds the error code at the stack's top minus 48, leaves RAX at minus 56 and CR2 at minus 64,
// and takes with it the interrupted RIP in RAX. Nothing overwrites these before `haltkick_page_fault` has read
// them: it causes no exception until then. Under our VMM the NMI has another stack; in bare mode there is none,
// since none is sent, and page faults are not served.
global_asm!(
    ".pushsection .text.haltkick_vectors, \"ax\"",
    ".global haltkick_vectors",
    ".p2align 6",
    "haltkick_vectors:",
    ".set vector, 0",
    ".rept 256",
    // The place of the stub according to the image's note. The assembler refuses to go back, so that none is
    // too long.
    ".org haltkick_vectors + vector * {stub_bytes}",
    ".if vector == 14",
    "push rax",
    "mov rax, cr2",
    "push rax",
    "mov eax, offset haltkick_page_fault",
    "xchg rax, [rsp + 24]",
    "add rsp, 24",
    "iretq",
    ".elseif vector == 2",
    "push rax",
    "xor eax, eax",
    "xchg rax, gs:[{stale}]",
    "test al, {interrupt}",
    "jnz haltkick_interrupt",
    "test al, {all}",
    "jnz 2f",
    "invlpg [rax]",
    "pop rax",
    "iretq",
    "2: mov rax, cr3",
    "mov cr3, rax",
    "pop rax",
    "iretq",
    ".elseif vector == {wake}",
    "push rax",
    "push rcx",
    "push rdx",
    "cmp byte ptr [rip + {apic_in_memory}], 0",
    "jne 2f",
    "mov ecx, 0x80b", // x2APIC: end of interrupt
    "xor eax, eax",
    "xor edx, edx",
    "wrmsr",
    "jmp 3f",
    "2: mov eax, 0xfee000b0", // xAPIC: the same
    "mov dword ptr [rax], 0",
    "3: pop rdx",
    "pop rcx",
    "pop rax",
    "iretq",
    ".elseif vector == 3",
    "cmp edx, {invalidate_page}",
    "jne 3f",
    "invlpg [rax]",
    "iretq",
    "3: cmp edx, {load_cr3}",
    "jne 4f",
    "mov cr3, rax",
    "iretq",
    "4: push 0",
    "push vector",
    "jmp haltkick_exception",
    ".else",
    ".if !(vector == 8 || (vector >= 10 && vector <= 14) || vector == 17 || vector == 21 || vector == 29 || vector == 30)",
    "push 0",
    ".endif",
    "push vector",
    "jmp haltkick_exception",
    ".endif",
    ".set vector, vector + 1",
    ".endr",
    ".org haltkick_vectors + 256 * {stub_bytes}",
    // An NMI that is an interrupt, too. Interrupted in a stub there is no code to go on with: the next one is taken for it.
    "haltkick_interrupt:",
    "and rax, -1 - {interrupt}",
    "jz 3f",
    "test al, {all}",
    "jnz 2f",
    "invlpg [rax]",
    "jmp 3f",
    "2: mov rax, cr3",
    "mov cr3, rax",
    "3: mov rax, [rsp + 8]",
    "cmp rax, offset haltkick_vectors",
    "jb 4f",
    "cmp rax, offset haltkick_stubs_end",
    "jb 5f",
    "4: push rcx",
    // The interrupted code's RIP goes onto its stack, as by a call.
    "mov rcx, [rsp + 16]",
    "mov rax, [rsp + 40]",
    "sub rax, 8",
    "mov [rax], rcx",
    "mov [rsp + 40], rax",
    "pop rcx",
    "mov eax, offset haltkick_interrupted",
    "mov [rsp + 8], rax",
    "pop rax",
    "iretq",
    "5: lock or qword ptr gs:[{stale}], {interrupt}",
    "pop rax",
    "iretq",
    "haltkick_stubs_end:",
    // Called by no call: whatever a function may change is as it was when it returns.
    "haltkick_interrupted:",
    "pushfq",
    "cld",
    ".irp register, rax, rcx, rdx, rsi, rdi, r8, r9, r10, r11, rbx",
    "push \\register",
    ".endr",
    "mov rbx, rsp",
    "and rsp, -16",
    "call {interrupted}",
    "mov rsp, rbx",
    ".irp register, rbx, r11, r10, r9, r8, rdi, rsi, rdx, rcx, rax",
    "pop \\register",
    ".endr",
    "popfq",
    "ret",
    "haltkick_exception:",
    "cld",
    "mov rdi, rsp",
    "and rsp, -16",
    "call {report}",
    "ud2",
    // In the interrupted ring. First an IRETQ frame and the registers that a call may change: a `Trap`.
    "haltkick_page_fault:",
    "push rax",
    "push rax",
    "pushfq",
    "push rax",
    "push rax",
    "push rax",
    ".irp register, rcx, rdx, rsi, rdi, r8, r9, r10, r11",
    "push \\register",
    ".endr",
    "mov ecx, ss",
    "mov [rsp + 13*8], rcx",
    "lea rcx, [rsp + 14*8]",
    "mov [rsp + 12*8], rcx",
    "mov ecx, cs",
    "mov [rsp + 10*8], rcx",
    "mov rcx, gs:[{exception_stack}]",
    "mov rdx, [rcx - 56]",
    "mov [rsp + 8*8], rdx",
    "mov rdi, rsp",
    "mov rsi, [rcx - 64]",
    "mov rdx, [rcx - 48]",
    "cld",
    "push rbx",
    "mov rbx, rsp",
    "and rsp, -16",
    "call {page_fault}",
    "mov rsp, rbx",
    ".irp register, rbx, r11, r10, r9, r8, rdi, rsi, rdx, rcx, rax",
    "pop \\register",
    ".endr",
    "iretq",
    ".popsection",
    stub_bytes = const STUB_BYTES,
    wake = const WAKE_VECTOR,
    apic_in_memory = sym apic::IN_MEMORY,
    report = sym report,
    page_fault = sym page_fault,
    interrupted = sym interrupts::taken,
    exception_stack = const EXCEPTION_STACK_OFFSET,
    invalidate_page = const SERVICE_INVALIDATE_PAGE,
    load_cr3 = const SERVICE_LOAD_CR3,
    stale = const offset_of!(VcpuArea, invalidation) + offset_of!(Invalidation, stale),
    all = const STALE_ALL,
    interrupt = const STALE_INTERRUPT,
);

unsafe extern "C" {
    /// The stubs, for the image's note.
    #[link_name = "haltkick_vectors"]
    pub(crate) static STUBS: u8;
}

/// State of the interrupted code that the CPU pushes, lowest address first.
#[repr(C)]
struct Interrupted {
    rip: u64,
    cs: u64,
    rflags: u64,
    rsp: u64,
    _ss: u64,
}

/// Values that a stub and the CPU have pushed, lowest address first.
#[repr(C)]
struct Frame {
    vector: u64,
    error_code: u64,
    interrupted: Interrupted,
}

extern "C" fn report(frame: &Frame) -> ! {
    let cr2: u64;
    // SAFETY: every vector is entered through an interrupt gate to ring 0, where CR2 may be read.
    unsafe { asm!("mov {}, cr2", out(reg) cr2, options(nomem, nostack, preserves_flags)) };
    give_up(frame.vector, frame.error_code, &frame.interrupted, cr2)
}

/// Registers that `haltkick_page_fault` has saved, lowest address first. The handler may change any of them.
#[repr(C)]
struct Trap {
    _r11_to_rcx: [u64; 8],
    rax: u64,
    interrupted: Interrupted,
}

/// A page fault at `address`. On return the interrupted code goes on as `trap` says.
extern "C" fn page_fault(trap: &mut Trap, address: u64, error_code: u64) {
    match (user::handle(address, error_code), user::after_access(trap.interrupted.rip)) {
        (user::Verdict::Retry, _) => {}
        (user::Verdict::Signal(signal), Some(end)) => {
            trap.rax = user::number(signal);
            trap.interrupted.rip = end;
        }
        (user::Verdict::Signal(_) | user::Verdict::NotMine, _) => {
            give_up(PAGE_FAULT, error_code, &trap.interrupted, address)
        }
    }
}

/// Tells the VMM of an exception without a handler.
fn give_up(vector: u64, error_code: u64, interrupted: &Interrupted, cr2: u64) -> ! {
    let report = &percpu::this().report;
    // Relaxed: the VMM reads the report after the exit that ends this vCPU.
    for (field, value) in [
        (&report.code, vector),
        (&report.error_code, error_code),
        (&report.rip, interrupted.rip),
        (&report.cs, interrupted.cs),
        (&report.rflags, interrupted.rflags),
        (&report.rsp, interrupted.rsp),
        (&report.cr2, cr2),
    ] {
        field.store(value, Ordering::Relaxed);
    }
    hypercall::end(PORT_EXCEPTION)
}
