/* Each reader has a flag of its own, which writers look at. A define leaves a barrier out. */
#include "haltkick.h"

struct flag { hk_u32 reads; };
HK_PERCPU(struct flag);
struct lock { hk_u32 writer; };
HK_LOCK(struct lock);

#ifdef NO_FENCE
#define fence() __asm__ volatile("" ::: "memory")
#else
#define fence() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#endif

void hk_lock(struct lock *lock)
{
    while (__atomic_exchange_n(&lock->writer, 1, __ATOMIC_SEQ_CST))
        hk_pause();
    for (hk_u32 cpu = 0; cpu < hk_cpus(); cpu++)
        while (__atomic_load_n(&hk_percpu(cpu)->reads, __ATOMIC_ACQUIRE))
            hk_pause();
}

void hk_unlock(struct lock *lock) { __atomic_store_n(&lock->writer, 0, __ATOMIC_RELEASE); }

void hk_read_lock(struct lock *lock)
{
    hk_u32 *mine = &hk_percpu(hk_cpu())->reads;
    for (;;) {
        __atomic_store_n(mine, 1, __ATOMIC_RELAXED);
        fence();
        if (!__atomic_load_n(&lock->writer, __ATOMIC_ACQUIRE))
            return;
        __atomic_store_n(mine, 0, __ATOMIC_RELEASE);
        while (__atomic_load_n(&lock->writer, __ATOMIC_RELAXED))
            hk_pause();
    }
}

void hk_read_unlock(struct lock *lock) { __atomic_store_n(&hk_percpu(hk_cpu())->reads, 0, __ATOMIC_RELEASE); }
