/* A reader of a counter rwlock that no writer takes. */
#include "haltkick.h"

struct word {
    hk_u64 value;
};

HK_LOCK(struct word);

void hk_lock(struct word *word)
{
    hk_u64 found = __atomic_load_n((volatile hk_u64 *)&word->value, __ATOMIC_RELAXED);
    do
        found = __atomic_load_n(&word->value, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&word->value, &found, found - 1, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}

void hk_unlock(struct word *word)
{
    __atomic_fetch_add(&word->value, 1, __ATOMIC_RELAXED);
}
