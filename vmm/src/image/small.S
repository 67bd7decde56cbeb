/* A lock object with all kinds of sections, symbols and references that are linked. */

/* Each function ends where the next one is aligned. */
        .macro function name
9:      .p2align 5
        .globl \name
        .type \name, @function
        .size \name, 9f - \name
\name:
        .endm

        .macro constant name, value
        .globl \name
        .type \name, @object
        .size \name, 4
\name:  .long \value
        .endm

        .text
        function hk_lock
1:      mov $1, %eax
        xchg %eax, (%rdi)
        test %eax, %eax
        jz 2f
        call hk_waits
        jmp 1b
2:      ret
        function hk_unlock
        movl $0, (%rdi)
        ret
        function hk_pv_lock
        mov hk_now@GOTPCREL(%rip), %rax
        call *%rax
        lea hk_percpu_area(%rip), %rax
        mov $hk_event_mine, %eax
        ret
        function hk_pv_unlock
        movq $.data, %rax
        ret
        function hk_try_lock
        xor %eax, %eax
        ret
        function hk_init
        ret
9:
        .data
        .quad hk_unlock, zeros, common + 8
        .comm common, 16, 8

        .bss
        .globl zeros
zeros:  .zero 64

        .section .rodata
        constant hk_version, 1
        constant hk_lock_size, 8
        constant hk_lock_align, 8
        constant hk_percpu_size, 64

        .section .debug_info, "", @progbits
        .long 0
        .quad .text
        .long hk_unlock
