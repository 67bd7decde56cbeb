/* queue that moves waiters aside which the host has preempted (--preempted-hint)
 *
 * Compact queue lock with a second queue: CNA (Dice and Kogan, EuroSys 2019), whose release prefers waiters of its own socket, with another
 * predicate. Here it prefers waiters that the host has not taken off their pCPUs.
 *
 *     tail ---------------------------------------+   a node: next    who is behind, 0 if no vCPU is known
 *                                                 v           locked  0 waits; 1 owner, nobody is aside; else owner, and who is
 *     [owner] --next--> [waiter] --next--> [last]             last    of the first one aside: the last one aside
 *        |                                                    passed  of the first one aside: how often it was overtaken
 *        +--locked----> [aside] --next--> [aside]
 *
 *     H1 lock    claim a node; initialise it; swap it into the tail; no node before: has the lock
 *     H2 wait    link behind p; spin until locked is not 0
 *
 *     H3 unlock  no node behind: tail := 0, or the last one aside, if this is the last; then nothing, or H4 without a rest
 *                else find the next one
 *     H4         one is aside, and runs, or was overtaken MOST times: link the last one aside to the next one; grant the first one aside
 *     H5 scan    the next one does not run, was not overtaken MOST times, and there is one behind it: put it aside, and look at that one
 *     H6         count that the first one aside is overtaken; grant
 *
 * It excludes as MCS does: a node has one successor, and the owner alone reads links, moves nodes, and grants to one of them, or swaps the
 * tail away from its own node to free the lock.
 *
 * No waiter is lost: all that wait are aside or behind the owner, in two chains without a node in common. H5 does not touch the last node,
 * which a newcomer is about to link to: the next one's link must be known. Where H3 makes the last one aside the tail, that node's link is
 * 0, and a newcomer writes it.
 *
 * Both chains, the second one first, are in the order of arrival. So a vCPU is overtaken while it is aside, and each time the first one
 * aside counts. That one arrived no later, and counts to MOST in all. So a vCPU with q vCPUs before it in the queue is overtaken
 * (q + 1) * MOST times at most.
 *
 * It shows how much of a strict queue's loss is that of preempted waiters. A preempted holder still stops it, and so does a waiter that is
 * preempted after it was granted the lock.
 */
#include "slots.h"

#define MOST 64  /* how often the first one aside is overtaken, at most, in one wait */
#define SCAN 256 /* most nodes that one release puts aside */

struct node {
    slot_code next; /* written by the successor, and by owners when it is known */
    hk_u32 locked;
    slot_code last; /* only owners use this field, and the next */
    hk_u32 passed;
} __attribute__((aligned(64)));

struct per_cpu {
    hk_u32 in_use;
    struct node node[SLOTS];
};

struct cna {
    slot_code tail;
};

HK_LOCK_WITH_TOKEN(struct cna, slot_code);
HK_PERCPU(struct per_cpu);

static inline struct node *node_of(slot_code code)
{
    return &hk_percpu(cpu_of(code))->node[slot_of(code)];
}

static __attribute__((noinline, cold)) void wait_behind(slot_code before, slot_code code, struct node *node)
{
    hk_announce(HK_WAITER);
    /* H2. Release: pairs with H3 and H5. */
    __atomic_store_n(&node_of(before)->next, code, __ATOMIC_RELEASE);
    /* Acquire: pairs with `grant`. */
    while (!__atomic_load_n(&node->locked, __ATOMIC_ACQUIRE))
        hk_pause();
}

slot_code hk_pv_lock(struct cna *lock)
{
    /* H1. Relaxed: published by the swap. */
    hk_u32 cpu = hk_cpu();
    slot_code code = code_of(cpu, claim_slot(&hk_percpu(cpu)->in_use));
    struct node *node = node_of(code);
    __atomic_store_n(&node->next, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&node->locked, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&node->passed, 0, __ATOMIC_RELAXED);
    /* Acquire: pairs with H3. Release: publishes the node. */
    slot_code before = __atomic_exchange_n(&lock->tail, code, __ATOMIC_ACQ_REL);
    if (before)
        wait_behind(before, code, node);
    return code;
}

/* Tells a new owner that it is one, and who is first aside. */
static inline void grant(slot_code code, slot_code aside)
{
    /* Release: pairs with H2. */
    __atomic_store_n(&node_of(code)->locked, aside << 1 | 1, __ATOMIC_RELEASE);
}

/* Whether a node may be overtaken once more, and does not run. */
static inline int is_skipped(slot_code code)
{
    return node_of(code)->passed < MOST && hk_is_preempted(cpu_of(code));
}

/* H5: puts waiters aside, from `next` on. Returns who is to be granted the lock; `aside` is who is first aside then. */
static slot_code put_aside(slot_code next, slot_code *aside)
{
    for (hk_u32 looks = 0; looks < SCAN && is_skipped(next); looks++) {
        struct node *node = node_of(next);
        /* Acquire: pairs with the link in H2. */
        slot_code behind = __atomic_load_n(&node->next, __ATOMIC_ACQUIRE);
        if (!behind)
            break;
        hk_count(lock_skipped);
        /* Relaxed, here and below: only owners use what is read and written. */
        __atomic_store_n(&node->next, 0, __ATOMIC_RELAXED);
        if (*aside)
            __atomic_store_n(&node_of(node_of(*aside)->last)->next, next, __ATOMIC_RELAXED);
        else
            *aside = next;
        node_of(*aside)->last = next;
        next = behind;
    }
    return next;
}

/* H3 to H6 */
static void hand_over(struct cna *lock, slot_code code)
{
    struct node *node = node_of(code);
    slot_code aside = __atomic_load_n(&node->locked, __ATOMIC_RELAXED) >> 1;
    /* H3. Acquire, here and below: pairs with the link in H2. */
    slot_code next = __atomic_load_n(&node->next, __ATOMIC_ACQUIRE);
    if (!next) {
        slot_code tail = code, last = aside ? node_of(aside)->last : 0;
        /* Release: pairs with the swap of the tail. */
        if (__atomic_compare_exchange_n(&lock->tail, &tail, last, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
            if (aside)
                grant(aside, 0);
            return;
        }
        while (!(next = __atomic_load_n(&node->next, __ATOMIC_ACQUIRE)))
            hk_pause();
    }
    if (aside && !is_skipped(aside)) {
        /* H4 */
        __atomic_store_n(&node_of(node_of(aside)->last)->next, next, __ATOMIC_RELAXED);
        grant(aside, 0);
        return;
    }
    next = put_aside(next, &aside);
    /* H6 */
    if (aside)
        node_of(aside)->passed++;
    grant(next, aside);
}

void hk_pv_unlock(struct cna *lock, slot_code code)
{
    hand_over(lock, code);
    give_back_slot(&hk_percpu(cpu_of(code))->in_use, slot_of(code));
}
