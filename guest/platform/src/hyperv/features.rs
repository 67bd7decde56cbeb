//! What Hyper-V offers, by CPUID.

use core::arch::x86_64::{__cpuid, CpuidResult};

use crate::cpuid::base_of;

/// Which of Hyper-V's services a lock can use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// EAX of leaf 0x4000_0003, as far as it is of use here; 0: not on Hyper-V.
    privileges: u32,
    /// EAX of leaf 0x4000_0004, likewise.
    recommended: u32,
    /// EBX of it.
    spins_before_notice: u32,
}

/// `AccessHypercallMsrs`.
const HYPERCALL_MSRS: u32 = 1 << 5;
/// `AccessGuestIdleReg`.
const GUEST_IDLE: u32 = 1 << 10;
/// Recommended: interrupts to other CPUs by `HvCallSendSyntheticClusterIpi`.
const CLUSTER_IPI: u32 = 1 << 10;

impl Features {
    /// Those of the machine that this runs on.
    pub fn detect() -> Self {
        Self::of(__cpuid)
    }

    /// Those that `cpuid` tells of.
    fn of(cpuid: impl Fn(u32) -> CpuidResult) -> Self {
        const INTERFACE: u32 = u32::from_le_bytes(*b"Hv#1");
        // Its leaves are at the first base or nowhere; and the interface is what counts, not the name.
        let Some(base @ 0x4000_0000) = base_of(&cpuid, b"Microsoft Hv") else { return Self::default() };
        if cpuid(base + 1).eax != INTERFACE || cpuid(base).eax < base + 4 {
            return Self::default();
        }
        let recommended = cpuid(base + 4);
        Self {
            privileges: cpuid(base + 3).eax & (HYPERCALL_MSRS | GUEST_IDLE),
            recommended: recommended.eax & CLUSTER_IPI,
            spins_before_notice: recommended.ebx,
        }
    }

    /// Whether a CPU can sleep until an interrupt comes, even one that is masked.
    pub const fn can_sleep(self) -> bool {
        self.privileges & GUEST_IDLE != 0
    }

    /// After how many spins for one lock the host wants to be told; `None`: never, or it takes no hypercalls.
    pub const fn spins_before_notice(self) -> Option<u32> {
        const NEVER: u32 = 0xffff_ffff;
        if self.privileges & HYPERCALL_MSRS == 0 || self.spins_before_notice == NEVER {
            return None;
        }
        Some(self.spins_before_notice)
    }

    /// Whether locks should be paravirtual here: waiters can sleep, and the host recommends its own way to interrupt others,
    /// as it does where interrupts by the APIC are slow.
    pub const fn prefers_paravirtual(self) -> bool {
        self.can_sleep() && self.recommended & CLUSTER_IPI != 0
    }

    /// In one word that is not 0.
    pub(super) const fn to_bits(self) -> u64 {
        const KNOWN: u64 = 1 << 63;
        // The two words have bit 10 in common, so that one of them is shifted.
        KNOWN
            | (self.recommended as u64) << 48
            | (self.privileges as u64) << 32
            | self.spins_before_notice as u64
    }

    pub(super) const fn from_bits(bits: u64) -> Self {
        Self {
            privileges: (bits >> 32) as u32 & (HYPERCALL_MSRS | GUEST_IDLE),
            recommended: (bits >> 48) as u32 & CLUSTER_IPI,
            spins_before_notice: bits as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpuid::testing::{HYPER_V, Hypervisor, INTEL, KVM, machine};

    /// "Hv#1", as a specification prints it.
    const HV1: u32 = 0x3123_7648;

    fn features(interface: u32, privileges: u32, recommended: u32, spins: u32) -> Features {
        let leaves = [[interface, 0, 0, 0], [0; 4], [privileges, 0, 0, 0], [recommended, spins, 0, 0]];
        Features::of(machine(INTEL, &[(0x4000_0000, HYPER_V, &leaves)]))
    }

    #[test]
    fn leaves_become_features() {
        // Privileges, recommendations, spins; whether a CPU can sleep, when the host is told, whether locks are paravirtual.
        for (privileges, recommended, spins, sleeps, notice, paravirtual) in [
            (0x420, 0x400, 0xfff, true, Some(0xfff), true),
            (0x020, 0x400, 0xfff, false, Some(0xfff), false),
            (0x400, 0x400, 0xfff, true, None, true),
            (0x420, 0x000, 0xfff, true, Some(0xfff), false),
            (0x420, !0x400, 0, true, Some(0), false),
            (!0x420, !0, 0, false, None, false),
            (0x420, 0x400, 0xffff_ffff, true, None, true),
        ] {
            let found = features(HV1, privileges, recommended, spins);
            let found = (found.can_sleep(), found.spins_before_notice(), found.prefers_paravirtual());
            assert_eq!(found, (sleeps, notice, paravirtual), "{privileges:#x} {recommended:#x} {spins:#x}");
        }
    }

    #[test]
    fn nothing_is_offered_without_the_interface_or_the_leaves() {
        assert_eq!(features(HV1 + 1, !0, !0, 1), Features::default());
        let few: Hypervisor<'_> = (0x4000_0000, HYPER_V, &[[HV1, 0, 0, 0], [0; 4], [!0; 4]]);
        assert_eq!(Features::of(machine(INTEL, &[few])), Features::default(), "leaf 4 is not there");
        let kvm = (0x4000_0000, KVM, &[[HV1, 0, 0, 0], [!0; 4], [!0; 4], [!0; 4]][..]);
        assert_eq!(Features::of(machine(INTEL, &[kvm])), Features::default());
        assert_eq!(Features::of(machine(INTEL, &[])), Features::default(), "a bare machine");
        assert_eq!(Features::default().spins_before_notice(), None);
    }

    #[test]
    fn features_are_the_same_after_they_were_stored() {
        for found in [features(HV1, !0, !0, !0), features(HV1, 0x400, 0, 7), features(HV1, 0x20, !0, 0)] {
            assert_eq!(Features::from_bits(found.to_bits()), found);
            assert_ne!(found.to_bits(), 0);
        }
        assert_eq!(Features::from_bits(0), Features::default());
    }
}
