//! Which hypervisor this is, by CPUID.

use core::arch::x86_64::{__cpuid, CpuidResult};

/// Ticks of the TSC in a millisecond, where CPUID tells: a hypervisor's timing leaf, or the processor's crystal clock. `None`: the kernel
/// has to measure it.
pub fn tsc_khz() -> Option<u64> {
    tsc_khz_of(__cpuid)
}

fn tsc_khz_of(cpuid: impl Fn(u32) -> CpuidResult) -> Option<u64> {
    const TIMING: u32 = 0x10;
    const CRYSTAL: u32 = 0x15;
    if let Some(base) = base_of(&cpuid, b"KVMKVMKVM\0\0\0")
        && cpuid(base).eax >= base + TIMING
    {
        let khz = u64::from(cpuid(base + TIMING).eax);
        return (khz != 0).then_some(khz);
    }
    if cpuid(0).eax < CRYSTAL {
        return None;
    }
    // Ticks for each period of the crystal are EBX / EAX, and the crystal has ECX Hz.
    let leaf = cpuid(CRYSTAL);
    let khz = u64::from(leaf.ecx) * u64::from(leaf.ebx) / u64::from(leaf.eax.max(1)) / 1_000;
    (khz != 0).then_some(khz)
}

/// Returns the base of a hypervisor's leaves, if `cpuid` has one with this name: where a host also plays
/// another one, its own come later.
pub(crate) fn base_of(cpuid: impl Fn(u32) -> CpuidResult, name: &[u8; 12]) -> Option<u32> {
    const HYPERVISOR: u32 = 1 << 31;
    // Without a hypervisor, its leaves are anything.
    if cpuid(1).ecx & HYPERVISOR == 0 {
        return None;
    }
    (0x4000_0000..0x4001_0000).step_by(0x100).find(|&base| characters(cpuid(base), [1, 2, 3]) == *name)
}

/// Whether hypercalls are VMMCALL, else VMCALL.
pub(crate) fn is_amd(cpuid: impl Fn(u32) -> CpuidResult) -> bool {
    matches!(&characters(cpuid(0), [1, 3, 2]), b"AuthenticAMD" | b"HygonGenuine")
}

/// Twelve characters from three registers: EBX is 1, ECX 2, EDX 3.
fn characters(leaf: CpuidResult, order: [usize; 3]) -> [u8; 12] {
    let registers = [leaf.eax, leaf.ebx, leaf.ecx, leaf.edx];
    let mut characters = [0; 12];
    for (place, register) in characters.chunks_exact_mut(4).zip(order) {
        place.copy_from_slice(&registers[register].to_le_bytes());
    }
    characters
}

/// Machines for tests.
#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    pub(crate) const INTEL: &[u8; 12] = b"GenuineIntel";
    pub(crate) const AMD: &[u8; 12] = b"AuthenticAMD";
    pub(crate) const KVM: &[u8; 12] = b"KVMKVMKVM\0\0\0";
    pub(crate) const HYPER_V: &[u8; 12] = b"Microsoft Hv";

    /// A hypervisor: where its leaves begin, its name, and the leaves after the first. Those after the last
    /// claim everything.
    pub(crate) type Hypervisor<'a> = (u32, &'a [u8; 12], &'a [[u32; 4]]);

    /// The CPUID of a machine with these hypervisors. Without any, theirs claim to be KVM's.
    pub(crate) fn machine(
        vendor: &[u8; 12],
        hypervisors: &[Hypervisor<'_>],
    ) -> impl Fn(u32) -> CpuidResult + Copy {
        move |asked| match asked {
            0 => leaf(0, vendor, [1, 3, 2]),
            1 => of([0, 0, if hypervisors.is_empty() { 0 } else { 1 << 31 }, 0]),
            _ if hypervisors.is_empty() => leaf(!0, KVM, [1, 2, 3]),
            _ => hypervisors.iter().find(|(base, ..)| asked & !0xff == *base).map_or(
                of([0; 4]),
                |(base, name, leaves)| match asked - base {
                    0 => leaf(base + leaves.len() as u32, name, [1, 2, 3]),
                    index => of(leaves.get(index as usize - 1).copied().unwrap_or([!0; 4])),
                },
            ),
        }
    }

    fn of([eax, ebx, ecx, edx]: [u32; 4]) -> CpuidResult {
        CpuidResult { eax, ebx, ecx, edx }
    }

    fn leaf(eax: u32, name: &[u8; 12], order: [usize; 3]) -> CpuidResult {
        let mut registers = [eax, 0, 0, 0];
        for (place, register) in name.chunks_exact(4).zip(order) {
            registers[register] = u32::from_le_bytes(place.try_into().unwrap());
        }
        of(registers)
    }

    #[test]
    fn a_hypervisor_is_found_by_its_leaves_except_on_bare_machines() {
        let both = [(0x4000_0000, HYPER_V, &[][..]), (0x4000_0200, KVM, &[])];
        assert_eq!(base_of(machine(INTEL, &both), HYPER_V), Some(0x4000_0000));
        assert_eq!(base_of(machine(INTEL, &both), KVM), Some(0x4000_0200));
        assert_eq!(base_of(machine(INTEL, &both[..1]), KVM), None);
        assert_eq!(base_of(machine(INTEL, &[]), KVM), None, "bare, whatever the leaves say");
    }

    #[test]
    fn the_maker_of_the_cpu_tells_the_instruction_for_hypercalls() {
        for (vendor, expected) in [(AMD, true), (b"HygonGenuine", true), (INTEL, false)] {
            assert_eq!(is_amd(machine(vendor, &[])), expected);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{AMD, KVM, machine};
    use super::*;

    #[test]
    fn the_clock_is_as_fast_as_the_hypervisor_says() {
        let mut leaves = [[0; 4]; 0x10];
        leaves[0xf][0] = 2_600_000;
        let khz = |leaves: &[[u32; 4]]| tsc_khz_of(machine(AMD, &[(0x4000_0000, KVM, leaves)]));
        assert_eq!(khz(&leaves), Some(2_600_000));
        assert_eq!(khz(&leaves[..1]), None, "neither leaf is there");
    }

    #[test]
    fn the_clock_is_as_fast_as_the_crystal_says() {
        let leaf = |eax, ebx, ecx| CpuidResult { eax, ebx, ecx, edx: 0 };
        let bare = move |asked: u32| match asked {
            0 => leaf(0x16, 0, 0),
            0x15 => leaf(2, 216, 24_000_000),
            _ => leaf(0, 0, 0),
        };
        assert_eq!(tsc_khz_of(bare), Some(2_592_000));
    }
}
