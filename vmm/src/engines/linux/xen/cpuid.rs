//! Xen's leaves of CPUID.

use kvm_bindings::CpuId;

use super::page;
use crate::engines::linux::cpu;

/// The version that is played: 4.17, as good as any other.
const VERSION: u32 = 4 << 16 | 17;
/// The leaf of domains with hardware virtualisation, and its flag that says: EBX is the vCPU's number.
const HVM: u32 = 0x4000_0004;
const TELLS_VCPU: u32 = 1 << 3;

/// `cpuid` with Xen's leaves in the place of KVM's. Without `pv`, no vCPU learns its number, and so none can sleep.
pub(in crate::engines::linux) fn offered(cpuid: &CpuId, pv: bool) -> CpuId {
    let word = |text: &[u8; 4]| u32::from_le_bytes(*text);
    let leaves = [
        [HVM, word(b"XenV"), word(b"MMXe"), word(b"nVMM")],
        [VERSION, 0, 0, 0],
        [page::PAGES, page::REGISTER, 0, 0],
        // Time: the host says nothing of it.
        [0; 4],
        [if pv { TELLS_VCPU } else { 0 }, 0, 0, 0],
    ];
    cpu::with_leaves(cpuid, &leaves)
}

/// The same for vCPU `id`.
pub(in crate::engines::linux) fn number(cpuid: &mut CpuId, id: u32) {
    let leaves = cpuid.as_mut_slice().iter_mut();
    leaves.filter(|leaf| leaf.function == HVM && leaf.eax & TELLS_VCPU != 0).for_each(|leaf| leaf.ebx = id);
}

#[cfg(test)]
mod tests {
    use kvm_bindings::kvm_cpuid_entry2;

    use super::*;

    fn leaf(cpuid: &CpuId, function: u32) -> Option<[u32; 4]> {
        let mut found = cpuid.as_slice().iter().filter(|leaf| leaf.function == function);
        let leaf = found.next().map(|leaf| [leaf.eax, leaf.ebx, leaf.ecx, leaf.edx]);
        assert_eq!(found.count(), 0, "leaf {function:#x} is there twice");
        leaf
    }

    #[test]
    fn xen_stands_where_kvm_stood_and_each_vcpu_finds_its_number() {
        let of = |function| kvm_cpuid_entry2 { function, eax: 7, ebx: 7, ..Default::default() };
        let kvms = CpuId::from_entries(&[of(1), of(0x4000_0000), of(0x4000_0001), of(0x8000_0000)]).unwrap();
        for (pv, flags, id) in [(true, 1 << 3, 5), (false, 0, 0)] {
            let mut cpuid = offered(&kvms, pv);
            number(&mut cpuid, 5);
            assert_eq!(leaf(&cpuid, 0x4000_0000), Some([0x4000_0004, 0x566e_6558, 0x6558_4d4d, 0x4d4d_566e]));
            assert_eq!(leaf(&cpuid, 0x4000_0002), Some([1, REGISTER, 0, 0]));
            assert_eq!(leaf(&cpuid, 0x4000_0004), Some([flags, id, 0, 0]));
            assert_eq!(
                (leaf(&cpuid, 1), leaf(&cpuid, 0x8000_0000)),
                (Some([7, 7, 0, 0]), Some([7, 7, 0, 0]))
            );
        }
    }

    const REGISTER: u32 = 0x4000_0200;
}
