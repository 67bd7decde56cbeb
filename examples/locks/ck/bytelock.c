/* Concurrency Kit's byte lock (Dice and Shavit): a byte for each of 56 readers, and a count of all others.
 * It needs a number other than 0 of each vCPU: with CK_BYTELOCK_UNSLOTTED for several, a reader takes another's write lock for its own. */
#include "ck.h"

#include <ck_bytelock.h>

HK_LOCK(ck_bytelock_t);

void hk_lock(ck_bytelock_t *lock)
{
    ck_bytelock_write_lock(lock, hk_cpu() + 1);
}

void hk_unlock(ck_bytelock_t *lock)
{
    ck_bytelock_write_unlock(lock);
}

void hk_read_lock(ck_bytelock_t *lock)
{
    ck_bytelock_read_lock(lock, hk_cpu() + 1);
}

void hk_read_unlock(ck_bytelock_t *lock)
{
    ck_bytelock_read_unlock(lock, hk_cpu() + 1);
}
