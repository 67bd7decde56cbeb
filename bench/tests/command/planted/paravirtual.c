/* A paravirtual queue lock. Each define is a fault of its own; without one the lock is sound. */
#include "haltkick.h"

enum { FREE = 0, LOCKED = 1, SLOW = 3 };
enum { RUNNING = 0, HALTED = 1 };
#define DEPTH 4
#define ENTRIES 2048

struct lock {
    hk_u8 word;
    struct node *tail;
};

struct node {
    struct node *next;
    hk_u32 cpu;
    hk_u8 first; /* 1: it is first in the queue */
    hk_u8 state;
    hk_u8 in_use;
} __attribute__((aligned(64)));

struct nodes {
    struct node node[DEPTH];
};

/* Who waits first in line for which lock, asleep. */
struct entry {
    struct lock *lock;
    struct node *node;
};

HK_LOCK(struct lock);
HK_PERCPU(struct nodes);
static struct entry table[ENTRIES];

static struct entry *slot_of(struct lock *lock, hk_u32 step)
{
    return &table[(((hk_u64)lock >> 6) + step) % ENTRIES];
}

static struct entry *enter(struct lock *lock, struct node *node)
{
    for (hk_u32 step = 0;; step++) {
        struct entry *slot = slot_of(lock, step);
        struct lock *nothing = 0;
        if (__atomic_compare_exchange_n(&slot->lock, &nothing, lock, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {
            __atomic_store_n(&slot->node, node, __ATOMIC_RELEASE);
            return slot;
        }
    }
}

/* The node that is entered for the lock, which is taken out. */
static struct node *leave(struct lock *lock)
{
    for (hk_u32 step = 0; step < ENTRIES; step++) {
        struct entry *slot = slot_of(lock, step);
        if (__atomic_load_n(&slot->lock, __ATOMIC_ACQUIRE) == lock) {
            struct node *node = __atomic_load_n(&slot->node, __ATOMIC_ACQUIRE);
            __atomic_store_n(&slot->lock, 0, __ATOMIC_RELEASE);
            return node;
        }
    }
    return 0;
}

static int spins(hk_u64 since)
{
    hk_pause();
    return hk_now() - since < hk_spin_threshold();
}

/* Waits to be the first. */
static void queue(struct node *node)
{
    hk_announce(HK_WAITER);
    for (hk_u64 since = hk_now();; since = hk_now()) {
        do {
            if (__atomic_load_n(&node->first, __ATOMIC_ACQUIRE))
                return;
        } while (spins(since));
#ifdef NO_BARRIER
        __atomic_store_n(&node->state, HALTED, __ATOMIC_RELEASE);
#else
        __atomic_exchange_n(&node->state, HALTED, __ATOMIC_SEQ_CST);
#endif
        if (!__atomic_load_n(&node->first, __ATOMIC_ACQUIRE))
            hk_wait(&node->state, HALTED);
        __atomic_store_n(&node->state, RUNNING, __ATOMIC_RELAXED);
    }
}

static int try(struct lock *lock)
{
    hk_u8 free = FREE;
    return __atomic_compare_exchange_n(&lock->word, &free, LOCKED, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

/* Waits as the first for the lock. */
static void head(struct lock *lock, struct node *node)
{
    hk_announce(HK_HEAD);
    for (hk_u64 since = hk_now();; since = hk_now()) {
        do {
            if (try(lock))
                return;
        } while (spins(since));
        __atomic_store_n(&node->state, HALTED, __ATOMIC_RELAXED);
#ifdef SLOW_FIRST
        hk_u8 before = __atomic_exchange_n(&lock->word, SLOW, __ATOMIC_SEQ_CST);
        if (before != FREE)
            enter(lock, node);
#else
        struct entry *slot = enter(lock, node);
        hk_u8 before = __atomic_exchange_n(&lock->word, SLOW, __ATOMIC_SEQ_CST);
        if (before == FREE)
            __atomic_store_n(&slot->lock, 0, __ATOMIC_RELEASE);
#endif
        if (before == FREE) {
            __atomic_store_n(&lock->word, LOCKED, __ATOMIC_RELEASE);
            return;
        }
#ifndef NEVER_SLEEP /* and enter itself once more */
        while (__atomic_load_n(&node->state, __ATOMIC_ACQUIRE) == HALTED)
            hk_wait(&node->state, HALTED);
#endif
    }
}

static void wake_the_next(struct node *next)
{
    __atomic_store_n(&next->first, 1, __ATOMIC_RELEASE);
    hk_u8 halted = HALTED;
    if (!__atomic_compare_exchange_n(&next->state, &halted, RUNNING, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
        return;
#ifdef DROP_KICKS
    static hk_u32 kicks;
    if (__atomic_fetch_add(&kicks, 1, __ATOMIC_RELAXED) % 2)
        return;
#endif
    hk_kick(next->cpu);
}

void hk_pv_lock(struct lock *lock)
{
    if (try(lock))
        return;
    struct node *node = hk_percpu(hk_cpu())->node;
    while (node->in_use)
        node++;
    node->in_use = 1;
    node->cpu = hk_cpu();
    node->first = 0;
    node->state = RUNNING;
    node->next = 0;
    struct node *before = __atomic_exchange_n(&lock->tail, node, __ATOMIC_ACQ_REL);
    if (before) {
        __atomic_store_n(&before->next, node, __ATOMIC_RELEASE);
        queue(node);
    }
    head(lock, node);
    struct node *alone = node;
    if (!__atomic_compare_exchange_n(&lock->tail, &alone, 0, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
        struct node *next;
        while (!(next = __atomic_load_n(&node->next, __ATOMIC_ACQUIRE)))
            hk_pause();
        wake_the_next(next);
    }
    node->in_use = 0;
}

void hk_pv_unlock(struct lock *lock)
{
    hk_u8 locked = LOCKED;
    if (__atomic_compare_exchange_n(&lock->word, &locked, FREE, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
        return;
    struct node *node = leave(lock);
    __atomic_store_n(&lock->word, FREE, __ATOMIC_SEQ_CST);
    if (!node)
        return;
    hk_u32 cpu = node->cpu;
    __atomic_store_n(&node->state, RUNNING, __ATOMIC_SEQ_CST);
    hk_kick(cpu);
}
