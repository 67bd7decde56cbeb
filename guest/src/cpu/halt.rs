//! Sleeping in KVM's hands: `pv_wait` is HLT, `pv_kick` a hypercall or an interrupt. For ring 0, where the VMM asks for it.
//!
//! A vCPU runs with interrupts off, always. That makes check and halt one step (locks.md T11): what is sent after the
//! check stays pending until the vCPU halts, and ends that halt at once.
//! - KVM_HC_KICK_CPU ends a HLT even with interrupts off, now or the next one (PV_UNHALT).
//! - An interrupt stays pending in the local APIC. `sti; hlt` takes it before HLT or wakes up by it: STI delays
//!   interrupts by one instruction, so none is taken between the two. Its handler only acknowledges it.
#![expect(unsafe_code, reason = "privileged instructions")]

use core::arch::asm;
use core::arch::x86_64::__cpuid;

use haltkick_hypercalls::{BootFlags, WAKE_VECTOR};

use crate::cpu::apic;
use crate::cpu::percpu::boot;

/// KVM_HC_KICK_CPU: flags (0) and APIC id.
const KICK_CPU: u64 = 5;
/// KVM_HC_SCHED_YIELD: APIC id.
const SCHED_YIELD: u64 = 11;

/// Whether vCPUs sleep by HLT.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    boot().flags.has(BootFlags::HALT)
}

/// Whether a directed yield is a hypercall.
#[inline(always)]
pub(crate) fn yields() -> bool {
    boot().flags.has(BootFlags::YIELD_HYPERCALL)
}

fn kicks_by_hypercall() -> bool {
    boot().flags.has(BootFlags::KICK_HYPERCALL)
}

/// Each vCPU, before it may sleep: checks that the host keeps the promises that sleeping rests on, and lets its local APIC
/// accept interrupts.
pub(crate) fn init() {
    if kicks_by_hypercall() {
        assert!(has_pv_unhalt(), "told to kick by hypercall, but CPUID does not offer KVM_FEATURE_PV_UNHALT");
    }
    apic::accept_interrupts();
}

/// Whether a kick by hypercall ends a HLT.
pub(crate) fn has_pv_unhalt() -> bool {
    const PV_UNHALT: u32 = 1 << 7;
    kvm_features() & PV_UNHALT != 0
}

/// KVM's paravirtual features. As a guest must: they are KVM's only under KVM's signature.
pub(crate) fn kvm_features() -> u32 {
    const HYPERVISOR: u32 = 1 << 31;
    if __cpuid(1).ecx & HYPERVISOR == 0 {
        return 0;
    }
    let signature = __cpuid(0x4000_0000);
    // "KVMKVMKVM"
    let is_kvm = (signature.ebx, signature.ecx, signature.edx) == (0x4b4d_564b, 0x564b_4d56, 0x4d);
    if is_kvm { __cpuid(0x4000_0001).eax } else { 0 }
}

/// Sleeps until the next kick, or returns at once if there has been one.
pub(crate) fn wait() {
    // SAFETY: ring 0 (the VMM asks for this there only), interrupts off before and after. Not `nomem`: memory that
    // others write may have changed.
    unsafe {
        if kicks_by_hypercall() {
            asm!("hlt", options(nostack, preserves_flags));
            return;
        }
    }
    wait_for_interrupt();
}

/// Sleeps until the next interrupt, or takes the pending one.
pub(crate) fn wait_for_interrupt() {
    // SAFETY: as in `wait`; every interrupt that may come has a handler.
    unsafe { asm!("sti", "hlt", "cli", options(nostack)) }
}

pub(crate) fn kick(cpu: u32) {
    if kicks_by_hypercall() {
        hypercall(KICK_CPU, 0, u64::from(apic_id(cpu)));
    } else {
        apic::send(apic_id(cpu), u32::from(WAKE_VECTOR));
    }
}

/// Under our VMM the APIC id is the index.
fn apic_id(cpu: u32) -> u32 {
    if boot().flags.has(BootFlags::BARE) { apic::id_of(cpu) } else { cpu }
}

/// Gives the slice to vCPU `cpu`, if the host will.
pub(crate) fn yield_to(cpu: u32) {
    hypercall(SCHED_YIELD, u64::from(apic_id(cpu)), 0);
}

fn hypercall(number: u64, first: u64, second: u64) {
    // SAFETY: ring 0, under KVM, with a number that it offers. It changes RAX and nothing else. RBX, which carries the
    // first argument, is reserved by the compiler, so it is put back.
    unsafe {
        if boot().flags.has(BootFlags::VMMCALL) {
            asm!("xchg rbx, {first}", "vmmcall", "xchg rbx, {first}", first = inout(reg) first => _,
                 inout("rax") number => _, in("rcx") second, options(nostack));
        } else {
            asm!("xchg rbx, {first}", "vmcall", "xchg rbx, {first}", first = inout(reg) first => _,
                 inout("rax") number => _, in("rcx") second, options(nostack));
        }
    }
}
