/* queue whose waiters publish the time; a release skips those that do not run
 *
 * Time-published MCS lock (He, Scherer and Scott, HiPC 2005).
 *
 *     tail ------------------------------+     a node: next    who is behind, 0 if no vCPU is known
 *     holder, since                      v             status  WAITING, GRANTED or REMOVED
 *     [owner] --next--> [waiter] --next--> [last]      stamp   when its vCPU last looked
 *
 * Waiters write the time to their nodes as they spin. A stale stamp shows that a vCPU does not run, without any help of the host. A
 * waiter that sees a long section yields to its holder, the one vCPU that it knows to be in everyone's way.
 *
 *     A1 lock    claim a node; WAITING, stamp := now; swap it into the tail; no node before: has the lock
 *     A2 wait    link behind p; spin until the status is not WAITING; stamp := now every few rounds
 *     A3         the section is long: stamp := 0, yield to the holder, stamp := now
 *     A4         REMOVED: A1 with the same node. GRANTED: has the lock
 *
 *     Z1 unlock  c := own node
 *     Z2         no node behind c: tail := 0 if c is the last, else find x, the next one
 *     Z3         give c up: own node free, any other REMOVED
 *     Z4         x is stale, and fewer than SCAN have been removed: c := x, Z2
 *     Z5         holder := x, since := now; x GRANTED
 *
 * It excludes: the tail is exchanged, so each node has one successor, and one vCPU at a time is in Z1 to Z5: it has the lock. It gives the
 * lock to the node that it grants, or to the tail of which it has taken the last node away. A waiter writes its own status only before A1.
 *
 * A node may be used again: Z2 reads the link of a node before it gives it up, and does not touch it afterwards. Its vCPU uses it again when
 * it has seen REMOVED. A waiter never leaves by itself. So Z3 may store where the lock of the paper, whose waiters time out, has to
 * exchange. The stamp is 0, which is stale, while its vCPU yields: else a release would give the lock to a vCPU that has just given its
 * slice away. Z5 names the next holder before that one runs, or waiters would yield to the last one.
 *
 * Waiters that are never found stale are served in order. One that is found stale goes to the end, each time: it has no bound.
 */
#include "slots.h"

#define SCAN 256     /* most nodes that one release removes */
#define STAMP_EVERY 8 /* rounds of spinning between two stamps */
#define LOOK_EVERY 64 /* rounds of spinning between two looks at how long the section lasts */

enum { WAITING = 0, GRANTED = 1, REMOVED = 2 };

struct node {
    slot_code next; /* written by the successor */
    hk_u32 status;  /* written by the vCPU that releases the lock */
    hk_u64 stamp;   /* in ticks; 0: it has given its slice away */
} __attribute__((aligned(64)));

struct per_cpu {
    hk_u32 in_use;
    struct node node[SLOTS];
};

struct mcs_tp {
    slot_code tail;
    hk_u32 holder; /* the vCPU that has the lock, and when it got it: hints */
    hk_u64 since;
};

HK_LOCK_WITH_TOKEN(struct mcs_tp, slot_code);
HK_PERCPU(struct per_cpu);

static inline struct node *node_of(slot_code code)
{
    return &hk_percpu(cpu_of(code))->node[slot_of(code)];
}

/* Whether `then` is `ticks` ago, or 0. Clocks of two vCPUs may differ: what is in the future is not. */
static int is_ago(hk_u64 then, hk_u64 ticks)
{
    hk_u64 now = hk_now();
    return then == 0 || (now >= then && now - then >= ticks);
}

/* Relaxed: hints. */
static inline void name_holder(struct mcs_tp *lock, hk_u32 cpu)
{
    __atomic_store_n(&lock->holder, cpu, __ATOMIC_RELAXED);
    __atomic_store_n(&lock->since, hk_now(), __ATOMIC_RELAXED);
}

/* A2 to A4: whether it was granted the lock. */
static __attribute__((noinline, cold)) int wait_behind(struct mcs_tp *lock, slot_code before, slot_code code, struct node *node)
{
    hk_announce(HK_WAITER);
    /* Release: pairs with Z2. */
    __atomic_store_n(&node_of(before)->next, code, __ATOMIC_RELEASE);
    for (hk_u32 round = 1;; round++) {
        /* Acquire: pairs with Z3 and Z5. */
        hk_u32 status = __atomic_load_n(&node->status, __ATOMIC_ACQUIRE);
        if (status != WAITING)
            return status == GRANTED;
        hk_pause();
        if (round % STAMP_EVERY == 0)
            __atomic_store_n(&node->stamp, hk_now(), __ATOMIC_RELAXED);
        /* Half as long as what makes a waiter stale: who yields at once is back before that. */
        if (round % LOOK_EVERY == 0 && is_ago(__atomic_load_n(&lock->since, __ATOMIC_RELAXED), hk_spin_threshold() / 2)) {
            /* A3 */
            hk_count(lock_yielded);
            __atomic_store_n(&node->stamp, 0, __ATOMIC_RELAXED);
            hk_yield_to(__atomic_load_n(&lock->holder, __ATOMIC_RELAXED));
            __atomic_store_n(&node->stamp, hk_now(), __ATOMIC_RELAXED);
        }
    }
}

slot_code hk_pv_lock(struct mcs_tp *lock)
{
    hk_u32 cpu = hk_cpu(), slot = claim_slot(&hk_percpu(cpu)->in_use);
    slot_code code = code_of(cpu, slot);
    struct node *node = node_of(code);
    for (;;) {
        /* A1. Relaxed: published by the swap. */
        __atomic_store_n(&node->next, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&node->status, WAITING, __ATOMIC_RELAXED);
        __atomic_store_n(&node->stamp, hk_now(), __ATOMIC_RELAXED);
        /* Acquire: pairs with Z2. Release: publishes the node. */
        slot_code before = __atomic_exchange_n(&lock->tail, code, __ATOMIC_ACQ_REL);
        if (!before) {
            name_holder(lock, cpu);
            return code;
        }
        if (wait_behind(lock, before, code, node))
            return code;
    }
}

/* Z2: the node behind `code`; 0 if there is none, and the lock is free now. */
static slot_code next_or_free(struct mcs_tp *lock, slot_code code)
{
    struct node *node = node_of(code);
    /* Acquire, here and below: pairs with the link in A2. */
    slot_code next = __atomic_load_n(&node->next, __ATOMIC_ACQUIRE), last = code;
    /* Release: pairs with the swap of the tail. */
    if (!next && __atomic_compare_exchange_n(&lock->tail, &last, 0, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
        return 0;
    while (!next) {
        hk_pause();
        next = __atomic_load_n(&node->next, __ATOMIC_ACQUIRE);
    }
    return next;
}

void hk_pv_unlock(struct mcs_tp *lock, slot_code own)
{
    slot_code code = own;
    for (hk_u32 removed = 0;; removed++) {
        /* Z2 comes before Z3: the node is not read afterwards. */
        slot_code next = next_or_free(lock, code);
        /* Z3 */
        if (code == own) {
            give_back_slot(&hk_percpu(cpu_of(own))->in_use, slot_of(own));
        } else {
            hk_count(lock_skipped);
            /* Release: pairs with A2. */
            __atomic_store_n(&node_of(code)->status, REMOVED, __ATOMIC_RELEASE);
        }
        if (!next)
            return;
        /* Z4 */
        hk_u64 stamp = __atomic_load_n(&node_of(next)->stamp, __ATOMIC_RELAXED);
        if (removed == SCAN || !is_ago(stamp, hk_spin_threshold())) {
            name_holder(lock, cpu_of(next));
            /* Z5. Release: pairs with A2. */
            __atomic_store_n(&node_of(next)->status, GRANTED, __ATOMIC_RELEASE);
            return;
        }
        code = next;
    }
}
