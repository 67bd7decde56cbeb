/* The paravirtual queue spinlock in short, for one question: when does a waiter sleep that is not the head? hk_parameter(): 1, at once if
 * its predecessor sleeps; 2, also if the host has taken its predecessor off; 0, after --spin-threshold linux alone. */
#include "haltkick.h"

#define SLOW 3 /* locked, and the head sleeps */

enum { RUNNING, HALTED, PUBLISHED };

struct node {
    struct node *next;
    hk_u32 granted;
    hk_u32 cpu;
    hk_u32 behind; /* how many sleepers stood before it in a row when it went to sleep */
    hk_u8 state;
} __attribute__((aligned(64)));

struct pv {
    hk_u8 locked;
    hk_u8 pending; /* the head spins: nobody may steal */
    hk_u32 head;
    struct node *tail;
};

HK_LOCK(struct pv);
HK_PERCPU(struct node);
HK_EVENT(cascade_1);
HK_EVENT(cascade_2);
HK_EVENT(cascade_4);
HK_EVENT(cascade_8);
HK_EVENT(cascade_16);
HK_EVENT(cascade_32);
HK_EVENT(cascade_64);

static int take(struct pv *lock)
{
    hk_u8 free = 0;
    return !__atomic_load_n(&lock->locked, __ATOMIC_RELAXED) &&
           __atomic_compare_exchange_n(&lock->locked, &free, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

/* Enters the queue, unless the lock is free and no head spins. The node before; `self` if the lock was taken. */
static struct node *enqueue(struct pv *lock, struct node *self)
{
    do {
        if (!__atomic_load_n(&lock->pending, __ATOMIC_RELAXED) && take(lock)) {
            hk_count(pv_lock_stealing);
            return self;
        }
        hk_pause();
    } while (__atomic_load_n(&lock->tail, __ATOMIC_RELAXED) && !__atomic_load_n(&lock->pending, __ATOMIC_RELAXED));
    self->next = 0;
    self->granted = 0;
    self->cpu = hk_cpu();
    self->behind = 0;
    self->state = RUNNING;
    return __atomic_exchange_n(&lock->tail, self, __ATOMIC_ACQ_REL);
}

static int does_not_run(struct node *node)
{
    hk_u32 how = hk_parameter();
    return (how && __atomic_load_n(&node->state, __ATOMIC_RELAXED) != RUNNING) || (how == 2 && hk_is_preempted(node->cpu));
}

static void count_cascade(hk_u32 sleepers)
{
    static const char *const slots[] = {hk_event_cascade_1,  hk_event_cascade_2,  hk_event_cascade_4, hk_event_cascade_8,
                                        hk_event_cascade_16, hk_event_cascade_32, hk_event_cascade_64};
    hk_u32 slot = 31 - (hk_u32)__builtin_clz(sleepers);
    hk_count_event((hk_u32)(hk_u64)slots[slot < 6 ? slot : 6], 1);
}

/* Sleeps until this node is the head. Stores and loads of `state` and `granted` are ordered here and in make_head: either this sees the
 * grant, or that sees the sleeper. */
static void wait_in_queue(struct node *node, struct node *before)
{
    while (!__atomic_load_n(&node->granted, __ATOMIC_ACQUIRE)) {
        hk_u32 left = hk_spin_rounds();
        for (; left && !__atomic_load_n(&node->granted, __ATOMIC_ACQUIRE); left--) {
            if (left % 256 == 0 && does_not_run(before))
                break;
            hk_pause();
        }
        hk_u8 halted = HALTED;
        __atomic_store_n(&node->state, HALTED, __ATOMIC_SEQ_CST);
        if (!__atomic_load_n(&node->granted, __ATOMIC_SEQ_CST)) {
            hk_count(pv_wait_node);
            if (left) {
                hk_count(pv_wait_early);
                node->behind = __atomic_load_n(&before->state, __ATOMIC_RELAXED) == HALTED ? before->behind + 1 : 1;
                count_cascade(node->behind);
            }
            hk_wait(&node->state, HALTED);
        }
        __atomic_compare_exchange_n(&node->state, &halted, RUNNING, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
    }
}

static void wait_as_head(struct pv *lock, struct node *node)
{
    for (;;) {
        __atomic_store_n(&node->state, RUNNING, __ATOMIC_RELAXED);
        __atomic_store_n(&lock->pending, 1, __ATOMIC_RELAXED);
        for (hk_u32 left = hk_spin_rounds(); left; left--) {
            if (take(lock)) {
                __atomic_store_n(&lock->pending, 0, __ATOMIC_RELAXED);
                return;
            }
            hk_pause();
        }
        __atomic_store_n(&lock->pending, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&lock->head, node->cpu, __ATOMIC_RELAXED);
        if (!__atomic_exchange_n(&lock->locked, SLOW, __ATOMIC_ACQ_REL)) {
            __atomic_store_n(&lock->locked, 1, __ATOMIC_RELAXED);
            return;
        }
        __atomic_store_n(&node->state, PUBLISHED, __ATOMIC_RELAXED);
        hk_count(pv_wait_head);
        hk_wait(&lock->locked, SLOW);
    }
}

/* The next node becomes head; if it sleeps, the release wakes it. */
static void make_head(struct pv *lock, struct node *next)
{
    hk_u8 halted = HALTED;
    __atomic_store_n(&next->granted, 1, __ATOMIC_SEQ_CST);
    if (__atomic_compare_exchange_n(&next->state, &halted, PUBLISHED, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {
        __atomic_store_n(&lock->head, next->cpu, __ATOMIC_RELAXED);
        __atomic_store_n(&lock->locked, SLOW, __ATOMIC_RELEASE);
    }
}

void hk_pv_lock(struct pv *lock)
{
    if (!__atomic_load_n(&lock->tail, __ATOMIC_RELAXED) && take(lock))
        return;
    struct node *node = hk_percpu(hk_cpu()), *before = enqueue(lock, node), *last = node;
    if (before == node)
        return;
    hk_announce(HK_WAITER);
    if (before) {
        __atomic_store_n(&before->next, node, __ATOMIC_RELEASE);
        wait_in_queue(node, before);
    }
    hk_announce(HK_HEAD);
    wait_as_head(lock, node);
    struct node *next = __atomic_load_n(&node->next, __ATOMIC_ACQUIRE);
    if (!next && __atomic_compare_exchange_n(&lock->tail, &last, 0, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
        return;
    while (!next) {
        hk_pause();
        next = __atomic_load_n(&node->next, __ATOMIC_ACQUIRE);
    }
    make_head(lock, next);
}

void hk_pv_unlock(struct pv *lock)
{
    hk_u8 locked = 1;
    if (__atomic_compare_exchange_n(&lock->locked, &locked, 0, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
        return;
    hk_u32 head = __atomic_load_n(&lock->head, __ATOMIC_RELAXED);
    hk_announce(HK_OTHER);
    __atomic_store_n(&lock->locked, 0, __ATOMIC_RELEASE);
    hk_kick(head);
}
