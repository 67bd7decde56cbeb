/* Futex mutex that spins for a fixed number of looks before it sleeps, as the standard library of Rust does. */
#include "futex.h"

#define SPINS 100

static int spin(struct futex *lock)
{
    for (int i = 0; i < SPINS; i++) {
        hk_u32 seen = __atomic_load_n(&lock->word, __ATOMIC_RELAXED);
        if (seen == 0 && futex_try(lock))
            return 1;
        /* Somebody sleeps already: no better than it. */
        if (seen == 2)
            return 0;
        hk_pause();
    }
    return 0;
}

static __attribute__((noinline, cold)) void lock_slow(struct futex *lock)
{
    hk_announce(HK_WAITER);
    if (!spin(lock))
        futex_sleep(lock);
}

void hk_pv_lock(struct futex *lock)
{
    if (!futex_try(lock))
        lock_slow(lock);
}

void hk_pv_unlock(struct futex *lock)
{
    futex_unlock(lock);
}
