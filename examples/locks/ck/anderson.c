/* Concurrency Kit's array lock (Anderson): every waiter spins on a slot of its own; eight slots share a cache line.
 * It needs as many slots as vCPUs; with a power of two it draws them by fetch-and-add instead of compare-and-swap. */
#include "ck.h"

#include <ck_spinlock.h>

HK_LOCK_WITH_TOKEN(ck_spinlock_anderson_t, ck_spinlock_anderson_thread_t *);

void hk_init(ck_spinlock_anderson_t *lock)
{
    hk_u32 slots = 1;
    while (slots < hk_cpus())
        slots *= 2;
    ck_spinlock_anderson_init(lock, hk_alloc(slots * sizeof(ck_spinlock_anderson_thread_t), 128), slots);
}

ck_spinlock_anderson_thread_t *hk_lock(ck_spinlock_anderson_t *lock)
{
    ck_spinlock_anderson_thread_t *slot;
    ck_spinlock_anderson_lock(lock, &slot);
    return slot;
}

void hk_unlock(ck_spinlock_anderson_t *lock, ck_spinlock_anderson_thread_t *slot)
{
    ck_spinlock_anderson_unlock(lock, slot);
}
