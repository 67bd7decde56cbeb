/* queue in which each waits for its predecessor's node
 *
 * CLH lock (Craig 1993; Landin and Hagersten 1994).
 *
 *     tail -----------------------------------+      a node: busy   1 from lock to unlock
 *                                             v
 *     [released] <-- [owner] <-- [waiter] <-- [last]        each vCPU remembers its predecessor; nothing is linked
 *
 * A vCPU marks its node busy, swaps it into the tail, and waits until the node that it got for it is not busy. Unlock clears the flag
 * and nothing else. The node stays behind, for the successor may be looking at it, and the vCPU goes on with the predecessor's. So nodes
 * wander between vCPUs, one more of them than there are vCPUs in the queue: each lock is made with one.
 *
 * There is no way out of the queue, so a vCPU that tries a lock would have to know that nobody uses the last node anew meanwhile. This
 * lock cannot be tried.
 */
#include "slots.h"

struct node {
    hk_u32 busy;
} __attribute__((aligned(64)));

struct per_cpu {
    hk_u32 in_use;
    /* The node that has come to each slot; null: its own, which was there at first. */
    struct node *held[SLOTS];
    struct node own[SLOTS];
};

struct clh {
    struct node *tail;
};

/* What unlock has to know. */
struct token {
    struct node *predecessor;
    hk_u64 slot;
};

HK_LOCK_WITH_TOKEN(struct clh, struct token);
HK_PERCPU(struct per_cpu);

void hk_init(struct clh *lock)
{
    lock->tail = hk_alloc(sizeof(struct node), _Alignof(struct node));
}

static __attribute__((noinline, cold)) void wait_for(struct node *predecessor)
{
    hk_announce(HK_WAITER);
    /* Acquire: pairs with unlock. */
    while (__atomic_load_n(&predecessor->busy, __ATOMIC_ACQUIRE))
        hk_pause();
}

static inline struct node *node_in(struct per_cpu *mine, hk_u64 slot)
{
    return mine->held[slot] ? mine->held[slot] : &mine->own[slot];
}

struct token hk_lock(struct clh *lock)
{
    struct per_cpu *mine = hk_percpu(hk_cpu());
    hk_u32 slot = claim_slot(&mine->in_use);
    struct node *node = node_in(mine, slot);
    /* Relaxed: published by the swap. */
    __atomic_store_n(&node->busy, 1, __ATOMIC_RELAXED);
    /* Release: publishes the flag. Acquire: the predecessor's flag is that of this wait, not of an earlier one. */
    struct node *predecessor = __atomic_exchange_n(&lock->tail, node, __ATOMIC_ACQ_REL);
    /* Acquire: pairs with unlock. */
    if (__atomic_load_n(&predecessor->busy, __ATOMIC_ACQUIRE))
        wait_for(predecessor);
    return (struct token){ predecessor, slot };
}

void hk_unlock(struct clh *lock, struct token token)
{
    (void)lock;
    struct per_cpu *mine = hk_percpu(hk_cpu());
    /* Release: pairs with both loads of a successor. */
    __atomic_store_n(&node_in(mine, token.slot)->busy, 0, __ATOMIC_RELEASE);
    mine->held[token.slot] = token.predecessor;
    give_back_slot(&mine->in_use, (hk_u32)token.slot);
}
