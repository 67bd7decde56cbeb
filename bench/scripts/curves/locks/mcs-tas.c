/* Test-and-set in front of an MCS queue: who finds the word free takes it; of those that wait, only the head of the queue asks again. */
#include "haltkick.h"

struct node {
    struct node *next;
    hk_u32 granted; /* 1: it is the head */
} __attribute__((aligned(64)));

struct mcs_tas {
    hk_u32 held;
    struct node *tail __attribute__((aligned(64)));
};

HK_LOCK(struct mcs_tas);
HK_PERCPU(struct node);

static inline int take(struct mcs_tas *lock)
{
    return !__atomic_load_n(&lock->held, __ATOMIC_RELAXED) && !__atomic_exchange_n(&lock->held, 1, __ATOMIC_ACQUIRE);
}

void hk_lock(struct mcs_tas *lock)
{
    if (take(lock))
        return;
    struct node *node = hk_percpu(hk_cpu());
    node->next = 0;
    node->granted = 0;
    struct node *previous = __atomic_exchange_n(&lock->tail, node, __ATOMIC_ACQ_REL);
    if (previous) {
        __atomic_store_n(&previous->next, node, __ATOMIC_RELEASE);
        while (!__atomic_load_n(&node->granted, __ATOMIC_ACQUIRE))
            hk_pause();
    }
    while (!take(lock))
        hk_pause();
    struct node *next = __atomic_load_n(&node->next, __ATOMIC_ACQUIRE), *last = node;
    if (!next) {
        if (__atomic_compare_exchange_n(&lock->tail, &last, 0, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
            return;
        while (!(next = __atomic_load_n(&node->next, __ATOMIC_ACQUIRE)))
            hk_pause();
    }
    __atomic_store_n(&next->granted, 1, __ATOMIC_RELEASE);
}

void hk_unlock(struct mcs_tas *lock)
{
    __atomic_store_n(&lock->held, 0, __ATOMIC_RELEASE);
}
