/* Concurrency Kit's MCS lock: a queue in which every waiter spins on its own node.
 * It needs a node for each lock that a vCPU holds or waits for: eight per vCPU here. */
#include "ck.h"

#include <ck_spinlock.h>

#define DEPTH 8

struct nodes {
    struct node {
        ck_spinlock_mcs_context_t context;
        hk_u32 in_use;
    } __attribute__((aligned(128))) node[DEPTH];
};

HK_LOCK_WITH_TOKEN(ck_spinlock_mcs_t, struct node *);
HK_PERCPU(struct nodes);

struct node *hk_lock(ck_spinlock_mcs_t *lock)
{
    struct node *node = hk_percpu(hk_cpu())->node;
    while (node->in_use)
        node++;
    node->in_use = 1;
    ck_spinlock_mcs_lock(lock, &node->context);
    return node;
}

void hk_unlock(ck_spinlock_mcs_t *lock, struct node *node)
{
    ck_spinlock_mcs_unlock(lock, &node->context);
    node->in_use = 0;
}
