//! Page tables, descriptors and registers of a CPU that takes exceptions. Tests of boards, and of single
//! instructions, compile this file, too.

use super::{Memory, Registers, System, Table};

pub(crate) const PML4: u64 = 0x1000;
pub(crate) const POINTERS: u64 = 0x2000;
pub(crate) const DIRECTORY: u64 = 0x3000;
pub(crate) const PAGES: u64 = 0x4000;
pub(crate) const GDT: u64 = 0x5000;
pub(crate) const TSS: u64 = 0x5800;
pub(crate) const IDT: u64 = 0x6000;

/// Present, writable, ring 3's.
pub(crate) const RIGHTS: u64 = 7;
/// Bit of an entry that leads to a page of 1 GiB or 2 MiB.
pub(crate) const IS_PAGE: u64 = 1 << 7;
pub(crate) const USER_CODE: u16 = 0x33;
pub(crate) const USER_DATA: u16 = 0x2b;
pub(crate) const KERNEL_CODE: u16 = 0x10;
const KERNEL_DATA: u16 = 0x18;
const BREAKPOINT: u64 = 3;

/// Maps the first pages of 4 KiB, and at 1 GiB a page of that size, to memory from 0 on. All exceptions and interrupts come to one
/// handler, on a stack of their own.
pub(crate) fn write_tables(ram: &mut impl Memory, pages: u64, handler: u64, exception_stack: u64) {
    for (at, entry) in [(PML4, POINTERS), (POINTERS, DIRECTORY), (POINTERS + 8, IS_PAGE), (DIRECTORY, PAGES)]
    {
        ram.store(at, 8, entry | RIGHTS);
    }
    (0..pages).for_each(|page| ram.store(PAGES + page * 8, 8, page << 12 | RIGHTS));
    ram.store(GDT + u64::from(KERNEL_CODE), 8, 0x00af_9b00_0000_ffff);
    ram.store(GDT + u64::from(USER_CODE & !3), 8, 0x00af_fb00_0000_ffff);
    ram.store(TSS + 36, 8, exception_stack);
    ram.store(TSS + 102, 2, 104);
    for vector in 0..256 {
        set_gate(ram, vector, handler, if vector == BREAKPOINT { 3 } else { 0 });
    }
}

/// An interrupt gate to ring 0, on the stack IST1.
pub(crate) fn set_gate(ram: &mut impl Memory, vector: u64, handler: u64, level: u64) {
    let low = handler & 0xffff
        | u64::from(KERNEL_CODE) << 16
        | 1 << 32
        | (0x8e | level << 5) << 40
        | (handler >> 16 & 0xffff) << 48;
    ram.store(IDT + vector * 16, 8, low);
    ram.store(IDT + vector * 16 + 8, 8, handler >> 32);
}

/// Registers of a CPU in ring 3, or else in ring 0, that uses these tables.
pub(crate) fn registers(user: bool, rip: u64, rflags: u64) -> Registers {
    let (code, data) = if user { (USER_CODE, USER_DATA) } else { (KERNEL_CODE, KERNEL_DATA) };
    let system = System {
        selectors: [data, code, data, data, data, data],
        cr0: 1 << 31 | 1 << 16 | 1,
        cr3: PML4,
        cr4: 1 << 5,
        efer: 1 << 11 | 1 << 10 | 1 << 8,
        gdt: Table { base: GDT, limit: 0x4f },
        idt: Table { base: IDT, limit: 0xfff },
        task: Table { base: TSS, limit: 255 },
        ..System::default()
    };
    Registers { rip, rflags, system, ..Registers::default() }
}
