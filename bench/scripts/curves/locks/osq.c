/* A queue of spinners whose nodes are the CPUs' own, told by number: the queue that a sleeping lock's spinners wait in. Each round of
 * waiting reads a word beside the tail, as its limit would be: measured times grow by what two writes to a line cost that all poll. */
#include "haltkick.h"

struct node {
    struct node *next;     /* who is behind; written by that one */
    struct node *previous; /* who is before */
    hk_u32 locked;         /* 1: its vCPU may enter; written by the one before */
    hk_u32 cpu;            /* its number, from 1 on */
} __attribute__((aligned(64)));

struct osq {
    hk_u32 tail; /* number of the last in the queue; 0: nobody */
    hk_u32 ends; /* not zero: waiters leave the queue; nobody sets it */
};

HK_LOCK(struct osq);
HK_PERCPU(struct node);

/* Who is behind `node`, once it has said so; null if nobody is, and the queue is empty now. */
static struct node *next_of(struct osq *lock, struct node *node)
{
    for (;;) {
        hk_u32 last = node->cpu;
        if (__atomic_load_n(&lock->tail, __ATOMIC_RELAXED) == last &&
            __atomic_compare_exchange_n(&lock->tail, &last, 0, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
            return 0;
        if (__atomic_load_n(&node->next, __ATOMIC_RELAXED)) {
            struct node *next = __atomic_exchange_n(&node->next, 0, __ATOMIC_RELAXED);
            if (next)
                return next;
        }
        __builtin_ia32_pause();
    }
}

void hk_lock(struct osq *lock)
{
    hk_u32 cpu = hk_cpu() + 1;
    struct node *node = hk_percpu(hk_cpu());
    node->locked = 0;
    node->next = 0;
    node->cpu = cpu;
    hk_u32 before = __atomic_exchange_n(&lock->tail, cpu, __ATOMIC_ACQ_REL);
    if (!before)
        return;
    struct node *previous = hk_percpu(before - 1);
    node->previous = previous;
    __atomic_store_n(&previous->next, node, __ATOMIC_RELEASE);
    while (!__atomic_load_n(&node->locked, __ATOMIC_ACQUIRE)) {
        if (__atomic_load_n(&lock->ends, __ATOMIC_RELAXED))
            return;
        __builtin_ia32_pause();
    }
}

void hk_unlock(struct osq *lock)
{
    struct node *node = hk_percpu(hk_cpu());
    hk_u32 last = node->cpu;
    if (__atomic_compare_exchange_n(&lock->tail, &last, 0, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
        return;
    struct node *next = __atomic_exchange_n(&node->next, 0, __ATOMIC_RELAXED);
    if (!next)
        next = next_of(lock, node);
    if (next)
        __atomic_store_n(&next->locked, 1, __ATOMIC_RELEASE);
}
