//! KVM's interrupt controllers: what a VM and its vCPUs need to halt and to be woken in the kernel.

use kvm_bindings::{
    CpuId, KVM_CAP_SPLIT_IRQCHIP, KVM_CAP_X2APIC_API, KVM_MP_STATE_RUNNABLE,
    KVM_X2APIC_API_DISABLE_BROADCAST_QUIRK, KVM_X2APIC_API_USE_32BIT_IDS, kvm_mp_state, kvm_sregs,
};
use kvm_ioctls::VmFd;

use crate::host::error::{RunError, system};
use crate::machine::capabilities::enable;
use crate::machine::vcpu::KvmVcpu;

/// Gives a VM without vCPUs an interrupt controller in the kernel: local APICs only, with 32-bit ids.
pub(crate) fn create(vm: &VmFd) -> Result<(), RunError> {
    enable(vm, KVM_CAP_SPLIT_IRQCHIP, 24).map_err(system("create an interrupt controller in the kernel"))?;
    let x2apic = KVM_X2APIC_API_USE_32BIT_IDS | KVM_X2APIC_API_DISABLE_BROADCAST_QUIRK;
    enable(vm, KVM_CAP_X2APIC_API, u64::from(x2apic)).map_err(system("let APIC ids have 32 bits"))
}

/// Gives a VM without vCPUs all interrupt controllers that KVM has: local APICs and an I/O APIC.
pub(crate) fn create_full(vm: &VmFd) -> Result<(), RunError> {
    /// Pages that VMX may need for itself, below the usual place of the firmware; outside all memory.
    const TSS_PAGES: usize = 0xfffb_d000;
    vm.set_tss_address(TSS_PAGES).map_err(system("say where KVM may keep pages of its own"))?;
    vm.create_irq_chip().map_err(system("create the interrupt controllers in the kernel"))?;
    // A vCPU's id is its APIC's id; interrupts to APIC 255 are for that one alone.
    let x2apic = KVM_X2APIC_API_USE_32BIT_IDS | KVM_X2APIC_API_DISABLE_BROADCAST_QUIRK;
    enable(vm, KVM_CAP_X2APIC_API, u64::from(x2apic)).map_err(system("let APIC ids have 32 bits"))
}

/// Gives a new vCPU its APIC id, which is its index, and lets it start without being sent a start-up interrupt.
pub(crate) fn prepare(vcpu: &KvmVcpu, cpuid: &CpuId) -> Result<(), RunError> {
    const X2APIC: u32 = 1 << 21;
    /// KVM offers its leaves, but leaves it to the VMM to say that there are any.
    const HYPERVISOR: u32 = 1 << 31;
    let mut cpuid = cpuid.clone();
    for entry in cpuid.as_mut_slice() {
        match entry.function {
            1 => {
                entry.ebx = entry.ebx & 0x00ff_ffff | vcpu.id << 24;
                entry.ecx |= X2APIC | HYPERVISOR;
            }
            0xb | 0x1f => entry.edx = vcpu.id,
            _ => {}
        }
    }
    vcpu.fd.set_cpuid2(&cpuid).map_err(system("set CPUID"))?;
    vcpu.fd
        .set_mp_state(kvm_mp_state { mp_state: KVM_MP_STATE_RUNNABLE })
        .map_err(system("make a vCPU runnable"))
}

/// Switches the local APIC to x2APIC mode. Before that, KVM delivers no kick to it.
pub(crate) fn set_x2apic(sregs: &mut kvm_sregs) {
    const ENABLED_X2APIC: u64 = 0xc00;
    sregs.apic_base |= ENABLED_X2APIC;
}
