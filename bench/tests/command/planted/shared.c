/* A lock that readers share, with every function that an object can have but hk_init. SKIP_LAST and NO_LAST_LOOK are faults; without them the lock is sound. */
#include "haltkick.h"

#define WRITER 0x80000000u /* a writer is inside, or waits for the readers to leave */
#define SPINS 50
#define WORDS (HK_CPUS_MOST / 64)

struct lock {
    hk_u32 word; /* the number of readers, and WRITER */
    hk_u32 turn; /* counts what sleepers wait for */
    hk_u64 asleep[WORDS];
};
HK_LOCK(struct lock);

/* Waits until none of the bits is set. */
static inline void wait_for(struct lock *lock, hk_u32 bits, int pv)
{
    hk_announce(HK_WAITER);
    for (hk_u32 spins = 0; __atomic_load_n(&lock->word, __ATOMIC_ACQUIRE) & bits; spins++) {
        hk_pause();
        if (!pv || spins < SPINS)
            continue;
        hk_u64 *word = &lock->asleep[hk_cpu() / 64], bit = 1ull << hk_cpu() % 64;
        hk_u32 turn = __atomic_load_n(&lock->turn, __ATOMIC_ACQUIRE);
        /* The bit before the looks: whoever changes the word counts the turn and looks at the bits afterwards. */
        __atomic_fetch_or(word, bit, __ATOMIC_SEQ_CST);
#ifndef NO_LAST_LOOK
        if (__atomic_load_n(&lock->word, __ATOMIC_SEQ_CST) & bits)
#endif
            hk_wait_u32(&lock->turn, turn);
        __atomic_fetch_and(word, ~bit, __ATOMIC_RELAXED);
    }
}

/* Wakes all who sleep. */
static void wake(struct lock *lock)
{
    __atomic_fetch_add(&lock->turn, 1, __ATOMIC_SEQ_CST);
    for (hk_u32 i = 0; i < (hk_cpus() + 63) / 64; i++) {
        hk_u64 asleep = __atomic_load_n(&lock->asleep[i], __ATOMIC_SEQ_CST);
        for (; asleep; asleep &= asleep - 1)
            hk_kick(i * 64 + (hk_u32)__builtin_ctzll(asleep));
    }
}

static inline void write_lock(struct lock *lock, int pv)
{
    while (__atomic_fetch_or(&lock->word, WRITER, __ATOMIC_ACQUIRE) & WRITER)
        wait_for(lock, WRITER, pv);
    if (__atomic_load_n(&lock->word, __ATOMIC_ACQUIRE) & ~WRITER)
        wait_for(lock, ~WRITER, pv);
}

static inline int try(struct lock *lock)
{
    hk_u32 free = 0;
    return __atomic_compare_exchange_n(&lock->word, &free, WRITER, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

static inline void read_lock(struct lock *lock, int pv)
{
    hk_u32 seen = __atomic_load_n(&lock->word, __ATOMIC_RELAXED);
    for (;;) {
        if (seen & WRITER) {
            wait_for(lock, WRITER, pv);
            seen = __atomic_load_n(&lock->word, __ATOMIC_RELAXED);
        } else if (__atomic_compare_exchange_n(&lock->word, &seen, seen + 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
            return;
        }
    }
}

void hk_lock(struct lock *lock)
{
    write_lock(lock, 0);
}

void hk_unlock(struct lock *lock)
{
    __atomic_store_n(&lock->word, 0, __ATOMIC_RELEASE);
}

int hk_try_lock(struct lock *lock)
{
    return try(lock);
}

void hk_read_lock(struct lock *lock)
{
    read_lock(lock, 0);
}

void hk_read_unlock(struct lock *lock)
{
    __atomic_fetch_sub(&lock->word, 1, __ATOMIC_RELEASE);
}

void hk_pv_lock(struct lock *lock)
{
    write_lock(lock, 1);
}

void hk_pv_unlock(struct lock *lock)
{
    __atomic_store_n(&lock->word, 0, __ATOMIC_SEQ_CST);
    wake(lock);
}

int hk_pv_try_lock(struct lock *lock)
{
    return try(lock);
}

void hk_pv_read_lock(struct lock *lock)
{
    read_lock(lock, 1);
}

void hk_pv_read_unlock(struct lock *lock)
{
#ifdef SKIP_LAST
    /* A writer that sleeps until the last reader leaves is forgotten. */
    __atomic_fetch_sub(&lock->word, 1, __ATOMIC_SEQ_CST);
#else
    if (__atomic_fetch_sub(&lock->word, 1, __ATOMIC_SEQ_CST) == (WRITER | 1))
        wake(lock);
#endif
}
