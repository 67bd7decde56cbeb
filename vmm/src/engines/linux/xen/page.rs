//! The hypercall page: what the guest calls, 32 bytes for each number (Xen's guest guide, "Hypercall ABI"). The hypervisor fills it, so the
//! way from there to the hypervisor is its own: here a read from a port, whose answer is the call's.

use vm_memory::{Bytes as _, GuestAddress, GuestMemoryMmap};

/// Where CPUID says that the guest tells where it wants its page. Xen's own with Hyper-V's interface beside it, from memory; a guest takes
/// it from CPUID, and KVM knows no such register.
pub(super) const REGISTER: u32 = 0x4000_0200;
/// How many pages there are.
pub(super) const PAGES: u32 = 1;
/// From here a call reads. PCs have nothing there.
pub(super) const PORT: u16 = 0xe0;

pub(super) const PAGE_BYTES: usize = 4096;
const ENTRY_BYTES: usize = 32;

/// What the page holds.
fn contents() -> Vec<u8> {
    (0..(PAGE_BYTES / ENTRY_BYTES) as u32).flat_map(entry).collect()
}

/// The call with this number.
fn entry(number: u32) -> [u8; ENTRY_BYTES] {
    const BREAKPOINT: u8 = 0xcc;
    let [a, b, c, d] = number.to_le_bytes();
    let code = [
        0xb8, a, b, c, d, // mov eax, number
        0xe5, PORT as u8, // in eax, PORT
        0x48, 0x98, // cdqe: errors are negative
        0xc3, // ret
    ];
    let mut entry = [BREAKPOINT; ENTRY_BYTES];
    entry[..code.len()].copy_from_slice(&code);
    entry
}

/// The guest has written `value` to the register: an address in its memory, and in the low bits which page it wants there. `false`: it
/// has no memory there, or there is no such page.
pub(super) fn fill(memory: &GuestMemoryMmap, value: u64) -> bool {
    value.is_multiple_of(PAGE_BYTES as u64) && memory.write_slice(&contents(), GuestAddress(value)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 0x4000;

    fn memory() -> GuestMemoryMmap {
        GuestMemoryMmap::from_ranges(&[(GuestAddress(0), BYTES as usize)]).unwrap()
    }

    #[test]
    fn each_call_has_its_number_at_its_place() {
        let memory = memory();
        assert!(fill(&memory, 0x2000));
        for number in 0..128_u32 {
            let mut entry = [0; 10];
            memory.read_slice(&mut entry, GuestAddress(0x2000 + u64::from(number) * 32)).unwrap();
            assert_eq!(entry, [0xb8, number as u8, 0, 0, 0, 0xe5, 0xe0, 0x48, 0x98, 0xc3], "{number}");
        }
        let mut around = [1; 0x2000];
        memory.read_slice(&mut around, GuestAddress(0)).unwrap();
        assert_eq!(around, [0; 0x2000]);
        assert_eq!(memory.read_obj::<u8>(GuestAddress(0x3000)).unwrap(), 0);
    }

    #[test]
    fn a_page_where_no_memory_is_or_another_page_than_the_first_is_refused() {
        let memory = memory();
        assert!(fill(&memory, BYTES - 0x1000));
        for value in [BYTES, 0x2001, 0x2fff, !0xfff, u64::MAX] {
            assert!(!fill(&memory, value), "{value:#x}");
        }
    }
}
