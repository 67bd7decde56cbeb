//! Ground of the start-up code: the first segments, page tables and stack, and the layout that the boot CPU
//! makes for the others.
#![expect(unsafe_code, reason = "memory that start-up code and Rust share by name")]

use core::arch::global_asm;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::cpu::apic;

/// Address of the trampoline's copy: any page of the first 640 KiB.
pub(super) const TRAMPOLINE: u64 = 0x8000;
/// Bytes of each CPU's stack.
pub(super) const STACK_BYTES: u64 = 16384;
/// Selectors of the table below.
pub(super) const CODE: u16 = 8;
/// Offset of the task state in `CpuTables`, after the four entries of the table below.
pub(super) const TASK_STATE: u16 = 0x20;

global_asm!(
    ".pushsection .data.haltkick_start, \"aw\"",
    ".p2align 3",
    ".global haltkick_gdt",
    "haltkick_gdt:",
    ".quad 0",
    ".quad 0x00af9b000000ffff", // 0x08: 64-bit code
    ".quad 0x00cf93000000ffff", // 0x10: data
    ".quad 0x00cf9b000000ffff", // 0x18: 32-bit code
    ".global haltkick_gdt_pointer",
    "haltkick_gdt_pointer:",
    ".word 31",
    ".long haltkick_gdt",
    // The first GiB in pages of 2 MiB, and the one page that holds the APIC.
    ".p2align 12",
    ".global haltkick_pml4",
    "haltkick_pml4:",
    ".quad haltkick_pdpt + 3",
    ".fill 511, 8, 0",
    "haltkick_pdpt:",
    ".quad haltkick_first_gib + 3",
    ".quad 0, 0",
    ".quad haltkick_fourth_gib + 3",
    ".fill 508, 8, 0",
    ".global haltkick_first_gib",
    "haltkick_first_gib:",
    ".set page, 0",
    ".rept 512",
    ".quad (page << 21) + 0x83",
    ".set page, page + 1",
    ".endr",
    "haltkick_fourth_gib:",
    ".fill 503, 8, 0",
    ".quad {apic}",
    ".fill 8, 8, 0",
    ".popsection",

    ".pushsection .bss.haltkick_boot_stack, \"aw\", @nobits",
    ".p2align 4",
    ".zero {stack_bytes}",
    ".global haltkick_boot_stack_top",
    "haltkick_boot_stack_top:",
    ".popsection",
    stack_bytes = const STACK_BYTES,
    apic = const apic::page_entry(),
    options(att_syntax),
);

/// CPUs, other than the boot CPU, that have come up.
pub(super) static NUMBERS: AtomicU32 = AtomicU32::new(0);
/// CPUs, other than the boot CPU, that there is work for. Set before any is started.
pub(super) static EXPECTED: AtomicU32 = AtomicU32::new(0);
/// Beginning of their stacks. Set before any is started.
pub(super) static STACKS: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" {
    /// The trampoline of `start`, to be copied.
    #[link_name = "haltkick_trampoline"]
    static TRAMPOLINE_CODE: u8;
    #[link_name = "haltkick_trampoline_end"]
    static TRAMPOLINE_END: u8;
    #[link_name = "haltkick_first_gib"]
    static FIRST_GIB: AtomicU64;
    /// The table of segments that all CPUs start with: four entries.
    #[link_name = "haltkick_gdt"]
    pub(super) static SEGMENTS: [u64; 4];
    #[link_name = "haltkick_pml4"]
    pub(super) static PML4: u8;
    #[link_name = "__haltkick_end"]
    pub(super) static IMAGE_END: u8;
}

/// Puts the trampoline where start-up interrupts find it.
pub(super) fn place_trampoline() {
    let (start, end) = (&raw const TRAMPOLINE_CODE, &raw const TRAMPOLINE_END);
    // SAFETY: the first 640 KiB of a PC are memory, mapped, and not in use by anybody; the trampoline is shorter than a page.
    unsafe { core::ptr::copy_nonoverlapping(start, TRAMPOLINE as *mut u8, end as usize - start as usize) };
}

/// Takes the first large page away, so that null pointers fault. CPUs that have not touched it need no flush.
pub(super) fn unmap_null() {
    // SAFETY: the entry of the first page; nothing that is still needed lies there.
    unsafe {
        FIRST_GIB.store(0, Ordering::Relaxed);
        core::arch::asm!("mov {0}, cr3", "mov cr3, {0}", out(reg) _, options(nostack, preserves_flags));
    }
}

/// Zeroed memory for one structure, for which zero is valid. It is written before anybody else looks, or each CPU has a part of its
/// own in it, or it is made of atomics.
#[repr(C, align(64))]
pub(super) struct Zeroed<T>(UnsafeCell<MaybeUninit<T>>);

// SAFETY: see the type; every use says why it is alone, or that the contents are atomics.
unsafe impl<T> Sync for Zeroed<T> {}

impl<T> Zeroed<T> {
    pub(super) const fn new() -> Self {
        Self(UnsafeCell::new(MaybeUninit::zeroed()))
    }

    pub(super) const fn pointer(&self) -> *mut T {
        self.0.get().cast()
    }
}
