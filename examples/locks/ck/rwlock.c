/* Concurrency Kit's reader-writer lock: a flag of the writer and a count of the readers.
 * It needs nothing but its two words. */
#include "ck.h"

#include <ck_rwlock.h>

HK_LOCK(ck_rwlock_t);

void hk_lock(ck_rwlock_t *lock)
{
    ck_rwlock_write_lock(lock);
}

int hk_try_lock(ck_rwlock_t *lock)
{
    return ck_rwlock_write_trylock(lock);
}

void hk_unlock(ck_rwlock_t *lock)
{
    ck_rwlock_write_unlock(lock);
}

void hk_read_lock(ck_rwlock_t *lock)
{
    ck_rwlock_read_lock(lock);
}

void hk_read_unlock(ck_rwlock_t *lock)
{
    ck_rwlock_read_unlock(lock);
}
