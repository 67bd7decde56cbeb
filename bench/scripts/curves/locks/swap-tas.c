/* Test-and-set by exchange alone: no look before it, no PAUSE. */
#include "haltkick.h"

struct word {
    hk_u32 held;
};

HK_LOCK(struct word);

void hk_lock(struct word *word)
{
    while (__atomic_exchange_n(&word->held, 1, __ATOMIC_ACQUIRE))
        ;
}

void hk_unlock(struct word *word)
{
    __atomic_store_n(&word->held, 0, __ATOMIC_RELEASE);
}
