/* Concurrency Kit's ticket lock: first come, first served, on two counters of 16 bits in one word.
 * It needs fewer than 65,536 vCPUs; HK_CPUS_MOST is far below. */
#include "ck.h"

#include <ck_spinlock.h>

HK_LOCK(ck_spinlock_ticket_t);

void hk_lock(ck_spinlock_ticket_t *lock)
{
    ck_spinlock_ticket_lock(lock);
}

int hk_try_lock(ck_spinlock_ticket_t *lock)
{
    return ck_spinlock_ticket_trylock(lock);
}

void hk_unlock(ck_spinlock_ticket_t *lock)
{
    ck_spinlock_ticket_unlock(lock);
}
