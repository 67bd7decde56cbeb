//! From one of two entries, or from a start-up interrupt, to 64-bit Rust code on a stack.
//!
//! - The ELF header's entry is for loaders that enter in 64-bit mode, with low memory mapped to itself: `haltkick run --kernel`, as the
//!   64-bit boot protocol of Linux has it.
//! - PVH (Xen's, which QEMU speaks): an ELF note names an entry point in 32-bit protected mode without paging.
//! - The other CPUs begin in real mode, in the page that their start-up interrupt names; the trampoline is copied there.
//!
//! All of them go on with the page tables here, which map four GiB to themselves.

use core::{
    arch::{global_asm, x86_64::__cpuid},
    ptr,
};

use crate::{CPUS, interrupts};

/// Address of the trampoline's copy: a page below 1 MiB.
const TRAMPOLINE: usize = 0x8000;
const STACK_BYTES: usize = 16 << 10;

#[repr(C, align(16))]
struct Stacks([[u8; STACK_BYTES]; CPUS]);

static mut STACKS: Stacks = Stacks([[0; STACK_BYTES]; CPUS]);

// AT&T syntax: the Intel syntax of this assembler has no far jump.
global_asm!(
    ".pushsection .note.example_pvh, \"a\", @note",
    ".p2align 2",
    ".long 4, 8, 18", // lengths of name and descriptor; XEN_ELFNOTE_PHYS32_ENTRY
    ".asciz \"Xen\"",
    ".quad example_start_32",
    ".popsection",

    // Four GiB in pages of 2 MiB: present, writable.
    ".pushsection .data.example_pages, \"aw\"",
    ".p2align 12",
    "example_directories:",
    ".set page, 0x83",
    ".rept 2048",
    ".quad page",
    ".set page, page + 0x200000",
    ".endr",
    "example_pointers: .irp gib, 0, 1, 2, 3; .quad example_directories + 0x1000 * \\gib + 3; .endr",
    ".p2align 12",
    "example_pml4: .quad example_pointers + 3",
    ".p2align 12",
    // The number of the next CPU that starts.
    "example_next: .long 1",
    ".popsection",

    ".pushsection .text.example_start, \"ax\"",
    ".code64",
    ".global example_start_64",
    "example_start_64:",
    "cli",
    "cld",
    "lgdt 5f",
    "movl $example_pml4, %eax",
    "movq %rax, %cr3",
    "xorl %edi, %edi", // CPU 0
    "ljmpl *8f", // to a code segment of the new table
    "8: .long 3f",
    ".word 8",

    ".code32",
    "example_start_32:",
    "cli",
    "cld",
    "xorl %edi, %edi", // CPU 0
    "example_enter_long_mode:",
    "lgdtl 5f",
    "movl %cr4, %eax",
    "orl $0x20, %eax", // PAE
    "movl %eax, %cr4",
    "movl $example_pml4, %eax",
    "movl %eax, %cr3",
    "movl $0xc0000080, %ecx", // EFER.LME
    "rdmsr",
    "orl $0x100, %eax",
    "wrmsr",
    "movl %cr0, %eax",
    "andl $0x9fffffff, %eax", // caches on: INIT leaves them off
    "orl $0x80010023, %eax", // PG, WP, NE, MP, PE
    "movl %eax, %cr0",
    "ljmpl $8, $3f",
    ".code64",
    "3: xorl %eax, %eax",
    "movl %eax, %ds",
    "movl %eax, %es",
    "movl %eax, %ss",
    "movl %eax, %fs",
    "movl %eax, %gs",
    "movl %edi, %edi",
    "cmpl ${cpus}, %edi",
    "jae 9f",
    "leal 1(%edi), %eax",
    "imulq ${stack_bytes}, %rax, %rax",
    "leaq {stacks}(%rax), %rsp",
    "call {main}",
    "ud2",
    "9: hlt", // one CPU too many
    "jmp 9b",

    ".code16",
    ".global example_trampoline",
    "example_trampoline:",
    "cli",
    "cld",
    "xorw %ax, %ax",
    "movw %ax, %ds",
    "lgdtl {trampoline} + (4f - example_trampoline)",
    "movl %cr0, %eax",
    "orl $1, %eax",
    "movl %eax, %cr0",
    "ljmpl $0x18, $6f",
    "4: .word 31",
    ".long 7f",
    ".global example_trampoline_end",
    "example_trampoline_end:",

    ".code32",
    "6: movw $0x10, %ax",
    "movw %ax, %ds",
    "movw %ax, %es",
    "movw %ax, %ss",
    "movl $1, %edi",
    "lock xaddl %edi, example_next",
    "jmp example_enter_long_mode",
    ".p2align 3",
    "7: .quad 0, 0x00af9a000000ffff, 0x00cf92000000ffff, 0x00cf9a000000ffff", // 64-bit code, data, 32-bit code
    "5: .word 31",
    ".quad 7b", // 32-bit code reads half of it
    ".code64",
    ".popsection",
    main = sym crate::main,
    stacks = sym STACKS,
    stack_bytes = const STACK_BYTES,
    cpus = const CPUS,
    trampoline = const TRAMPOLINE,
    options(att_syntax),
);

unsafe extern "C" {
    static example_trampoline: [u8; 0];
    static example_trampoline_end: [u8; 0];
}

/// How many CPUs there are, but at most as many as this kernel has room for: APIC ids of this package, by CPUID.
pub(crate) fn cpus() -> usize {
    const MULTI_THREADING: u32 = 1 << 28;
    let leaf = __cpuid(1);
    let ids = if leaf.edx & MULTI_THREADING == 0 { 1 } else { leaf.ebx >> 16 & 0xff };
    CPUS.min(ids as usize)
}

/// Starts the other CPUs, by the local APIC: INIT, and a start-up interrupt twice. Their numbers are as they come.
pub(crate) fn start_the_others() {
    const ASSERT: u32 = 1 << 14;
    const INIT: u32 = 5 << 8;
    const START_UP: u32 = 6 << 8;
    // SAFETY: nothing else uses that page, and no CPU runs there yet.
    unsafe {
        let bytes = (&raw const example_trampoline_end).addr() - (&raw const example_trampoline).addr();
        let page = ptr::with_exposed_provenance_mut::<u8>(TRAMPOLINE);
        ptr::copy_nonoverlapping((&raw const example_trampoline).cast::<u8>(), page, bytes);
    }
    interrupts::command_others(ASSERT | INIT);
    crate::ports::delay(1_000);
    for _ in 0..2 {
        interrupts::command_others(ASSERT | START_UP | (TRAMPOLINE >> 12) as u32);
        crate::ports::delay(200);
    }
}
