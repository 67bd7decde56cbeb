/* Test and test-and-set with exponential backoff: unfair, and with less traffic for a busy lock. */
#include "haltkick.h"

struct tas {
    hk_u8 held;
};

HK_LOCK(struct tas);

#define LONGEST 256 /* rounds between two looks */

static __attribute__((noinline, cold)) void back_off(struct tas *lock)
{
    hk_u32 rounds = 1;
    do {
        for (hk_u32 i = 0; i < rounds; i++)
            hk_pause();
        if (rounds < LONGEST)
            rounds *= 2;
        /* Look before trying: a look shares the line, a try takes it away. */
    } while (__atomic_load_n(&lock->held, __ATOMIC_RELAXED) || __atomic_exchange_n(&lock->held, 1, __ATOMIC_ACQUIRE));
}

void hk_lock(struct tas *lock)
{
    if (__atomic_exchange_n(&lock->held, 1, __ATOMIC_ACQUIRE))
        back_off(lock);
}

int hk_try_lock(struct tas *lock)
{
    return !__atomic_exchange_n(&lock->held, 1, __ATOMIC_ACQUIRE);
}

void hk_unlock(struct tas *lock)
{
    __atomic_store_n(&lock->held, 0, __ATOMIC_RELEASE);
}
