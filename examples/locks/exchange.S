/* Test-and-set lock in assembly: what include/haltkick.h declares, by hand. */

    .text
    .globl hk_lock
    .type hk_lock, @function
hk_lock:
    movl $1, %eax
    xchgb %al, (%rdi)
    testb %al, %al
    jne 1f
    ret
1:  pushq %rdi
2:  call hk_pause
    movq (%rsp), %rdi
    cmpb $0, (%rdi)
    jne 2b
    movl $1, %eax
    xchgb %al, (%rdi)
    testb %al, %al
    jne 2b
    popq %rdi
    ret
    .size hk_lock, . - hk_lock

    .globl hk_unlock
    .type hk_unlock, @function
hk_unlock:
    movb $0, (%rdi)
    ret
    .size hk_unlock, . - hk_unlock

    .section .rodata
    .p2align 2
    .globl hk_version, hk_lock_size, hk_lock_align
hk_version:
    .long 1
hk_lock_size:
    .long 1
hk_lock_align:
    .long 1

    .section .note.GNU-stack, "", @progbits
