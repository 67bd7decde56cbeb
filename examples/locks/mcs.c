/* MCS lock (Mellor-Crummey and Scott, TOCS 1991): a queue in which every waiter spins on a line of its own. */
#include "haltkick.h"

/* A vCPU may hold several locks and release them in any order: each takes a node that is free. */
#define DEPTH 8

struct node {
    struct node *next; /* who is behind; written by that one */
    hk_u32 locked;     /* 1: its vCPU may enter; written by the one before */
    hk_u32 in_use;
} __attribute__((aligned(128)));

struct nodes {
    struct node node[DEPTH];
};

struct mcs {
    struct node *tail; /* the last in the queue; null: the lock is free */
};

/* The node is what lock tells unlock. */
HK_LOCK_WITH_TOKEN(struct mcs, struct node *);
HK_PERCPU(struct nodes);

static inline struct node *claim(void)
{
    struct node *node = hk_percpu(hk_cpu())->node;
    while (node->in_use)
        node++;
    node->in_use = 1;
    return node;
}

static __attribute__((noinline, cold)) void wait_behind(struct node *before, struct node *node)
{
    hk_announce(HK_WAITER);
    __atomic_store_n(&before->next, node, __ATOMIC_RELEASE);
    while (!__atomic_load_n(&node->locked, __ATOMIC_ACQUIRE))
        hk_pause();
}

struct node *hk_lock(struct mcs *lock)
{
    struct node *node = claim();
    node->next = 0;
    node->locked = 0;
    struct node *before = __atomic_exchange_n(&lock->tail, node, __ATOMIC_ACQ_REL);
    if (before)
        wait_behind(before, node);
    return node;
}

void hk_unlock(struct mcs *lock, struct node *node)
{
    struct node *next = __atomic_load_n(&node->next, __ATOMIC_ACQUIRE);
    if (!next) {
        struct node *alone = node;
        if (__atomic_compare_exchange_n(&lock->tail, &alone, 0, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
            node->in_use = 0;
            return;
        }
        /* Its link is on the way. */
        while (!(next = __atomic_load_n(&node->next, __ATOMIC_ACQUIRE)))
            hk_pause();
    }
    __atomic_store_n(&next->locked, 1, __ATOMIC_RELEASE);
    node->in_use = 0;
}
