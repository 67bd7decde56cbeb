/* test-and-set with a pause, to show that an arm is a file */
#include "haltkick.h"
struct zz { hk_u8 held; };
HK_LOCK(struct zz);
void hk_lock(struct zz *lock)
{
    /* Acquire: pairs with the release in unlock. */
    while (__atomic_exchange_n(&lock->held, 1, __ATOMIC_ACQUIRE))
        hk_pause();
}
void hk_unlock(struct zz *lock)
{
    __atomic_store_n(&lock->held, 0, __ATOMIC_RELEASE);
}
