//! Features that the hypervisor offers, by CPUID.

use core::arch::x86_64::{__cpuid, CpuidResult};

use crate::cpuid::{base_of, is_amd};

/// Which of KVM's services a lock can use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// EAX of the feature leaf; 0: not on KVM.
    offered: u32,
    /// EDX of it.
    hints: u32,
    /// Hypercalls are VMMCALL, else VMCALL.
    is_amd: bool,
}

const STEAL_TIME: u32 = 1 << 5;
const PV_UNHALT: u32 = 1 << 7;
const SCHED_YIELD: u32 = 1 << 13;
/// Hint: virtual CPUs are never off their physical ones for long.
const REALTIME: u32 = 1 << 0;

impl Features {
    /// Reads the features of the machine that this runs on.
    pub fn detect() -> Self {
        Self::of(__cpuid)
    }

    /// Reads the features out of `cpuid`.
    fn of(cpuid: impl Fn(u32) -> CpuidResult) -> Self {
        let is_amd = is_amd(&cpuid);
        let Some(base) = base_of(&cpuid, b"KVMKVMKVM\0\0\0") else {
            return Self { is_amd, ..Self::default() };
        };
        let leaf = cpuid(base + 1);
        Self { offered: leaf.eax, hints: leaf.edx, is_amd }
    }

    /// Whether there is a hypercall that wakes a halted CPU.
    pub const fn can_kick(self) -> bool {
        self.offered & PV_UNHALT != 0
    }

    /// Whether the host writes for each CPU whether it is preempted.
    pub const fn tells_preempted(self) -> bool {
        self.offered & STEAL_TIME != 0
    }

    /// Whether there is a hypercall that gives the rest of a slice to another CPU.
    pub const fn can_yield_to(self) -> bool {
        self.offered & SCHED_YIELD != 0
    }

    /// Whether locks should be paravirtual here: waiters can sleep, and the host does not promise that CPUs are always there.
    pub const fn prefers_paravirtual(self) -> bool {
        self.can_kick() && self.hints & REALTIME == 0
    }

    pub(crate) const fn hypercalls_are_vmmcall(self) -> bool {
        self.is_amd
    }

    /// In one word that is not 0.
    pub(crate) const fn to_bits(self) -> u64 {
        const KNOWN: u64 = 1 << 63;
        KNOWN | (self.is_amd as u64) << 62 | ((self.hints & REALTIME) as u64) << 32 | self.offered as u64
    }

    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self { offered: bits as u32, hints: (bits >> 32) as u32 & REALTIME, is_amd: bits >> 62 & 1 != 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpuid::testing::{AMD, HYPER_V, Hypervisor, INTEL, KVM, machine};

    /// Returns the features found on a machine with these hypervisors.
    fn on(vendor: &[u8; 12], hypervisors: &[Hypervisor<'_>]) -> Features {
        Features::of(machine(vendor, hypervisors))
    }

    #[test]
    fn features_are_kvms_only_under_its_signature() {
        let offered = STEAL_TIME | PV_UNHALT | SCHED_YIELD;
        let on_kvm = on(INTEL, &[(0x4000_0000, KVM, &[[offered, 0, 0, 0]])]);
        assert!(on_kvm.can_kick() && on_kvm.tells_preempted() && on_kvm.can_yield_to());
        assert!(on_kvm.prefers_paravirtual() && !on_kvm.hypercalls_are_vmmcall());

        // Another hypervisor's features are not KVM's.
        let hyper_v: Hypervisor<'_> = (0x4000_0000, HYPER_V, &[[!0; 4]]);
        let behind_another = on(AMD, &[hyper_v, (0x4000_0100, KVM, &[[PV_UNHALT, 0, 0, 0]])]);
        assert!(
            behind_another.can_kick() && !behind_another.tells_preempted() && !behind_another.can_yield_to()
        );
        assert!(behind_another.hypercalls_are_vmmcall());

        let elsewhere = on(AMD, &[hyper_v]);
        assert!(!elsewhere.can_kick() && !elsewhere.tells_preempted() && elsewhere.hypercalls_are_vmmcall());
        let bare = on(INTEL, &[]);
        assert!(!bare.can_kick() && !bare.prefers_paravirtual());
    }

    #[test]
    fn locks_are_native_where_virtual_cpus_are_always_there() {
        let pinned = on(INTEL, &[(0x4000_0000, KVM, &[[PV_UNHALT, 0, 0, REALTIME]])]);
        assert!(pinned.can_kick() && !pinned.prefers_paravirtual());
    }

    #[test]
    fn features_are_the_same_after_they_were_stored() {
        for (vendor, hints) in [(INTEL, 0), (b"HygonGenuine", REALTIME)] {
            let features = on(vendor, &[(0x4000_0000, KVM, &[[STEAL_TIME | SCHED_YIELD, 0, 0, hints]])]);
            assert_eq!(Features::from_bits(features.to_bits()), features);
        }
        assert_eq!(
            Features::from_bits(0),
            Features::default(),
            "nothing is offered before anybody has looked"
        );
    }
}
