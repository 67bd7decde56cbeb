/* Array lock (Anderson, IEEE TPDS 1990): every waiter spins on a slot of its own, in memory that the lock takes when it is made. */
#include "haltkick.h"

struct slot {
    hk_u32 may_enter; /* written by the one before, cleared by the one that enters */
} __attribute__((aligned(128)));

struct anderson {
    hk_u32 next; /* number of arrivals */
    hk_u32 at;   /* slot of the holder, written by it */
    hk_u32 mask; /* one less than the number of slots, a power of two */
    struct slot *slots;
};

HK_LOCK(struct anderson);

void hk_init(struct anderson *lock)
{
    /* A vCPU waits for a lock once at a time: there are never more arrivals than slots. */
    hk_u32 slots = 1;
    while (slots < hk_cpus())
        slots *= 2;
    lock->slots = hk_alloc(slots * sizeof(struct slot), sizeof(struct slot));
    lock->slots[0].may_enter = 1;
    lock->mask = slots - 1;
}

static inline void enter(struct anderson *lock, hk_u32 slot)
{
    lock->slots[slot].may_enter = 0;
    lock->at = slot;
}

static __attribute__((noinline, cold)) void wait_for(struct slot *slot)
{
    hk_announce(HK_WAITER);
    hk_point(waiting_in_slot);
    while (!__atomic_load_n(&slot->may_enter, __ATOMIC_ACQUIRE))
        hk_pause();
}

void hk_lock(struct anderson *lock)
{
    hk_u32 slot = __atomic_fetch_add(&lock->next, 1, __ATOMIC_RELAXED) & lock->mask;
    if (!__atomic_load_n(&lock->slots[slot].may_enter, __ATOMIC_ACQUIRE))
        wait_for(&lock->slots[slot]);
    enter(lock, slot);
}

int hk_try_lock(struct anderson *lock)
{
    hk_u32 next = __atomic_load_n(&lock->next, __ATOMIC_RELAXED);
    hk_u32 slot = next & lock->mask;
    if (!__atomic_load_n(&lock->slots[slot].may_enter, __ATOMIC_ACQUIRE))
        return 0;
    /* Only the arrival with this number clears the slot. */
    if (!__atomic_compare_exchange_n(&lock->next, &next, next + 1, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return 0;
    enter(lock, slot);
    return 1;
}

void hk_unlock(struct anderson *lock)
{
    __atomic_store_n(&lock->slots[(lock->at + 1) & lock->mask].may_enter, 1, __ATOMIC_RELEASE);
}
