/* Mutex whose number of looks before sleeping learns, as the GNU C library documents for PTHREAD_MUTEX_ADAPTIVE_NP: each wait may
 * look twice as often as waits have taken on average, and a bit more; the average moves by an eighth of what it is off. */
#include "futex.h"

#define MOST 1000 /* looks; glibc has 100 and lets users change it */

static __attribute__((noinline, cold)) void lock_slow(struct futex *lock)
{
    /* `note` is the average, written by whoever holds the lock. */
    hk_u32 average = __atomic_load_n(&lock->note, __ATOMIC_RELAXED);
    hk_u32 most = average * 2 + 10 < MOST ? average * 2 + 10 : MOST, looks = 0;

    hk_announce(HK_WAITER);
    for (;;) {
        if (__atomic_load_n(&lock->word, __ATOMIC_RELAXED) == 0 && futex_try(lock))
            break;
        if (++looks >= most) {
            futex_sleep(lock);
            break;
        }
        hk_pause();
    }
    hk_u32 now = __atomic_load_n(&lock->note, __ATOMIC_RELAXED);
    __atomic_store_n(&lock->note, now + (hk_u32)(((int)looks - (int)now) / 8), __ATOMIC_RELAXED);
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
