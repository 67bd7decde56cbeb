/* The CLH queue. KEEP_NODE is a fault; without it the lock is sound. */
#include "haltkick.h"

struct node {
    hk_u32 held;
    hk_u32 in_use;
} __attribute__((aligned(64)));

struct lock {
    struct node *tail;
    struct node first;
};

struct token {
    struct node *mine, *before;
};

/* Each vCPU has nodes to give away; it takes over that of its predecessor. */
struct nodes {
    struct node *free[4];
    hk_u64 count, is_set_up;
    struct node own[4];
};

HK_LOCK_WITH_TOKEN(struct lock, struct token);
HK_PERCPU(struct nodes);

void hk_init(struct lock *lock)
{
    lock->tail = &lock->first;
}

struct token hk_lock(struct lock *lock)
{
    struct nodes *nodes = hk_percpu(hk_cpu());
    if (!nodes->is_set_up) {
        nodes->is_set_up = 1;
        for (int i = 0; i < 4; i++)
            nodes->free[nodes->count++] = &nodes->own[i];
    }
    struct node *mine = nodes->free[--nodes->count];
    mine->held = 1;
    struct node *before = __atomic_exchange_n(&lock->tail, mine, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&before->held, __ATOMIC_ACQUIRE))
        hk_pause();
    struct token token = { mine, before };
    return token;
}

void hk_unlock(struct lock *lock, struct token token)
{
    struct nodes *nodes = hk_percpu(hk_cpu());
    __atomic_store_n(&token.mine->held, 0, __ATOMIC_RELEASE);
#ifdef KEEP_NODE
    nodes->free[nodes->count++] = token.mine;
#else
    nodes->free[nodes->count++] = token.before;
#endif
}
