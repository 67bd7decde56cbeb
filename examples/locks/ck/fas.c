/* Concurrency Kit's fetch-and-store lock: a test-and-set lock whose waiters look before they try again.
 * It needs nothing but its word. */
#include "ck.h"

#include <ck_spinlock.h>

HK_LOCK(ck_spinlock_fas_t);

void hk_lock(ck_spinlock_fas_t *lock)
{
    ck_spinlock_fas_lock(lock);
}

int hk_try_lock(ck_spinlock_fas_t *lock)
{
    return ck_spinlock_fas_trylock(lock);
}

void hk_unlock(ck_spinlock_fas_t *lock)
{
    ck_spinlock_fas_unlock(lock);
}
