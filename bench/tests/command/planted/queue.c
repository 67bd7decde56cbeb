/* The MCS queue. Each define is a fault of its own; without one the lock is sound. */
#include "haltkick.h"

struct node {
    struct node *next;
    hk_u8 waits;
    hk_u8 in_use;
} __attribute__((aligned(64)));

struct nodes {
    struct node node[8];
};

struct lock {
    struct node *tail;
};

HK_LOCK_WITH_TOKEN(struct lock, struct node *);
HK_PERCPU(struct nodes);

#ifdef ONE_WORD
static struct lock all;
#define THE(lock) (&all)
#else
#define THE(lock) (lock)
#endif

struct node *hk_lock(struct lock *given)
{
    struct lock *lock = THE(given);
    struct node *node = hk_percpu(hk_cpu())->node;
#ifdef FEW_NODES
    /* A vCPU that holds three locks takes the third node once more. */
    while (node->in_use && node < hk_percpu(hk_cpu())->node + 2)
        node++;
#elif !defined(ONE_NODE)
    while (node->in_use)
        node++;
#endif
    node->in_use = 1;
    node->next = 0;
    node->waits = 1;
    struct node *before = __atomic_exchange_n(&lock->tail, node, __ATOMIC_ACQ_REL);
    if (!before)
        return node;
    hk_announce(HK_WAITER);
    __atomic_store_n(&before->next, node, __ATOMIC_RELEASE);
    while (__atomic_load_n(&node->waits, __ATOMIC_ACQUIRE))
        hk_pause();
    return node;
}

void hk_unlock(struct lock *given, struct node *node)
{
    struct lock *lock = THE(given);
#ifdef LATE_LINK
    /* A successor that has not linked itself yet is forgotten. */
    if (!__atomic_load_n(&node->next, __ATOMIC_ACQUIRE)) {
        __atomic_store_n(&lock->tail, 0, __ATOMIC_RELEASE);
        node->in_use = 0;
        return;
    }
#endif
    struct node *alone = node;
    if (!__atomic_compare_exchange_n(&lock->tail, &alone, 0, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
        struct node *next;
        while (!(next = __atomic_load_n(&node->next, __ATOMIC_ACQUIRE)))
            hk_pause();
        __atomic_store_n(&next->waits, 0, __ATOMIC_RELEASE);
    }
    node->in_use = 0;
}
