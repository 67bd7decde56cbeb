/* Generic concurrency restriction (Dice and Kogan, EuroSys 2019) for threads: at most four may ask the lock within, a test-and-set in
 * front of an MCS queue. The others queue; the first of these spins until fewer than three are left, the rest sleeps after 1024 rounds. */
#include "haltkick.h"

#define ADMITTED 4
#define REFILL 2
#define ROUNDS 1024
#define SHUFFLE_EVERY 0x4000 /* sections after which the first of the queue is let in, whoever else is */

struct node {
    struct node *next;
    hk_u32 granted; /* 1: it is the head */
    hk_u32 sleeps;
    hk_u32 cpu;
} __attribute__((aligned(64)));

struct gcr {
    hk_u32 held;
    struct node *tail __attribute__((aligned(64)));
    hk_u32 active __attribute__((aligned(64)));
    hk_u32 approved;
    hk_u32 sections;
    struct node *passive __attribute__((aligned(64)));
};

struct nodes {
    struct node within, outside;
};

HK_LOCK(struct gcr);
HK_PERCPU(struct nodes);

static inline int take(struct gcr *lock)
{
    return !__atomic_load_n(&lock->held, __ATOMIC_RELAXED) && !__atomic_exchange_n(&lock->held, 1, __ATOMIC_ACQUIRE);
}

/* Enters a queue; returns once this node is its head. One that may sleep does so after so many rounds. */
static void become_head(struct node **tail, struct node *node, hk_u32 rounds)
{
    node->next = 0;
    node->granted = 0;
    node->sleeps = 0;
    node->cpu = hk_cpu();
    struct node *previous = __atomic_exchange_n(tail, node, __ATOMIC_ACQ_REL);
    if (!previous)
        return;
    __atomic_store_n(&previous->next, node, __ATOMIC_RELEASE);
    for (hk_u32 round = 0; !__atomic_load_n(&node->granted, __ATOMIC_ACQUIRE); round++) {
        if (!rounds || round < rounds) {
            hk_pause();
            continue;
        }
        /* Sequentially consistent, as in leave: either this sees the grant, or that sees the sleeper. */
        __atomic_store_n(&node->sleeps, 1, __ATOMIC_SEQ_CST);
        hk_wait_u32(&node->granted, 0);
    }
}

static void leave(struct node **tail, struct node *node)
{
    struct node *next = __atomic_load_n(&node->next, __ATOMIC_ACQUIRE), *last = node;
    if (!next) {
        if (__atomic_compare_exchange_n(tail, &last, 0, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
            return;
        while (!(next = __atomic_load_n(&node->next, __ATOMIC_ACQUIRE)))
            hk_pause();
    }
    hk_u32 cpu = next->cpu;
    __atomic_store_n(&next->granted, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&next->sleeps, __ATOMIC_SEQ_CST))
        hk_kick(cpu);
}

void hk_lock(struct gcr *lock)
{
    struct nodes *nodes = hk_percpu(hk_cpu());
    if (__atomic_load_n(&lock->active, __ATOMIC_RELAXED) >= ADMITTED) {
        become_head(&lock->passive, &nodes->outside, ROUNDS);
        while (!__atomic_load_n(&lock->approved, __ATOMIC_RELAXED) && __atomic_load_n(&lock->active, __ATOMIC_RELAXED) > REFILL)
            hk_pause();
        __atomic_store_n(&lock->approved, 0, __ATOMIC_RELAXED);
        __atomic_fetch_add(&lock->active, 1, __ATOMIC_RELAXED);
        leave(&lock->passive, &nodes->outside);
    } else {
        __atomic_fetch_add(&lock->active, 1, __ATOMIC_RELAXED);
    }
    if (take(lock))
        return;
    become_head(&lock->tail, &nodes->within, 0);
    while (!take(lock))
        hk_pause();
    leave(&lock->tail, &nodes->within);
}

void hk_unlock(struct gcr *lock)
{
    if (++lock->sections % SHUFFLE_EVERY == 0)
        __atomic_store_n(&lock->approved, 1, __ATOMIC_RELAXED);
    __atomic_fetch_sub(&lock->active, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&lock->held, 0, __ATOMIC_RELEASE);
}
