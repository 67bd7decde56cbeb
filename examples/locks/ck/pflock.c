/* Concurrency Kit's phase-fair lock (Brandenburg and Anderson): writers and readers alternate, and writers come in order.
 * It needs nothing but its four words. */
#include "ck.h"

#include <ck_pflock.h>

HK_LOCK(ck_pflock_t);

void hk_lock(ck_pflock_t *lock)
{
    ck_pflock_write_lock(lock);
}

void hk_unlock(ck_pflock_t *lock)
{
    ck_pflock_write_unlock(lock);
}

void hk_read_lock(ck_pflock_t *lock)
{
    ck_pflock_read_lock(lock);
}

void hk_read_unlock(ck_pflock_t *lock)
{
    ck_pflock_read_unlock(lock);
}
