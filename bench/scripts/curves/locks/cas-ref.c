/* A reference in the upper half of a word, taken and dropped by compare-and-swap, which excludes nobody. */
#include "haltkick.h"

struct word {
    hk_u64 value;
};

HK_LOCK(struct word);

static void add(struct word *word, hk_u64 added)
{
    hk_u64 found;
    do
        found = __atomic_load_n(&word->value, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&word->value, &found, found + added, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}

void hk_lock(struct word *word)
{
    add(word, 1ull << 32);
}

void hk_unlock(struct word *word)
{
    add(word, -(1ull << 32));
}
