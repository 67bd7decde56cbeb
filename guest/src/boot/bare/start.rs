//! From a PVH entry, or from a start-up interrupt, to 64-bit Rust code on a stack.
//!
//! PVH (Xen's, which QEMU, Firecracker and cloud-hypervisor speak): an ELF note names an entry point in 32-bit protected
//! mode without paging. Every other CPU begins in real mode, in the page that its start-up interrupt names; the trampoline is copied
//! there. Both meet at `haltkick_enter_long_mode`.
#![expect(unsafe_code, reason = "start-up code")]

use core::arch::global_asm;

use super::ground::{EXPECTED, NUMBERS, STACK_BYTES, STACKS, TRAMPOLINE};

// AT&T syntax: the Intel syntax of this assembler has no far jump.
global_asm!(
    ".pushsection .note.haltkick_pvh, \"a\", @note",
    ".p2align 2",
    ".long 4, 8, 18", // lengths of name and descriptor; XEN_ELFNOTE_PHYS32_ENTRY
    ".asciz \"Xen\"",
    ".quad haltkick_pvh",
    ".popsection",

    ".pushsection .text.haltkick_pvh, \"ax\"",
    ".code32",
    "haltkick_pvh:",
    "cli",
    "cld",
    "xorl %edi, %edi", // the boot CPU
    "haltkick_enter_long_mode:",
    "lgdtl haltkick_gdt_pointer",
    "movl %cr4, %eax",
    "orl $0x20, %eax", // PAE
    "movl %eax, %cr4",
    "movl $haltkick_pml4, %eax",
    "movl %eax, %cr3",
    "movl $0xc0000080, %ecx", // EFER.LME
    "rdmsr",
    "orl $0x100, %eax",
    "wrmsr",
    "movl %cr0, %eax",
    "andl $0x9fffffff, %eax", // caches on: INIT leaves them off
    "orl $0x80010023, %eax", // PG, WP, NE, MP, PE
    "movl %eax, %cr0",
    "ljmpl $8, $haltkick_long_mode",
    ".code64",
    "haltkick_long_mode:",
    "xorl %eax, %eax",
    "movl %eax, %ds",
    "movl %eax, %es",
    "movl %eax, %ss",
    "movl %eax, %fs",
    "movl %eax, %gs",
    "testl %edi, %edi",
    "jnz 1f",
    "movl $haltkick_boot_stack_top, %esp",
    "call {boot}",
    "ud2",
    // Every other CPU takes the next number, and the stack of that number; unexpected CPUs stop.
    "1:",
    "movl $1, %eax",
    "lock xaddl %eax, {numbers}(%rip)",
    "cmpl {expected}(%rip), %eax",
    "jae 3f",
    "movl %eax, %edi",
    "incl %eax",
    "imulq ${stack_bytes}, %rax, %rax",
    "addq {stacks}(%rip), %rax",
    "movq %rax, %rsp",
    "call {other}",
    "ud2",
    "3: cli",
    "hlt",
    "jmp 3b",
    ".code16",
    ".global haltkick_trampoline",
    "haltkick_trampoline:",
    "cli",
    "cld",
    "xorw %ax, %ax",
    "movw %ax, %ds",
    "lgdtl {trampoline} + (4f - haltkick_trampoline)",
    "movl %cr0, %eax",
    "orl $1, %eax",
    "movl %eax, %cr0",
    "ljmpl $0x18, $haltkick_protected_mode",
    "4: .word 31",
    ".long haltkick_gdt",
    ".global haltkick_trampoline_end",
    "haltkick_trampoline_end:",
    ".code32",
    "haltkick_protected_mode:",
    "movw $0x10, %ax",
    "movw %ax, %ds",
    "movw %ax, %es",
    "movw %ax, %ss",
    "movl $1, %edi", // another CPU
    "jmp haltkick_enter_long_mode",
    ".code64",
    ".popsection",
    boot = sym super::boot::boot,
    other = sym super::boot::other,
    numbers = sym NUMBERS,
    expected = sym EXPECTED,
    stacks = sym STACKS,
    stack_bytes = const STACK_BYTES,
    trampoline = const TRAMPOLINE,
    options(att_syntax),
);
