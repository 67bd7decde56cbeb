/* Adaptive mutex by the owner's state: spins as long as whoever holds the lock is on a pCPU, and sleeps when it is not. A kernel
 * asks whether the owner's task runs; a guest asks its host, who writes what vcpu_is_preempted reads. */
#include "futex.h"

/* `note` is the number of the owner's vCPU, plus 1; 0 while nobody has written it. It is a hint, late and early. */

#define LOOKS 64 /* between two questions about the owner */

static int spin(struct futex *lock)
{
    for (;;) {
        for (int i = 0; i < LOOKS; i++) {
            if (__atomic_load_n(&lock->word, __ATOMIC_RELAXED) == 0 && futex_try(lock))
                return 1;
            hk_pause();
        }
        hk_u32 owner = __atomic_load_n(&lock->note, __ATOMIC_RELAXED);
        if (owner != 0 && hk_is_preempted(owner - 1)) {
            hk_count(owner_preempted);
            return 0;
        }
    }
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
    __atomic_store_n(&lock->note, hk_cpu() + 1, __ATOMIC_RELAXED);
}

void hk_pv_unlock(struct futex *lock)
{
    __atomic_store_n(&lock->note, 0, __ATOMIC_RELAXED);
    futex_unlock(lock);
}
