/* All threads take one lock that sleeps in the kernel: the mutex of three states that futex(7) points to (Drepper, "Futexes are
   tricky", mutex2). Woken threads need a CPU before they can go on, and kernel locks on the way there. */
#include "loops.h"

#include <linux/futex.h>
#include <sys/syscall.h>

enum { FREE, HELD, WAITED_FOR };

static _Alignas(128) atomic_int lock_word;
static _Alignas(128) volatile uint64_t shared;

static void futex(int operation, int value) {
    syscall(SYS_futex, &lock_word, operation | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

static void lock(void) {
    int seen = FREE;
    /* Acquire: pairs with the release in `unlock`. */
    if (atomic_compare_exchange_strong_explicit(&lock_word, &seen, HELD, memory_order_acquire, memory_order_relaxed))
        return;
    while (atomic_exchange_explicit(&lock_word, WAITED_FOR, memory_order_acquire) != FREE)
        futex(FUTEX_WAIT, WAITED_FOR);
}

static void unlock(void) {
    /* Release: pairs with the acquire in `lock`. */
    if (atomic_exchange_explicit(&lock_word, FREE, memory_order_release) == WAITED_FOR)
        futex(FUTEX_WAKE, 1);
}

static uint64_t turn(struct loop_thread *self) {
    (void)self;
    lock();
    for (unsigned i = 0; i < 100; i++)
        shared++;
    unlock();
    return 1;
}

int main(int count, char **words) {
    return loop_main(count, words, "futex-loop", "sections/s", turn);
}
