//! What Xen offers, by CPUID.

use core::arch::x86_64::{__cpuid, CpuidResult};

use crate::cpuid::{base_of, is_amd};

/// Whether a lock can use Xen's services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Where Xen's leaves begin, less 0x4000_0000.
    base: u16,
    /// Xen says which of its virtual CPUs the caller is.
    tells_vcpu: bool,
    is_on_xen: bool,
    /// Hypercalls are VMMCALL, else VMCALL.
    is_amd: bool,
}

impl Features {
    /// Those of the machine that this runs on.
    pub fn detect() -> Self {
        Self::of(__cpuid)
    }

    /// Those that `cpuid` tells of.
    fn of(cpuid: impl Fn(u32) -> CpuidResult) -> Self {
        const TELLS_VCPU: u32 = 1 << 3;
        let is_amd = is_amd(&cpuid);
        let Some(base) = base_of(&cpuid, b"XenVMMXenVMM") else { return Self { is_amd, ..Self::default() } };
        let has_hvm_leaf = cpuid(base).eax >= base + 4;
        let tells_vcpu = has_hvm_leaf && cpuid(base + 4).eax & TELLS_VCPU != 0;
        Self { base: base as u16, tells_vcpu, is_on_xen: true, is_amd }
    }

    /// Whether CPUs can sleep and be kicked: event channels and the scheduler's calls are there on every Xen, and the number by
    /// which it knows a CPU on those that tell it.
    pub const fn can_kick(self) -> bool {
        self.is_on_xen && self.tells_vcpu
    }

    /// Whether locks should be paravirtual here.
    pub const fn prefers_paravirtual(self) -> bool {
        self.can_kick()
    }

    pub(super) const fn is_on_xen(self) -> bool {
        self.is_on_xen
    }

    pub(super) const fn hypercalls_are_vmmcall(self) -> bool {
        self.is_amd
    }

    /// The number by which Xen knows the calling CPU, if it says so.
    pub(super) fn vcpu(self) -> Option<u32> {
        self.vcpu_by(__cpuid)
    }

    fn vcpu_by(self, cpuid: impl Fn(u32) -> CpuidResult) -> Option<u32> {
        self.can_kick().then(|| cpuid(0x4000_0000 + u32::from(self.base) + 4).ebx)
    }

    /// In one word that is not 0.
    pub(super) const fn to_bits(self) -> u64 {
        const KNOWN: u64 = 1 << 63;
        KNOWN
            | (self.is_amd as u64) << 18
            | (self.is_on_xen as u64) << 17
            | (self.tells_vcpu as u64) << 16
            | self.base as u64
    }

    pub(super) const fn from_bits(bits: u64) -> Self {
        Self {
            base: bits as u16,
            tells_vcpu: bits >> 16 & 1 != 0,
            is_on_xen: bits >> 17 & 1 != 0,
            is_amd: bits >> 18 & 1 != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpuid::testing::{AMD, HYPER_V, INTEL, KVM, XEN, machine};

    /// Leaves 1 to 4, the last of which has these flags and says that this is vCPU 5.
    fn leaves(flags: u32) -> [[u32; 4]; 4] {
        [[0x0004_0012, 0, 0, 0], [1, 0x4000_0000, 0, 0], [0; 4], [flags, 5, 1, 0]]
    }

    #[test]
    fn leaves_become_features() {
        for (base, flags, vcpu) in
            [(0x4000_0000, 1 << 3, Some(5)), (0x4000_0100, !0, Some(5)), (0x4000_0000, !(1 << 3), None)]
        {
            let (leaves, viridian) = (leaves(flags), (0x4000_0000, HYPER_V, &[[!0; 4]; 4][..]));
            let hypervisors = [(base, XEN, &leaves[..]), viridian];
            let machine = machine(INTEL, &hypervisors);
            let found = Features::of(machine);
            assert!(found.is_on_xen() && !found.hypercalls_are_vmmcall());
            assert_eq!(
                (found.can_kick(), found.prefers_paravirtual(), found.vcpu_by(machine)),
                (vcpu.is_some(), vcpu.is_some(), vcpu),
                "{base:#x} {flags:#x}"
            );
        }
    }

    #[test]
    fn nothing_is_offered_without_xen_or_its_leaf() {
        let old = machine(AMD, &[(0x4000_0000, XEN, &[[!0; 4]; 3])]);
        let found = Features::of(old);
        assert!(found.is_on_xen() && !found.can_kick() && found.hypercalls_are_vmmcall());
        for elsewhere in [&[(0x4000_0000, KVM, &[[!0; 4]; 4][..])][..], &[]] {
            let found = Features::of(machine(INTEL, elsewhere));
            assert_eq!((found.is_on_xen(), found.can_kick(), found.vcpu()), (false, false, None));
        }
    }

    #[test]
    fn features_are_the_same_after_they_were_stored() {
        let leaves = leaves(1 << 3);
        for found in [
            Features::of(machine(AMD, &[(0x4000_ff00, XEN, &leaves)])),
            Features::of(machine(INTEL, &[(0x4000_0100, XEN, &leaves[..3])])),
            Features::of(machine(AMD, &[])),
        ] {
            assert_eq!(Features::from_bits(found.to_bits()), found);
        }
        assert_eq!(Features::from_bits(0), Features::default());
    }
}
