//! The instructions: interrupts off and on, halt, hypercalls of KVM, and writes of model-specific registers.
#![expect(unsafe_code, reason = "privileged instructions")]

use core::arch::asm;

/// Whether the calling CPU takes interrupts.
#[inline(always)]
pub(crate) fn interrupts_are_on() -> bool {
    const IF: u64 = 1 << 9;
    let flags: u64;
    // SAFETY: reads the flags by way of the stack, which this target's code may use here.
    unsafe { asm!("pushfq", "pop {}", out(reg) flags, options(preserves_flags)) };
    flags & IF != 0
}

/// No interrupts from here on.
///
/// # Safety
///
/// At CPL 0.
#[inline(always)]
pub(crate) unsafe fn turn_interrupts_off() {
    // SAFETY: the caller's promise. It is a barrier for the compiler: what follows stays behind it.
    unsafe { asm!("cli", options(nostack)) };
}

/// Interrupts from here on.
///
/// # Safety
///
/// At CPL 0, where the kernel can take them.
#[inline(always)]
pub(crate) unsafe fn turn_interrupts_on() {
    // SAFETY: the caller's promise.
    unsafe { asm!("sti", options(nostack)) };
}

/// Halts with interrupts off, until a kick.
///
/// # Safety
///
/// At CPL 0.
#[inline(always)]
pub(crate) unsafe fn halt() {
    // SAFETY: the caller's promise.
    unsafe { asm!("hlt", options(nostack, preserves_flags)) };
}

/// Turns interrupts on and halts in one step, until one comes, or a kick.
///
/// # Safety
///
/// As [`turn_interrupts_on`].
#[inline(always)]
pub(crate) unsafe fn halt_with_interrupts() {
    // STI takes effect after the next instruction: no interrupt, which may be what is waited for, gets in between.
    // SAFETY: the caller's promise.
    unsafe { asm!("sti", "hlt", options(nostack)) };
}

/// A hypercall with two arguments.
///
/// # Safety
///
/// At CPL 0, on KVM, by its CPU's instruction for it; and what the call does must be all right.
#[inline]
pub(crate) unsafe fn kvm_hypercall(is_vmmcall: bool, number: u64, first: u64, second: u64) {
    // The compiler keeps RBX for itself, so it is exchanged for the time of the call. SAFETY: the caller's promise; KVM changes RAX alone.
    unsafe {
        if is_vmmcall {
            asm!(
                "xchg rbx, {first}", "vmmcall", "xchg rbx, {first}",
                first = inout(reg) first => _, inout("rax") number => _, in("rcx") second, options(nostack)
            );
        } else {
            asm!(
                "xchg rbx, {first}", "vmcall", "xchg rbx, {first}",
                first = inout(reg) first => _, inout("rax") number => _, in("rcx") second, options(nostack)
            );
        }
    }
}

/// Writes a model-specific register.
///
/// # Safety
///
/// At CPL 0, a register that exists, and a value that does no harm.
pub(crate) unsafe fn write_msr(register: u32, value: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "wrmsr",
            in("ecx") register, in("eax") value as u32, in("edx") (value >> 32) as u32,
            options(nostack, preserves_flags)
        );
    }
}
