/* The half of a mutex that sleeps (Drepper, "Futexes Are Tricky", mutex 2): 0 free, 1 held, 2 held and somebody may sleep.
 *
 * A kernel finds those who sleep on a word in a hash table. Here a bit per vCPU beside the word says who does. How long to spin
 * before sleeping is the includer's to say. */
#include "haltkick.h"

#define FUTEX_WORDS (HK_CPUS_MOST / 64)

struct futex {
    hk_u32 word;
    hk_u32 note; /* what the way to spin keeps for itself */
    hk_u64 asleep[FUTEX_WORDS];
};

HK_LOCK(struct futex);

/* Takes the lock if it is free. */
static inline int futex_try(struct futex *lock)
{
    hk_u32 free = 0;
    return __atomic_compare_exchange_n(&lock->word, &free, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

/* Sleeps until it has taken the lock. */
static inline void futex_sleep(struct futex *lock)
{
    hk_u32 cpu = hk_cpu();
    hk_u64 *mine = &lock->asleep[cpu / 64], bit = 1ull << cpu % 64;
    for (;;) {
        /* The bit before the word: whoever releases changes the word first and looks at the bits afterwards. So either
         * this one finds the lock free, or that one finds the bit. */
        __atomic_fetch_or(mine, bit, __ATOMIC_SEQ_CST);
        /* Whoever has slept cannot know that nobody else sleeps: it leaves a 2. */
        if (__atomic_exchange_n(&lock->word, 2, __ATOMIC_SEQ_CST) == 0)
            break;
        hk_count(futex_wait);
        hk_wait_u32(&lock->word, 2);
    }
    __atomic_fetch_and(mine, ~bit, __ATOMIC_RELAXED);
}

/* Wakes one of those who sleep. Whoever takes its bit away kicks it, so that none is kicked twice for one sleep. */
static __attribute__((noinline, cold)) void futex_wake(struct futex *lock)
{
    hk_u32 words = (hk_cpus() + 63) / 64;
    for (hk_u32 i = 0; i < words; i++) {
        hk_u64 asleep = __atomic_load_n(&lock->asleep[i], __ATOMIC_SEQ_CST);
        while (asleep) {
            hk_u64 bit = asleep & -asleep;
            if (__atomic_fetch_and(&lock->asleep[i], ~bit, __ATOMIC_SEQ_CST) & bit) {
                hk_count(futex_wake);
                hk_kick(i * 64 + (hk_u32)__builtin_ctzll(bit));
                return;
            }
            asleep &= asleep - 1;
        }
    }
}

int hk_pv_try_lock(struct futex *lock)
{
    return futex_try(lock);
}

static inline void futex_unlock(struct futex *lock)
{
    if (__atomic_exchange_n(&lock->word, 0, __ATOMIC_SEQ_CST) == 2)
        futex_wake(lock);
}
