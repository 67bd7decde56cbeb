/* All threads take one test-and-test-and-set lock that never sleeps: the kernel is not asked, and a holder that is off its CPU
   stops all others, whatever the kernel's own locks are. */
#include "loops.h"

static _Alignas(128) atomic_bool lock_word;
static _Alignas(128) volatile uint64_t shared;

static uint64_t turn(struct loop_thread *self) {
    (void)self;
    /* Acquire: pairs with the release below. */
    while (atomic_exchange_explicit(&lock_word, 1, memory_order_acquire)) {
        while (atomic_load_explicit(&lock_word, memory_order_relaxed)) {
            if (!loop_goes_on())
                return 0;
            __builtin_ia32_pause();
        }
    }
    for (unsigned i = 0; i < 100; i++)
        shared++;
    /* Release: pairs with the acquire above. */
    atomic_store_explicit(&lock_word, 0, memory_order_release);
    return 1;
}

int main(int count, char **words) {
    return loop_main(count, words, "spin-loop", "sections/s", turn);
}
