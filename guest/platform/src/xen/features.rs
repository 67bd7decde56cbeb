//! What Xen offers, by CPUID.

use core::arch::x86_64::{__cpuid, CpuidResult};

use crate::cpuid::base_of;

/// Whether a lock can use Xen's services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Where Xen's leaves begin, less 0x4000_0000.
    base: u16,
    /// The register that is told where the kernel wants its hypercall page.
    register: u32,
    /// There is such a register: Xen, and a way to call it.
    can_call: bool,
    /// Xen says which of its virtual CPUs the caller is.
    tells_vcpu: bool,
}

impl Features {
    /// Those of the machine that this runs on.
    pub fn detect() -> Self {
        Self::of(__cpuid)
    }

    /// Those that `cpuid` tells of.
    fn of(cpuid: impl Fn(u32) -> CpuidResult) -> Self {
        const TELLS_VCPU: u32 = 1 << 3;
        let Some(base) = base_of(&cpuid, b"XenVMMXenVMM") else { return Self::default() };
        let last = cpuid(base).eax;
        // How many pages of hypercalls there are, and the register for them. The first page has all that are called here.
        let page = Some(cpuid(base + 2)).filter(|leaf| last >= base + 2 && leaf.eax >= 1);
        let tells_vcpu = last >= base + 4 && cpuid(base + 4).eax & TELLS_VCPU != 0;
        Self {
            base: base as u16,
            register: page.map_or(0, |leaf| leaf.ebx),
            can_call: page.is_some(),
            tells_vcpu,
        }
    }

    /// Whether CPUs can sleep and be kicked: event channels and the scheduler's calls are there on every Xen, and the number by
    /// which it knows a CPU on those that tell it.
    pub const fn can_kick(self) -> bool {
        self.can_call && self.tells_vcpu
    }

    /// Whether locks should be paravirtual here.
    pub const fn prefers_paravirtual(self) -> bool {
        self.can_kick()
    }

    /// The register that is told where the hypercall page is to be; `None` where nobody can be called.
    pub(super) fn hypercall_register(self) -> Option<u32> {
        self.can_call.then_some(self.register)
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
            | (self.can_call as u64) << 49
            | (self.tells_vcpu as u64) << 48
            | (self.register as u64) << 16
            | self.base as u64
    }

    pub(super) const fn from_bits(bits: u64) -> Self {
        Self {
            base: bits as u16,
            register: (bits >> 16) as u32,
            tells_vcpu: bits >> 48 & 1 != 0,
            can_call: bits >> 49 & 1 != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpuid::testing::{AMD, HYPER_V, INTEL, KVM, XEN, machine};

    const REGISTER: u32 = 0x4000_0200;

    /// Leaves 1 to 4: as many pages of hypercalls, these flags, and that this is vCPU 5.
    fn leaves(pages: u32, flags: u32) -> [[u32; 4]; 4] {
        [[0x0004_0012, 0, 0, 0], [pages, REGISTER, 0, 0], [0; 4], [flags, 5, 1, 0]]
    }

    #[test]
    fn leaves_become_features() {
        // Base, pages, flags; the register for the page, the number of the CPU.
        for (base, pages, flags, register, vcpu) in [
            (0x4000_0000, 1, 1 << 3, Some(REGISTER), Some(5)),
            (0x4000_0100, 2, !0, Some(REGISTER), Some(5)),
            (0x4000_0000, 1, !(1 << 3), Some(REGISTER), None),
            (0x4000_0000, 0, !0, None, None),
        ] {
            let (leaves, viridian) = (leaves(pages, flags), (0x4000_0000, HYPER_V, &[[!0; 4]; 4][..]));
            let hypervisors = [(base, XEN, &leaves[..]), viridian];
            let machine = machine(INTEL, &hypervisors);
            let found = Features::of(machine);
            assert_eq!(
                (found.hypercall_register(), found.can_kick(), found.prefers_paravirtual()),
                (register, vcpu.is_some(), vcpu.is_some()),
                "{base:#x} {pages} {flags:#x}"
            );
            assert_eq!(found.vcpu_by(machine), vcpu);
        }
    }

    #[test]
    fn nothing_is_offered_without_xen_or_its_leaves() {
        for (leaves, can_call) in [(3, true), (1, false)] {
            let few = [[!0; 4]; 4];
            let hypervisors = [(0x4000_0000, XEN, &few[..leaves])];
            let found = Features::of(machine(AMD, &hypervisors));
            assert_eq!((found.hypercall_register().is_some(), found.can_kick()), (can_call, false));
        }
        for elsewhere in [&[(0x4000_0000, KVM, &[[!0; 4]; 4][..])][..], &[]] {
            let found = Features::of(machine(INTEL, elsewhere));
            assert_eq!((found.hypercall_register(), found.can_kick(), found.vcpu()), (None, false, None));
        }
    }

    #[test]
    fn features_are_the_same_after_they_were_stored() {
        let leaves = leaves(1, 1 << 3);
        for found in [
            Features::of(machine(AMD, &[(0x4000_ff00, XEN, &leaves)])),
            Features::of(machine(INTEL, &[(0x4000_0100, XEN, &leaves[..3])])),
            Features::of(machine(AMD, &[(0x4000_0000, XEN, &[[!0; 4]; 4])])),
            Features::of(machine(AMD, &[])),
        ] {
            assert_eq!(Features::from_bits(found.to_bits()), found);
        }
        assert_eq!(Features::from_bits(0), Features::default());
    }
}
