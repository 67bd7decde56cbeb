//! The memory of a small guest: tables that lead to it, to nothing, and to more of it than there is.
//!
//! ```text
//!  virtual             0 .. 64 KiB     pages of 4 KiB, at the same physical addresses
//!                 64 KiB .. 128 KiB    pages behind all memory
//!                  1 GiB .. 2 GiB      one page: memory, and nothing
//!  the last 4 KiB of all addresses     PROGRAMS[1]
//! ```

use crate::cpu::ram::Ram;
use crate::cpu::state::{Registers, System, Table};

pub(super) const BYTES: u64 = 64 << 10;

pub(super) const PML4: u64 = 0x1000;
pub(super) const POINTERS: u64 = 0x2000;
const DIRECTORY: u64 = 0x3000;
pub(super) const PAGES: u64 = 0x4000;
const GDT: u64 = 0x5000;
const TSS: u64 = 0x5800;
pub(super) const IDT: u64 = 0x6000;
pub(super) const HANDLER: u64 = 0x7000;
/// Behind each other: a program can go on in the second one's page.
pub(super) const PROGRAMS: [u64; 2] = [0x8000, 0x9000];
pub(super) const DATA: u64 = 0xa000;
const STACKS: [u64; 2] = [0xc000, 0xd000];
const EXCEPTION_STACKS: u64 = 0xf000;
pub(super) const HUGE: u64 = 1 << 30;
/// Start of the last page of all addresses.
pub(super) const LAST_PAGE: u64 = !0xfff;

/// Present, writable, ring 3's.
const RIGHTS: u64 = 7;
const LARGE: u64 = 1 << 7;
const USER_CODE: u16 = 0x33;
const USER_DATA: u16 = 0x2b;
const KERNEL_CODE: u16 = 0x10;
const KERNEL_DATA: u16 = 0x18;
const BREAKPOINT: u64 = 3;

/// Memory with tables, and a handler of all interrupts and exceptions.
pub(super) fn memory(handler: &[u8]) -> Ram {
    let mut ram = Ram::new(BYTES as usize);
    let last = 511 * 8;
    for (at, entry) in [
        (PML4, POINTERS),
        (PML4 + last, POINTERS),
        (POINTERS, DIRECTORY),
        (POINTERS + 8, LARGE),
        (POINTERS + last, DIRECTORY),
        (DIRECTORY, PAGES),
        (DIRECTORY + last, PAGES),
        (PAGES + last, PROGRAMS[1]),
    ] {
        ram.store(at, 8, entry | RIGHTS);
    }
    (0..32).for_each(|page| ram.store(PAGES + page * 8, 8, page << 12 | RIGHTS));
    ram.store(GDT + u64::from(KERNEL_CODE), 8, 0x00af_9b00_0000_ffff);
    ram.store(GDT + u64::from(USER_CODE & !3), 8, 0x00af_fb00_0000_ffff);
    ram.store(TSS + 36, 8, EXCEPTION_STACKS);
    ram.store(TSS + 102, 2, 104);
    for vector in 0..256 {
        let level = if vector == BREAKPOINT { 3 } else { 0 };
        let gate = HANDLER & 0xffff | u64::from(KERNEL_CODE) << 16 | 1 << 32 | (0x8e | level << 5) << 40;
        ram.store(IDT + vector * 16, 8, gate);
    }
    write(&mut ram, HANDLER, handler);
    ram
}

/// As much of `bytes` as there is memory for.
pub(super) fn write(ram: &mut Ram, at: u64, bytes: &[u8]) {
    let place = ram.bytes_mut().iter_mut().skip(at as usize);
    place.zip(bytes).for_each(|(slot, byte)| *slot = *byte);
}

/// Registers of CPU number `cpu`, which stands at `rip`. In ring 3 it may use all ports.
pub(super) fn registers(cpu: usize, user: bool, rip: u64) -> Registers {
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
    let mut registers = Registers { rip, rflags: 0x3202, system, ..Registers::default() };
    registers.general[4] = STACKS[cpu];
    registers
}
