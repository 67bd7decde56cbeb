/* Concurrency Kit's CLH lock: a queue in which every waiter spins on the node of its predecessor, and keeps that node afterwards.
 * It needs a node per lock, and one for each lock that a vCPU holds or waits for: eight per vCPU here. */
#include "ck.h"

#include <ck_spinlock.h>

#define DEPTH 8

struct node {
    ck_spinlock_clh_t context;
} __attribute__((aligned(128)));

struct nodes {
    struct node own[DEPTH];
    ck_spinlock_clh_t *spare[DEPTH]; /* nodes of any vCPU or lock, which this vCPU may use */
    hk_u32 spares;
    hk_u32 taken; /* number of its own nodes that it has brought into play */
};

struct clh {
    ck_spinlock_clh_t *queue;
    struct node first;
};

HK_LOCK_WITH_TOKEN(struct clh, ck_spinlock_clh_t *);
HK_PERCPU(struct nodes);

void hk_init(struct clh *lock)
{
    ck_spinlock_clh_init(&lock->queue, &lock->first.context);
}

ck_spinlock_clh_t *hk_lock(struct clh *lock)
{
    struct nodes *mine = hk_percpu(hk_cpu());
    ck_spinlock_clh_t *node = mine->spares ? mine->spare[--mine->spares] : &mine->own[mine->taken++].context;
    ck_spinlock_clh_lock(&lock->queue, node);
    return node;
}

void hk_unlock(struct clh *lock, ck_spinlock_clh_t *node)
{
    struct nodes *mine = hk_percpu(hk_cpu());
    (void)lock;
    ck_spinlock_clh_unlock(&node); /* node is now that of the predecessor */
    mine->spare[mine->spares++] = node;
}
