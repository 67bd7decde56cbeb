//! What the hypervisor offers, by CPUID.

use core::arch::x86_64::{__cpuid, CpuidResult};

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
    /// Those of the machine that this runs on.
    pub fn detect() -> Self {
        Self::of(__cpuid)
    }

    /// Those that `cpuid` tells of.
    fn of(cpuid: impl Fn(u32) -> CpuidResult) -> Self {
        const HYPERVISOR: u32 = 1 << 31;
        let vendor = signature(cpuid(0), [1, 3, 2]);
        let is_amd = matches!(&vendor, b"AuthenticAMD" | b"HygonGenuine");
        // Without a hypervisor, these leaves are anything.
        if cpuid(1).ecx & HYPERVISOR == 0 {
            return Self { is_amd, ..Self::default() };
        }
        // Where KVM also plays another hypervisor, its own leaves begin at a later base.
        let bases = (0x4000_0000..0x4001_0000).step_by(0x100);
        let Some(base) =
            bases.into_iter().find(|&base| signature(cpuid(base), [1, 2, 3]) == *b"KVMKVMKVM\0\0\0")
        else {
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

/// Twelve characters from three registers: EBX is 1, ECX 2, EDX 3.
fn signature(leaf: CpuidResult, order: [usize; 3]) -> [u8; 12] {
    let registers = [leaf.eax, leaf.ebx, leaf.ecx, leaf.edx];
    let mut characters = [0; 12];
    for (place, register) in characters.chunks_exact_mut(4).zip(order) {
        place.copy_from_slice(&registers[register].to_le_bytes());
    }
    characters
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(eax: u32, signature: &[u8; 12], order: [usize; 3]) -> CpuidResult {
        let mut registers = [eax, 0, 0, 0];
        for (place, register) in signature.chunks_exact(4).zip(order) {
            registers[register] = u32::from_le_bytes(place.try_into().unwrap());
        }
        let [eax, ebx, ecx, edx] = registers;
        CpuidResult { eax, ebx, ecx, edx }
    }

    /// A machine whose hypervisor has these signatures, each at its base, and these features.
    fn machine(vendor: &[u8; 12], bases: &[(u32, &[u8; 12])], features: u32, hints: u32) -> Features {
        Features::of(|asked| {
            if asked == 0 {
                return leaf(0, vendor, [1, 3, 2]);
            }
            let nothing = CpuidResult { eax: 0, ebx: 0, ecx: 0, edx: 0 };
            if asked == 1 {
                return CpuidResult { ecx: if bases.is_empty() { 0 } else { 1 << 31 }, ..nothing };
            }
            let base = bases.iter().find(|(base, _)| asked & !0xff == *base);
            match base {
                Some((base, signature)) if asked == *base => leaf(base + 1, signature, [1, 2, 3]),
                Some((_, b"KVMKVMKVM\0\0\0")) => CpuidResult { eax: features, edx: hints, ..nothing },
                // Another hypervisor's features are not KVM's.
                Some(_) => CpuidResult { eax: !0, edx: !0, ..nothing },
                // Without a hypervisor these leaves are anything, even this.
                None if bases.is_empty() => leaf(!0, KVM, [1, 2, 3]),
                None => nothing,
            }
        })
    }

    const KVM: &[u8; 12] = b"KVMKVMKVM\0\0\0";
    const HYPER_V: &[u8; 12] = b"Microsoft Hv";

    #[test]
    fn features_are_kvms_only_under_its_signature() {
        let offered = STEAL_TIME | PV_UNHALT | SCHED_YIELD;
        let on_kvm = machine(b"GenuineIntel", &[(0x4000_0000, KVM)], offered, 0);
        assert!(on_kvm.can_kick() && on_kvm.tells_preempted() && on_kvm.can_yield_to());
        assert!(on_kvm.prefers_paravirtual() && !on_kvm.hypercalls_are_vmmcall());

        let behind_another =
            machine(b"AuthenticAMD", &[(0x4000_0000, HYPER_V), (0x4000_0100, KVM)], PV_UNHALT, 0);
        assert!(
            behind_another.can_kick() && !behind_another.tells_preempted() && !behind_another.can_yield_to()
        );
        assert!(behind_another.hypercalls_are_vmmcall());

        let elsewhere = machine(b"AuthenticAMD", &[(0x4000_0000, HYPER_V)], !0, 0);
        assert!(!elsewhere.can_kick() && !elsewhere.tells_preempted() && elsewhere.hypercalls_are_vmmcall());
        let bare = machine(b"GenuineIntel", &[], !0, 0);
        assert!(!bare.can_kick() && !bare.prefers_paravirtual());
    }

    #[test]
    fn locks_are_native_where_virtual_cpus_are_always_there() {
        let pinned = machine(b"GenuineIntel", &[(0x4000_0000, KVM)], PV_UNHALT, REALTIME);
        assert!(pinned.can_kick() && !pinned.prefers_paravirtual());
    }

    #[test]
    fn features_are_the_same_after_they_were_stored() {
        for (vendor, hints) in [(b"GenuineIntel", 0), (b"HygonGenuine", REALTIME)] {
            let features = machine(vendor, &[(0x4000_0000, KVM)], STEAL_TIME | SCHED_YIELD, hints);
            assert_eq!(Features::from_bits(features.to_bits()), features);
        }
        assert_eq!(
            Features::from_bits(0),
            Features::default(),
            "nothing is offered before anybody has looked"
        );
    }
}
