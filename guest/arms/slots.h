/* Nodes that a lock keeps until unlock, so that locks may be released in any order: a mask says which of a vCPU's are in use. */
#ifndef SLOTS_H
#define SLOTS_H

#include "haltkick.h"

/* Locks that a vCPU can hold or wait for at a time. */
#define SLOTS 8

/* Names a node: vCPU * SLOTS + slot + 1. 0 is no node. */
typedef hk_u32 slot_code;

static inline slot_code code_of(hk_u32 cpu, hk_u32 slot)
{
    return cpu * SLOTS + slot + 1;
}

static inline hk_u32 cpu_of(slot_code code)
{
    return (code - 1) / SLOTS;
}

static inline hk_u32 slot_of(slot_code code)
{
    return (code - 1) % SLOTS;
}

/* Claims a free slot of the calling vCPU, whose mask this is. No other vCPU writes the mask, so it takes no atomic operation. */
static inline hk_u32 claim_slot(hk_u32 *in_use)
{
    if (*in_use == (1u << SLOTS) - 1)
        hk_fail("a vCPU holds or waits for more than eight locks");
    hk_u32 slot = (hk_u32)__builtin_ctz(~*in_use);
    *in_use |= 1u << slot;
    return slot;
}

static inline void give_back_slot(hk_u32 *in_use, hk_u32 slot)
{
    *in_use &= ~(1u << slot);
}

#endif
