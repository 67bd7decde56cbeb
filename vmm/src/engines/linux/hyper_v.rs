//! Hyper-V, as far as paravirtual spin locks need one: its CPUID, and the register at which a vCPU sleeps until an interrupt comes for it,
//! be it masked. By Microsoft's Hypervisor Top Level Functional Specification.
//!
//! KVM plays Hyper-V, too, but has no such register: it hands reads of it to the VMM.

use std::sync::atomic::{AtomicU64, Ordering};

use kvm_bindings::CpuId;
use kvm_ioctls::VcpuFd;

use super::cpu;
use crate::host::signal;

/// `HV_X64_MSR_GUEST_IDLE`.
const GUEST_IDLE: u32 = 0x4000_00f0;
/// How often a vCPU that sleeps is looked at.
const LOOK_NS: u64 = 200_000;

/// How often vCPUs have slept until an interrupt came.
#[derive(Debug, Default)]
pub(crate) struct Idling(AtomicU64);

impl Idling {
    /// How often so far.
    pub(crate) fn sleeps(&self) -> u64 {
        // Relaxed: a count.
        self.0.load(Ordering::Relaxed)
    }

    /// A vCPU of the calling thread has read `register`. Whether that is the one to sleep at; then it has slept, until an interrupt
    /// came for it or the thread was kicked.
    pub(crate) fn reads(&self, register: u32, vcpu: &VcpuFd) -> bool {
        if register != GUEST_IDLE {
            return false;
        }
        let mut slept = false;
        while !has_interrupt(vcpu) {
            if signal::await_kick(LOOK_NS) {
                // Whoever kicks wants the thread to look at its flags, as it does after each KVM_RUN: this is over at once.
                signal::Thread::current().kick();
                return true;
            }
            slept = true;
        }
        // Relaxed: a count.
        self.0.fetch_add(u64::from(slept), Ordering::Relaxed);
        true
    }
}

/// Whether an interrupt is pending in the local APIC, deliverable or not. A vCPU whose state cannot be read does not sleep.
fn has_interrupt(vcpu: &VcpuFd) -> bool {
    /// The eight words of the interrupt request register, 16 bytes apart.
    const REQUESTS: std::ops::Range<usize> = 0x200..0x280;
    vcpu.get_lapic().map_or(true, |apic| {
        REQUESTS.step_by(16).any(|at| apic.regs[at..at + 4].iter().any(|byte| *byte != 0))
    })
}

/// `cpuid` with Hyper-V's leaves in the place of KVM's. Without `pv`, nobody can sleep.
pub(super) fn offered(cpuid: &CpuId, pv: bool) -> CpuId {
    const GUEST_IDLE_REGISTER: u32 = 1 << 10;
    const CLUSTER_IPI_RECOMMENDED: u32 = 1 << 10;
    const NEVER_NOTIFY: u32 = u32::MAX;
    let word = |text: &[u8; 4]| u32::from_le_bytes(*text);
    let privileges = if pv { GUEST_IDLE_REGISTER } else { 0 };
    let leaves = [
        [0x4000_0005, word(b"Micr"), word(b"osof"), word(b"t Hv")],
        [word(b"Hv#1"), 0, 0, 0],
        [0; 4],
        [privileges, 0, 0, 0],
        [CLUSTER_IPI_RECOMMENDED, NEVER_NOTIFY, 0, 0],
        [0; 4],
    ];
    cpu::with_leaves(cpuid, &leaves)
}
