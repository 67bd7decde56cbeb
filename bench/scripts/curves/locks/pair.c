/* A pair of additions to one word, which excludes nobody. */
#include "haltkick.h"

struct word {
    hk_u64 value;
};

HK_LOCK(struct word);

void hk_lock(struct word *word)
{
    __atomic_fetch_add(&word->value, 1, __ATOMIC_RELAXED);
}

void hk_unlock(struct word *word)
{
    __atomic_fetch_sub(&word->value, 1, __ATOMIC_RELAXED);
}
