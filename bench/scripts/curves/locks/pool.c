/* No lock: a pool of threads that idle as a guest does. vCPU 0 hands work to all others in hk_unlock, and waits for them in hk_lock; each
 * other one waits in hk_lock for work. Who waits polls for hk_parameter() rounds, then halts. */
#include "haltkick.h"

struct slot {
    hk_u32 given;
    hk_u32 sleeps;
    hk_u32 present;
} __attribute__((aligned(64)));

struct pool {
    hk_u32 present; /* how many wait for work, or have; until all do, vCPU 0 goes on alone */
    hk_u32 begun;
    hk_u32 left; /* who has work still */
};

HK_LOCK(struct pool);
HK_PERCPU(struct slot);

static void wait_for(struct slot *slot)
{
    for (hk_u32 rounds = hk_parameter(); rounds; rounds--, hk_pause())
        if (__atomic_load_n(&slot->given, __ATOMIC_ACQUIRE))
            return;
    hk_announce(HK_OTHER);
    /* Either this sees what is given, or who gives sees the sleeper. */
    __atomic_store_n(&slot->sleeps, 1, __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&slot->given, __ATOMIC_SEQ_CST)) {
        hk_count(pool_halts);
        hk_wait_u32(&slot->given, 0);
    }
    __atomic_store_n(&slot->sleeps, 0, __ATOMIC_RELAXED);
}

static void give(hk_u32 cpu)
{
    struct slot *slot = hk_percpu(cpu);
    __atomic_store_n(&slot->given, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&slot->sleeps, __ATOMIC_SEQ_CST)) {
        hk_count(pool_kicks);
        hk_kick(cpu);
    }
}

void hk_lock(struct pool *pool)
{
    struct slot *slot = hk_percpu(hk_cpu());
    if (hk_cpu() == 0 && !pool->begun)
        return;
    if (hk_cpu() && !slot->present) {
        slot->present = 1;
        __atomic_fetch_add(&pool->present, 1, __ATOMIC_RELAXED);
    }
    wait_for(slot);
    __atomic_store_n(&slot->given, 0, __ATOMIC_RELAXED);
}

void hk_unlock(struct pool *pool)
{
    if (hk_cpu()) {
        if (__atomic_sub_fetch(&pool->left, 1, __ATOMIC_ACQ_REL) == 0)
            give(0);
        return;
    }
    if (__atomic_load_n(&pool->present, __ATOMIC_RELAXED) < hk_cpus() - 1)
        return;
    pool->begun = 1;
    __atomic_store_n(&pool->left, hk_cpus() - 1, __ATOMIC_RELEASE);
    for (hk_u32 cpu = 1; cpu < hk_cpus(); cpu++)
        give(cpu);
}
