/* Locks of one word. One define chooses the lock, a further one a fault of it. */
#include "haltkick.h"

#ifdef TICKET
#ifdef TICKETS_OF_A_BYTE
typedef hk_u8 number;
#else
typedef hk_u32 number;
#endif
struct lock {
    number next, owner;
};
HK_LOCK(struct lock);

void hk_lock(struct lock *lock)
{
#ifdef NEVER_LOAD
    number owner;
    __asm__ volatile("" : "=a"(owner)); /* whatever stands in the register */
#endif
    number mine = __atomic_fetch_add(&lock->next, 1, __ATOMIC_RELAXED);
#ifdef NEVER_LOAD
    if (owner == mine)
        return;
#endif
    while (__atomic_load_n(&lock->owner, __ATOMIC_ACQUIRE) != mine) {
        hk_pause();
#ifdef NEVER_TEST
        int is_next;
        __asm__ volatile("call hk_waits" /* and whatever the flags say */
                         : "=@ccz"(is_next) : : "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "memory");
        if (is_next)
            return;
#endif
#ifdef TAKE_A_RESULT
        hk_u64 result;
        __asm__ volatile("call hk_waits" /* which returns nothing */
                         : "=a"(result) : : "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "cc", "memory");
        if (result == 1)
            return;
#endif
#ifdef WAIT_FOR_RUBBISH
        int left;
        do
            __asm__ volatile("call hk_waits" /* which returns nothing: by and by nothing that is negative */
                             : "=a"(left) : : "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "cc", "memory");
        while (left < 0);
#endif
    }
}

void hk_unlock(struct lock *lock)
{
    __atomic_store_n(&lock->owner, (number)(lock->owner + 1), __ATOMIC_RELEASE);
}
#endif

#ifdef PENDING
/* A lock with a bit for the vCPU that is next. */
enum { LOCKED = 1, NEXT = 2 };
struct lock {
    hk_u32 word;
};
HK_LOCK(struct lock);

void hk_lock(struct lock *lock)
{
    for (;;) {
        hk_u32 seen = __atomic_load_n(&lock->word, __ATOMIC_RELAXED);
        if (seen == 0) {
            if (__atomic_compare_exchange_n(&lock->word, &seen, LOCKED, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
                return;
        } else if (seen == LOCKED) {
            if (__atomic_compare_exchange_n(&lock->word, &seen, LOCKED | NEXT, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
                break;
        }
        hk_pause();
    }
    while (__atomic_load_n(&lock->word, __ATOMIC_ACQUIRE) & LOCKED)
        hk_pause();
    __atomic_store_n(&lock->word, LOCKED, __ATOMIC_RELEASE);
}

void hk_unlock(struct lock *lock)
{
#ifdef WIPE_NEXT
    /* The bit of a vCPU that set it in between is lost. */
    hk_u32 seen = __atomic_load_n(&lock->word, __ATOMIC_RELAXED);
    __atomic_store_n(&lock->word, seen & ~(hk_u32)LOCKED, __ATOMIC_RELEASE);
#else
    __atomic_fetch_and(&lock->word, ~(hk_u32)LOCKED, __ATOMIC_RELEASE);
#endif
}
#endif

#ifdef READERS
/* Readers count themselves; a writer excludes them. */
#ifdef SIX_BITS
/* Two bits below are for flags: 64 readers look like none. */
typedef hk_u8 count;
enum { ONE = 4 };
#else
typedef hk_u32 count;
enum { ONE = 1 };
#endif
struct lock {
    count readers;
    hk_u32 writer;
};
HK_LOCK(struct lock);

void hk_lock(struct lock *lock)
{
    while (__atomic_exchange_n(&lock->writer, 1, __ATOMIC_SEQ_CST))
        hk_pause();
    while (__atomic_load_n(&lock->readers, __ATOMIC_SEQ_CST))
        hk_pause();
}

void hk_unlock(struct lock *lock)
{
    __atomic_store_n(&lock->writer, 0, __ATOMIC_RELEASE);
}

void hk_read_lock(struct lock *lock)
{
    for (;;) {
        while (__atomic_load_n(&lock->writer, __ATOMIC_RELAXED))
            hk_pause();
        __atomic_fetch_add(&lock->readers, ONE, __ATOMIC_SEQ_CST);
#ifdef NO_SECOND_LOOK
        return;
#else
        if (!__atomic_load_n(&lock->writer, __ATOMIC_SEQ_CST))
            return;
        __atomic_fetch_sub(&lock->readers, ONE, __ATOMIC_SEQ_CST);
#endif
    }
}

void hk_read_unlock(struct lock *lock)
{
    __atomic_fetch_sub(&lock->readers, ONE, __ATOMIC_RELEASE);
}
#endif

#ifdef FUTEX
/* 0: free, 1: held, 2: held, and others may sleep. */
#define MOST 1024
struct lock {
    hk_u32 word, waiters;
};
HK_LOCK(struct lock);
static hk_u64 asleep[64][MOST / 64];

static hk_u64 *bits(struct lock *lock)
{
#ifdef SHARE_BITS
    return asleep[((hk_u64)lock >> 6) % 64];
#else
    /* Locks lie 256 bytes apart: two that share bits would wake each other's sleepers in place of their own. */
    return asleep[((hk_u64)lock >> 8) % 64];
#endif
}

void hk_pv_lock(struct lock *lock)
{
    hk_u32 seen = 0;
    if (__atomic_compare_exchange_n(&lock->word, &seen, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        return;
    hk_u64 *word = &bits(lock)[hk_cpu() / 64], bit = 1ull << hk_cpu() % 64;
    for (int i = 0; i < 100; i++) {
        hk_u32 free = 0;
        if (__atomic_compare_exchange_n(&lock->word, &free, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
            return;
        hk_pause();
    }
    for (;;) {
        __atomic_fetch_or(word, bit, __ATOMIC_SEQ_CST);
        seen = 0;
#ifdef FORGET_SLEEPERS
        /* It takes the lock as if no other vCPU slept. */
        if (__atomic_compare_exchange_n(&lock->word, &seen, 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            break;
        if (__atomic_exchange_n(&lock->word, 2, __ATOMIC_SEQ_CST) == 0) {
            __atomic_store_n(&lock->word, 1, __ATOMIC_SEQ_CST);
            break;
        }
#else
        if (__atomic_exchange_n(&lock->word, 2, __ATOMIC_SEQ_CST) == 0)
            break;
#endif
        hk_wait_u32(&lock->word, 2);
    }
    __atomic_fetch_and(word, ~bit, __ATOMIC_SEQ_CST);
}

void hk_pv_unlock(struct lock *lock)
{
    static hk_u32 from;
    if (__atomic_exchange_n(&lock->word, 0, __ATOMIC_SEQ_CST) != 2)
        return;
    /* Begins at another vCPU each time, so that all have their turn. */
    hk_u32 first = __atomic_fetch_add(&from, 1, __ATOMIC_RELAXED);
    for (hk_u32 i = 0; i < hk_cpus(); i++) {
        hk_u32 cpu = (first + i) % hk_cpus();
        hk_u64 *word = &bits(lock)[cpu / 64], bit = 1ull << cpu % 64;
        if (__atomic_load_n(word, __ATOMIC_SEQ_CST) & bit) {
            __atomic_fetch_and(word, ~bit, __ATOMIC_SEQ_CST);
            hk_kick(cpu);
            return;
        }
    }
}
#endif
