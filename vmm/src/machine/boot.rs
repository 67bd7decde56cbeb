//! The state in which a vCPU starts: 64-bit mode, paging on, tables in place, first instruction the image's entry.
//!
//! Section numbers are those of the Intel SDM, volume 3.

use std::ops::Range;

use haltkick_hypercalls::{GuestAddress, PORT_LAST};
use kvm_bindings::{kvm_regs, kvm_segment, kvm_sregs};

use crate::guest::memory::{
    GDT, IDT, LARGE_PAGE, Memory, PAGE_DIRECTORIES, PAGE_DIRECTORY_POINTERS, PML4, TSS_BYTES,
};
use crate::image::file::Image;
use crate::machine::Ring;

// Selectors, in the places where Linux has them: some KVM back ends (PVM) run user code under Linux' own.
const KERNEL_CODE: u16 = 0x10;
const KERNEL_DATA: u16 = 0x18;
const USER_DATA: u16 = 0x28 | 3;
const USER_CODE: u16 = 0x30 | 3;
const TASK_STATE: u16 = 0x40;

/// Descriptors of a flat 64-bit segment (3.4.5): present, DPL, code or data, accessed.
pub(crate) const fn flat_segment(code: bool, dpl: u64) -> u64 {
    const PRESENT: u64 = 1 << 47;
    const NOT_SYSTEM: u64 = 1 << 44;
    const LONG_MODE: u64 = 1 << 53;
    const GRANULAR_4GIB: u64 = 1 << 55 | 0xf << 48 | 0xffff;
    let kind = if code { 0xb << 40 | LONG_MODE } else { 0x3 << 40 | 1 << 54 };
    PRESENT | NOT_SYSTEM | GRANULAR_4GIB | kind | dpl << 45
}

/// Entries of page tables (4.5.4) that map these large pages to themselves with these rights, and where they go: `tables` are the addresses of
/// the PML4, of the page directory pointers, and of the first of the page directories.
pub(crate) fn identity_map(
    [pml4, pointers, directories]: [u64; 3],
    pages: Range<u64>,
    rights: u64,
) -> impl Iterator<Item = (u64, u64)> {
    const LARGE: u64 = 1 << 7;
    let entry = move |directory| (pointers + directory * 8, (directories + directory * 4096) | rights);
    let upper = (0..pages.end.div_ceil(512)).map(entry);
    let lower = pages.map(move |page| (directories + page * 8, (page * LARGE_PAGE) | LARGE | rights));
    std::iter::once((pml4, pointers | rights)).chain(upper).chain(lower)
}

/// Writes what all vCPUs share: page tables, GDT and IDT.
pub(crate) fn write_tables(memory: &Memory, image: &Image) {
    const PRESENT_WRITABLE_USER: u64 = 0b111;
    let tables = [PML4, PAGE_DIRECTORY_POINTERS, PAGE_DIRECTORIES];
    // From the second large page on: the first stays unmapped, so that null pointers fault.
    for (address, entry) in identity_map(tables, 1..memory.size() / LARGE_PAGE, PRESENT_WRITABLE_USER) {
        memory.write(address, &entry.to_le_bytes());
    }
    for (selector, descriptor) in [
        (KERNEL_CODE, flat_segment(true, 0)),
        (KERNEL_DATA, flat_segment(false, 0)),
        (USER_DATA & !3, flat_segment(false, 3)),
        (USER_CODE & !3, flat_segment(true, 3)),
    ] {
        memory.write(GDT + u64::from(selector), &descriptor.to_le_bytes());
    }

    for vector in 0..256 {
        let handler = image.vector_stubs + vector * image.vector_stub_bytes;
        memory.write(IDT + vector * 16, &interrupt_gate(vector, handler));
    }
}

/// A 64-bit interrupt gate (6.14.1) that always changes to the stack IST1, for the NMI to IST2: it may come while an
/// exception is being taken. Vector 3 is open to ring 3.
fn interrupt_gate(vector: u64, handler: u64) -> [u8; 16] {
    const PRESENT_GATE: u64 = 0x8e << 40;
    const NMI: u64 = 2;
    let stack = if vector == NMI { 2 << 32 } else { 1 << 32 };
    let dpl = if vector == 3 { 3 << 45 } else { 0 };
    let low = handler & 0xffff
        | u64::from(KERNEL_CODE) << 16
        | stack
        | PRESENT_GATE
        | dpl
        | (handler >> 16 & 0xffff) << 48;
    (u128::from(handler >> 32) << 64 | u128::from(low)).to_le_bytes()
}

/// Writes vCPU `vcpu`'s TSS (7.7): the exception stack, and an I/O bitmap that opens all ports up to the last
/// hypercall to ring 3 (the VMM answers for those that are none).
pub(crate) fn write_task_state(memory: &Memory, vcpu: u32) {
    const RSP0: usize = 4;
    const IST1: usize = 36;
    const IST2: usize = 44;
    const IO_MAP_BASE: usize = 102;
    const IO_MAP: usize = 104;
    const _: () = assert!(IO_MAP + PORT_LAST as usize / 8 + 2 <= TSS_BYTES as usize);
    let mut tss = [0; TSS_BYTES as usize];
    let stack = memory.ring0_stack_top(vcpu).to_le_bytes();
    tss[RSP0..RSP0 + 8].copy_from_slice(&stack);
    tss[IST1..IST1 + 8].copy_from_slice(&stack);
    tss[IST2..IST2 + 8].copy_from_slice(&memory.nmi_stack_top(vcpu).to_le_bytes());
    tss[IO_MAP_BASE..IO_MAP_BASE + 2].copy_from_slice(&(IO_MAP as u16).to_le_bytes());
    // The byte after the last one of the bitmap must have all bits set (Intel SDM vol. 1, 19.5.2).
    tss[IO_MAP + PORT_LAST as usize / 8 + 1] = 0xff;
    memory.write(Memory::tss_address(vcpu), &tss);
}

fn segment(selector: u16, code: bool, ring: u8) -> kvm_segment {
    kvm_segment {
        selector,
        limit: u32::MAX,
        type_: if code { 0xb } else { 0x3 },
        present: 1,
        dpl: ring,
        s: 1,
        l: u8::from(code),
        db: u8::from(!code),
        g: 1,
        ..Default::default()
    }
}

/// 64-bit mode with flat segments of these selectors in ring `level`, a GDT of this address and limit, and the page tables at `pml4`.
pub(crate) fn set_long_mode(
    sregs: &mut kvm_sregs,
    (code, data, level): (u16, u16, u8),
    gdt: (u64, u16),
    (cr0, pml4): (u64, u64),
) {
    const CR4_PAE: u64 = 1 << 5;
    const EFER_LME_LMA: u64 = 1 << 10 | 1 << 8;
    sregs.cs = segment(code, true, level);
    let data = segment(data, false, level);
    (sregs.ds, sregs.es, sregs.ss, sregs.fs, sregs.gs) = (data, data, data, data, data);
    (sregs.gdt.base, sregs.gdt.limit) = gdt;
    (sregs.cr0, sregs.cr3, sregs.cr4, sregs.efer) = (cr0, pml4, CR4_PAE, EFER_LME_LMA);
}

/// Turns a vCPU's reset state into the start state for `ring`.
pub(crate) fn set_system_registers(sregs: &mut kvm_sregs, ring: Ring, vcpu: u32, gs_base: GuestAddress) {
    const CR0_PE_MP_ET_NE_WP_PG: u64 = 1 << 31 | 1 << 16 | 1 << 5 | 1 << 4 | 1 << 1 | 1;
    let selectors = match ring {
        Ring::Ring0 => (KERNEL_CODE, KERNEL_DATA, 0),
        Ring::Ring3 | Ring::Auto => (USER_CODE, USER_DATA, 3),
    };
    set_long_mode(sregs, selectors, (GDT, TASK_STATE + 15), (CR0_PE_MP_ET_NE_WP_PG, PML4));
    sregs.gs.base = gs_base.0;
    sregs.tr = kvm_segment {
        selector: TASK_STATE,
        base: Memory::tss_address(vcpu),
        limit: TSS_BYTES as u32 - 1,
        type_: 0xb, // 64-bit TSS, busy
        present: 1,
        ..Default::default()
    };
    (sregs.idt.base, sregs.idt.limit) = (IDT, 256 * 16 - 1);
}

/// RFLAGS at the start of any code: the bit that is always one, and I/O privilege level 3. The latter is set in
/// addition to the bitmap of the TSS: PVM looks at the bitmap only, QEMU's emulated SVM at the level only (it does not
/// take a busy TSS for one). It opens only ports that the VMM answers for.
pub(crate) const START_FLAGS: u64 = 1 << 1 | 3 << 12;

/// The general registers at the entry: the two arguments, and a stack aligned as after a call.
pub(crate) fn registers(memory: &Memory, image: &Image, vcpu: u32, boot_block: GuestAddress) -> kvm_regs {
    kvm_regs {
        rip: image.entry,
        rdi: boot_block.0,
        rsi: u64::from(vcpu),
        rsp: memory.stack_top(vcpu) - 8,
        rflags: START_FLAGS,
        ..Default::default()
    }
}

pub(crate) fn simulated_registers(
    memory: &Memory,
    image: &Image,
    (vcpu, ring): (u32, Ring),
    boot_block: GuestAddress,
) -> haltkick_sim::Registers {
    let mut sregs = kvm_sregs::default();
    set_system_registers(&mut sregs, ring, vcpu, memory.area_address(vcpu));
    let start = registers(memory, image, vcpu, boot_block);
    let mut general = [0; 16];
    general[haltkick_sim::General::Rdi as usize] = start.rdi;
    general[haltkick_sim::General::Rsi as usize] = start.rsi;
    general[haltkick_sim::General::Rsp as usize] = start.rsp;
    let table = |base, limit| haltkick_sim::Table { base, limit };
    let selectors = [&sregs.es, &sregs.cs, &sregs.ss, &sregs.ds, &sregs.fs, &sregs.gs].map(|of| of.selector);
    haltkick_sim::Registers {
        general,
        rip: start.rip,
        rflags: start.rflags,
        system: haltkick_sim::System {
            selectors,
            gs_base: sregs.gs.base,
            cr0: sregs.cr0,
            cr3: sregs.cr3,
            cr4: sregs.cr4,
            efer: sregs.efer,
            gdt: table(sregs.gdt.base, u32::from(sregs.gdt.limit)),
            idt: table(sregs.idt.base, u32::from(sregs.idt.limit)),
            task: table(sregs.tr.base, sregs.tr.limit),
            task_selector: sregs.tr.selector,
            ..haltkick_sim::System::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Physical address of a mapped virtual one, as the CPU's walk finds it (4.5.4).
    fn walk(memory: &Memory, address: u64) -> Option<u64> {
        const ADDRESS: u64 = 0xf_ffff_ffff_f000;
        let mut table = PML4;
        for shift in [39, 30, 21] {
            let entry = memory.read(table + (address >> shift & 511) * 8, 8)?;
            let entry = u64::from_le_bytes(entry.try_into().ok()?);
            if entry & 1 == 0 {
                return None;
            }
            table = entry & ADDRESS;
        }
        Some(table + (address & (LARGE_PAGE - 1)))
    }

    #[test]
    fn memory_beyond_a_gib_is_mapped_to_its_end_and_no_further() {
        let image = Image::embedded();
        for pool_bytes in [0, 64 << 20, 2 << 30] {
            let memory = Memory::new(image.end, 2, pool_bytes, 0).unwrap();
            write_tables(&memory, &image);
            for address in (LARGE_PAGE..memory.size()).step_by(LARGE_PAGE as usize) {
                assert_eq!(walk(&memory, address), Some(address), "of {:#x}", memory.size());
            }
            assert_eq!(walk(&memory, 0), None);
            assert_eq!(walk(&memory, memory.size()), None);
        }
    }
}
