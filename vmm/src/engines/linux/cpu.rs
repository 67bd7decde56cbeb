//! CPUID of a Linux guest, and the state in which its first CPU starts. The others wait for the first one's
//! start-up interrupt, inside KVM.

use kvm_bindings::{
    CpuId, KVM_CAP_TSC_DEADLINE_TIMER, KVM_CPUID_FLAG_SIGNIFCANT_INDEX, Msrs, kvm_cpuid_entry2,
    kvm_msr_entry, kvm_regs,
};
use kvm_ioctls::{VcpuFd, VmFd};

use super::load::{BOOT_PARAMETERS, GDT, PML4};
use crate::host::error::{RunError, system};
use crate::machine::boot;
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
/// Leaves that have a level of the topology in each index. KVM may offer one index of them only, with nothing in it.
const LEVELS: [u32; 2] = [0xb, 0x1f];

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

pub(super) fn feature_names(cpuid: &CpuId) -> Vec<&'static str> {
    let leaf = cpuid.as_slice().iter().find(|entry| entry.function == FEATURES_LEAF);
    let bits = leaf.map_or(0, |leaf| leaf.eax);
    FEATURES.iter().filter(|(_, bit)| bits & 1 << bit != 0).map(|(name, _)| *name).collect()
}

/// Returns the CPUID of vCPU `id` of `vcpus`: one package, one thread per core, the APIC id is the index, one last cache for all.
pub(super) fn of_vcpu(offered: &CpuId, id: u32, vcpus: u32) -> CpuId {
    let mut entries: Vec<_> =
        offered.as_slice().iter().filter(|entry| !LEVELS.contains(&entry.function)).copied().collect();
    entries.iter_mut().for_each(|entry| place(entry, id, vcpus));
    let last_leaf = entries.iter().find(|entry| entry.function == 0).map_or(0, |entry| entry.eax);
    for function in LEVELS.into_iter().filter(|function| *function <= last_leaf) {
        entries.extend(levels(function, id, vcpus));
    }
    CpuId::from_entries(&entries).expect("KVM offered nearly as many entries")
}

/// Threads of a core, cores of the package, and no more. Intel SDM, volume 2A, CPUID.
fn levels(function: u32, id: u32, vcpus: u32) -> [kvm_cpuid_entry2; 3] {
    let levels = [(0, 0, 1, 0x100), (1, id_bits(vcpus), vcpus, 0x201), (2, 0, 0, 2)];
    levels.map(|(index, eax, ebx, ecx)| kvm_cpuid_entry2 {
        function,
        index,
        flags: KVM_CPUID_FLAG_SIGNIFCANT_INDEX,
        eax,
        ebx,
        ecx,
        edx: id,
        ..Default::default()
    })
}

/// Bits of an APIC id within the package.
fn id_bits(vcpus: u32) -> u32 {
    vcpus.next_power_of_two().trailing_zeros()
}

/// Intel SDM, volume 2A, CPUID; AMD APM, volume 3, appendix E.
fn place(entry: &mut kvm_cpuid_entry2, id: u32, vcpus: u32) {
    const MULTI_THREADING: u32 = 1 << 28;
    const LAST_LEVEL: u32 = 3;
    // Bits 5 to 7 are a cache's level, bits 14 to 25 how many share it beyond the first.
    let level = entry.eax >> 5 & 0b111;
    let shared = if level >= LAST_LEVEL { (vcpus - 1) << 14 } else { 0 };
    match entry.function {
        1 => {
            entry.ebx = entry.ebx & 0x0000_ffff | vcpus << 16 | id << 24;
            entry.edx = entry.edx & !MULTI_THREADING | if vcpus > 1 { MULTI_THREADING } else { 0 };
        }
        // No cache: the end of the list.
        4 | 0x8000_001d if entry.eax & 0x1f == 0 => {}
        4 => entry.eax = entry.eax & 0x3fff | shared | (vcpus - 1).min(63) << 26,
        0x8000_001d => entry.eax = entry.eax & 0x3fff | shared,
        0x8000_0008 => entry.ecx = id_bits(vcpus) << 12 | (vcpus - 1),
        0x8000_001e => (entry.eax, entry.ebx, entry.ecx) = (id, id & 0xff, 0),
        // Levels of a newer form, which would be those of the host.
        0x8000_0026 => (entry.eax, entry.ebx, entry.ecx, entry.edx) = (0, 0, 0, 0),
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
    let mut sregs = vcpu.get_sregs().map_err(system("read the reset state"))?;
    boot::set_long_mode(&mut sregs, (0x10, 0x18, 0), (GDT, 0x1f), (CR0_PE_ET_NE_PG, PML4));
    vcpu.set_sregs(&sregs).map_err(system("set system registers"))?;
    let registers = kvm_regs { rip: entry, rsi: BOOT_PARAMETERS, rflags: 1 << 1, ..Default::default() };
    vcpu.set_regs(&registers).map_err(system("set registers"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEVEL_2: u32 = 2 << 5 | 3;
    const LEVEL_3: u32 = 3 << 5 | 3;

    fn entry((function, index): (u32, u32), eax: u32) -> kvm_cpuid_entry2 {
        kvm_cpuid_entry2 { function, index, eax, ..Default::default() }
    }

    /// The CPUID of vCPU `id` of `vcpus` where KVM offers `levels` besides caches that are each thread's own.
    fn told(levels: &[(u32, u32)], last_leaf: u32, (id, vcpus): (u32, u32)) -> Vec<kvm_cpuid_entry2> {
        let caches =
            [4, 0x8000_001d].map(|leaf| [((leaf, 2), LEVEL_2), ((leaf, 3), LEVEL_3), ((leaf, 4), 0)]);
        let others = [((0, 0), last_leaf), ((1, 0), 0), ((0x8000_0008, 0), 0), ((0x8000_001e, 0), 77)];
        let fixed = others.into_iter().chain(caches.into_iter().flatten());
        let all = levels.iter().map(|place| (*place, 0)).chain(fixed);
        let offered: Vec<_> = all.map(|(place, eax)| entry(place, eax)).collect();
        of_vcpu(&CpuId::from_entries(&offered).unwrap(), id, vcpus).as_slice().to_vec()
    }

    #[test]
    fn all_vcpus_are_cores_of_one_package_whatever_kvm_offers() {
        // Hosts before Linux 6.2, since, with leaf 0x1f, and one that names neither.
        let old = [(0xb, 0), (0xb, 1)];
        let all = [(0xb, 0), (0xb, 1), (0xb, 2), (0x1f, 0), (0x1f, 1), (0x1f, 2), (0x1f, 3)];
        for offered in [&old[..], &[(0xb, 0)], &[(0xb, 0), (0x1f, 0)], &all, &[]] {
            for (last_leaf, id, vcpus, bits) in
                [(0x20, 0, 1, 0), (0x1f, 1, 2, 1), (0x1f, 5, 6, 3), (0x10, 7, 8, 3), (0xd, 253, 254, 8)]
            {
                let told = told(offered, last_leaf, (id, vcpus));
                for leaf in [0xb, 0x1f] {
                    let of_leaf = told.iter().filter(|entry| entry.function == leaf);
                    let levels: Vec<_> =
                        of_leaf.map(|it| (it.index, it.eax, it.ebx, it.ecx, it.edx, it.flags)).collect();
                    let expected =
                        [(0, 0, 1, 0x100, id, 1), (1, bits, vcpus, 0x201, id, 1), (2, 0, 0, 2, id, 1)];
                    let expected = if leaf <= last_leaf { &expected[..] } else { &[] };
                    assert_eq!(levels, expected, "{offered:?}, leaf {leaf:#x}, {id} of {vcpus}");
                }
            }
        }
    }

    #[test]
    fn the_last_cache_is_shared_by_all_and_others_by_none() {
        for (id, vcpus, of_amd) in [(0, 1, 0), (5, 6, 3 << 12 | 5), (253, 254, 8 << 12 | 253)] {
            let told = told(&[], 0x10, (id, vcpus));
            let at = |function, index| {
                told.iter().find(|it| (it.function, it.index) == (function, index)).copied().unwrap()
            };
            for leaf in [4, 0x8000_001d] {
                let sharing = [2, 3].map(|index| at(leaf, index).eax >> 14 & 0xfff);
                assert_eq!(sharing, [0, vcpus - 1], "leaf {leaf:#x}");
                assert_eq!(at(leaf, 4).eax, 0, "the list has an end");
            }
            assert_eq!((at(1, 0).ebx, at(0x8000_0008, 0).ecx), (vcpus << 16 | id << 24, of_amd));
            assert_eq!((at(0x8000_001e, 0).eax, at(0x8000_001e, 0).ebx), (id, id));
        }
    }
}
