//! CPUID of a Linux guest, and the state in which its first CPU starts. The others wait for the first one's
//! start-up interrupt, inside KVM.

use kvm_bindings::{
    CpuId, KVM_CAP_TSC_DEADLINE_TIMER, Msrs, kvm_cpuid_entry2, kvm_msr_entry, kvm_regs, kvm_segment,
};
use kvm_ioctls::{VcpuFd, VmFd};

use super::load::{BOOT_PARAMETERS, GDT, PML4};
use crate::host::error::{RunError, system};
use crate::run::asked::{Guest, Run};
use crate::sched::Sched;

/// KVM's features, by bit of leaf 0x4000_0001. Not offered at all are asynchronous page faults, of which there are none here,
/// and polling before a halt, which would hide halts.
const FEATURES: [(&str, u32); 11] = [
    ("clocksource", 0),
    ("nop-io-delay", 1),
    ("clocksource2", 3),
    ("steal-time", STEAL_TIME),
    ("pv-eoi", 6),
    ("pv-unhalt", 7),
    ("pv-tlb-flush", PV_TLB_FLUSH),
    ("pv-send-ipi", 11),
    ("pv-sched-yield", PV_SCHED_YIELD),
    ("msi-ext-dest-id", 15),
    ("clocksource-stable", 24),
];
const STEAL_TIME: u32 = 5;
const PV_TLB_FLUSH: u32 = 9;
const PV_SCHED_YIELD: u32 = 13;
/// Features that `--pv off` hides: all that serve vCPUs that may not have a pCPU. Clocks stay, so that both forms keep time alike.
const FOR_OVERCOMMIT: u32 = 1 << STEAL_TIME | 1 << 7 | 1 << PV_TLB_FLUSH | 1 << 11 | 1 << PV_SCHED_YIELD;
/// Features that the VMM's own scheduler hides: KVM takes the time that the thread in KVM_RUN had to wait for time stolen from the vCPU,
/// and these threads run all vCPUs in turn. The other two look at `preempted` in the same record.
const OF_ONE_THREAD: u32 = 1 << STEAL_TIME | 1 << PV_TLB_FLUSH | 1 << PV_SCHED_YIELD;
const FEATURES_LEAF: u32 = 0x4000_0001;

/// Returns the CPUID that is offered to all vCPUs.
pub(super) fn offered(vm: &VmFd, mut cpuid: CpuId, run: &Run, asked: &Guest) -> CpuId {
    const X2APIC: u32 = 1 << 21;
    const TSC_DEADLINE: u32 = 1 << 24;
    const HYPERVISOR: u32 = 1 << 31;
    // KVM leaves it to the VMM to say that there is such a timer: only the in-kernel APIC has it.
    let timer = vm.check_extension_raw(u64::from(KVM_CAP_TSC_DEADLINE_TIMER)) > 0;
    let known = FEATURES.iter().fold(0, |all, (_, bit)| all | 1 << bit);
    let hidden = if asked.pv { 0 } else { FOR_OVERCOMMIT };
    let hidden = hidden | if run.rules.sched == Sched::Vmm { OF_ONE_THREAD } else { 0 };
    for entry in cpuid.as_mut_slice() {
        match entry.function {
            1 => entry.ecx |= X2APIC | HYPERVISOR | if timer { TSC_DEADLINE } else { 0 },
            FEATURES_LEAF => entry.eax &= known & !hidden,
            _ => {}
        }
    }
    cpuid
}

/// Names of the features that are offered.
pub(super) fn feature_names(cpuid: &CpuId) -> Vec<&'static str> {
    let leaf = cpuid.as_slice().iter().find(|entry| entry.function == FEATURES_LEAF);
    let bits = leaf.map_or(0, |leaf| leaf.eax);
    FEATURES.iter().filter(|(_, bit)| bits & 1 << bit != 0).map(|(name, _)| *name).collect()
}

/// Returns the CPUID of vCPU `id` of `vcpus`: one package, one thread per core, the APIC id is the index.
pub(super) fn of_vcpu(offered: &CpuId, id: u32, vcpus: u32) -> CpuId {
    let mut cpuid = offered.clone();
    cpuid.as_mut_slice().iter_mut().for_each(|entry| place(entry, id, vcpus));
    cpuid
}

/// Intel SDM, volume 2A, CPUID; AMD APM, volume 3, appendix E.
fn place(entry: &mut kvm_cpuid_entry2, id: u32, vcpus: u32) {
    const MULTI_THREADING: u32 = 1 << 28;
    // Bits of an APIC id within the package.
    let id_bits = vcpus.next_power_of_two().trailing_zeros();
    match (entry.function, entry.index) {
        (1, _) => {
            entry.ebx = entry.ebx & 0x0000_ffff | vcpus << 16 | id << 24;
            entry.edx = entry.edx & !MULTI_THREADING | if vcpus > 1 { MULTI_THREADING } else { 0 };
        }
        // Caches: of their own, but for the last one, of which KVM may tell what it likes.
        (4, _) => entry.eax = entry.eax & 0x3fff | (vcpus - 1).min(63) << 26,
        (0xb | 0x1f, 0) => (entry.eax, entry.ebx, entry.ecx, entry.edx) = (0, 1, 0x100, id),
        (0xb | 0x1f, 1) => (entry.eax, entry.ebx, entry.ecx, entry.edx) = (id_bits, vcpus, 0x201, id),
        (0xb | 0x1f, index) => (entry.eax, entry.ebx, entry.ecx, entry.edx) = (0, 0, index, id),
        (0x8000_0008, _) => entry.ecx = id_bits << 12 | (vcpus - 1),
        (0x8000_001d, _) => entry.eax &= 0x3fff,
        (0x8000_001e, _) => (entry.eax, entry.ebx, entry.ecx) = (id, id & 0xff, 0),
        _ => {}
    }
}

/// Memory is cached unless the guest says otherwise, as firmware leaves it.
pub(super) fn set_memory_types(vcpu: &VcpuFd) -> Result<(), RunError> {
    const MTRR_DEFAULT_TYPE: u32 = 0x2ff;
    const ENABLED_WRITE_BACK: u64 = 1 << 11 | 6;
    let entry = kvm_msr_entry { index: MTRR_DEFAULT_TYPE, data: ENABLED_WRITE_BACK, ..Default::default() };
    let msrs = Msrs::from_entries(&[entry]).expect("one entry fits");
    vcpu.set_msrs(&msrs).map(drop).map_err(system("set memory types"))
}

/// 64-bit mode, flat segments, low memory mapped to itself, interrupts off, the boot parameters in RSI.
pub(super) fn set_start_state(vcpu: &VcpuFd, entry: u64) -> Result<(), RunError> {
    const CR0_PE_ET_NE_PG: u64 = 1 << 31 | 1 << 5 | 1 << 4 | 1;
    const CR4_PAE: u64 = 1 << 5;
    const EFER_LME_LMA: u64 = 1 << 10 | 1 << 8;
    let mut sregs = vcpu.get_sregs().map_err(system("read the reset state"))?;
    let flat = |selector: u16, code: bool| kvm_segment {
        selector,
        limit: u32::MAX,
        type_: if code { 0xb } else { 0x3 },
        present: 1,
        s: 1,
        l: u8::from(code),
        db: u8::from(!code),
        g: 1,
        ..Default::default()
    };
    sregs.cs = flat(0x10, true);
    let data = flat(0x18, false);
    (sregs.ds, sregs.es, sregs.ss, sregs.fs, sregs.gs) = (data, data, data, data, data);
    (sregs.gdt.base, sregs.gdt.limit) = (GDT, 0x1f);
    (sregs.cr0, sregs.cr3, sregs.cr4, sregs.efer) = (CR0_PE_ET_NE_PG, PML4, CR4_PAE, EFER_LME_LMA);
    vcpu.set_sregs(&sregs).map_err(system("set system registers"))?;
    let registers = kvm_regs { rip: entry, rsi: BOOT_PARAMETERS, rflags: 1 << 1, ..Default::default() };
    vcpu.set_regs(&registers).map_err(system("set registers"))
}
