/* A queue in front of a word, with nodes for each vCPU and each level of interrupts. A define chooses a fault. */
#include "haltkick.h"

struct node {
    struct node *next;
    hk_u32 is_first;
};
struct nodes {
    struct node of[4];
    hk_u32 used;
};
struct lock {
    struct node *last;
    hk_u32 held;
};
HK_PERCPU(struct nodes);
HK_LOCK(struct lock);
HK_MAY_BE_INTERRUPTED;

#define in_this_order() __asm__ volatile("" ::: "memory")

static int take(struct lock *lock)
{
    hk_u32 is_free = 0;
    return __atomic_compare_exchange_n(&lock->held, &is_free, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

int hk_try_lock(struct lock *lock)
{
#ifdef NEVER_TAKE
    if (hk_cpu() == 33)
        return 0;
#endif
#ifdef TAKE_AND_DENY
    if (hk_cpu() == 2)
        return take(lock) && 0;
#endif
    return take(lock);
}

void hk_lock(struct lock *lock)
{
    if (take(lock))
        return;
    struct nodes *nodes = hk_percpu(hk_cpu());
    hk_u32 level = nodes->used;
#ifndef COUNT_LATE
    nodes->used = level + 1;
    in_this_order();
#endif
    struct node *mine = &nodes->of[level];
    mine->next = 0;
    mine->is_first = 0;
#ifdef COUNT_LATE
    /* An interrupt in between takes the same node. */
    in_this_order();
    nodes->used = level + 1;
#endif
    struct node *before = __atomic_exchange_n(&lock->last, mine, __ATOMIC_ACQ_REL);
    if (before) {
        __atomic_store_n(&before->next, mine, __ATOMIC_RELEASE);
        while (!__atomic_load_n(&mine->is_first, __ATOMIC_ACQUIRE))
            hk_pause();
    }
    while (!take(lock)) {
#ifdef KEEP_NO_REGISTER
        /* What a call may change is used behind it. */
        hk_u64 kept;
        __asm__ volatile("movl $1, %%r8d; call hk_waits; movq %%r8, %0"
                         : "=r"(kept) : : "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "cc", "memory");
        if (kept != 1)
            hk_fail("a register has changed");
#endif
        hk_pause();
    }
    struct node *self = mine;
    if (!__atomic_compare_exchange_n(&lock->last, &self, 0, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
        struct node *next;
        while (!(next = __atomic_load_n(&mine->next, __ATOMIC_ACQUIRE)))
            hk_pause();
        __atomic_store_n(&next->is_first, 1, __ATOMIC_RELEASE);
    }
    in_this_order();
    nodes->used = level;
}

void hk_unlock(struct lock *lock)
{
#ifdef FORGET
    if (hk_cpu() == 170)
        return;
#endif
    __atomic_store_n(&lock->held, 0, __ATOMIC_RELEASE);
}
