/* owner-yield modelled on Linux 6.11 on powerpc: any vCPU that tries steals, a yield follows a comparison of yield counts
 *
 * Queue spinlock for hypervisors with directed yield: the word names the owner. A waiter that finds the owner preempted gives its own
 * slice to the owner. No waiter sleeps, so there is no wake-up to lose, no table, and nothing for unlock to look for. The lock
 * `owner-yield` of the image is a part of it, whose source explains the queue; the word is the same:
 *
 *     bits    field
 *     0       locked
 *     1-14    owner       vCPU, while locked
 *     15      sleepy      a waiter has seen the owner preempted
 *     16      must queue  the head has waited long enough: no more stealing
 *     17-31   tail        vCPU + 1 of the last in the queue, 0 if none
 *
 * A state is (tail, must queue, locked):
 *
 *     S  steal       up to STEAL_SPINS looks; (*,0,0) -> (*,0,1)
 *     G1 claim       the node; node.lock := lock
 *     G2 enqueue     (p,*,*) -> (n,*,*); link behind p
 *     G3 wait        for node.locked; meanwhile yield to the owner or to p, if preempted
 *     G4 head        wait for locked = 0; must queue := 1 after HEAD_SPINS; yield to the owner, if preempted
 *     G5 take        (n,*,0) -> (n or 0,0,1), with the tail only if a vCPU is behind
 *     G6 hand over   next.locked := 1
 *
 * Of what Linux has, these are missing, which it turns off by default: the sticky mark, the kick of a preempted head, stealing while
 * the head yields, rounds that do not count while the owner is preempted, an interval for the mark, a shorter limit for owners on another
 * node. Unlock changes the word by one atomic operation, where powerpc stores half of it.
 */
#include "haltkick.h"

#define LOCKED 1u
#define OWNER_SHIFT 1
#define SLEEPY (1u << 15)
#define MUST_QUEUE (1u << 16)
#define TAIL_SHIFT 17
/* Everything but the tail and "must queue": what unlock clears. */
#define HELD_MASK (MUST_QUEUE - 1)

#define STEAL_SPINS 32 /* looks at the lock before queueing */
#define HEAD_SPINS 256 /* looks of the head before it forbids stealing */
/* How much longer both last while the lock is sleepy: a vCPU that is not running has to leave first. */
#define SLEEPY_FACTOR 256

/* A waiter: a vCPU waits for one lock at a time. Named by its vCPU's number + 1. */
struct node {
    hk_u32 next;   /* who is behind; written by the successor */
    hk_u8 locked;  /* 1 once this waiter is head; written by the predecessor */
    hk_u8 sleepy;  /* 1 while the owner is known to be preempted; written by the predecessor */
} __attribute__((aligned(64)));

struct powerpc {
    hk_u32 word;
};

HK_LOCK(struct powerpc);
HK_PERCPU(struct node);

/* Looks of one vCPU at the lock, in one of its phases. */
struct looks {
    hk_u32 made;
    int was_sleepy; /* it has found the lock sleepy, or the owner preempted */
};

/* Whether `most` looks have been made. They are more while the lock is sleepy. */
static inline int are_over(const struct looks *looks, hk_u32 seen, hk_u32 most)
{
    return looks->made >= (seen & SLEEPY || looks->was_sleepy ? most * SLEEPY_FACTOR : most);
}

static inline hk_u32 held_by(hk_u32 cpu)
{
    return cpu << OWNER_SHIFT | LOCKED;
}

static inline hk_u32 owner_of(hk_u32 word)
{
    return (word & HELD_MASK & ~SLEEPY) >> OWNER_SHIFT;
}

/* Relaxed: the exchange that follows validates the word, and acquires. */
static inline hk_u32 seen_in(struct powerpc *lock)
{
    return __atomic_load_n(&lock->word, __ATOMIC_RELAXED);
}

static inline int exchange(struct powerpc *lock, hk_u32 seen, hk_u32 next, int order)
{
    return __atomic_compare_exchange_n(&lock->word, &seen, next, 0, order, __ATOMIC_RELAXED);
}

/* Whether a vCPU is preempted; `count` is its yield count then. */
static int is_preempted(hk_u32 cpu, hk_u64 *count)
{
    if (!hk_is_preempted(cpu))
        return 0;
    *count = hk_yield_count(cpu);
    /* The caller looks next whether that vCPU still matters. Not before the count was read: it would lend its slice to a vCPU that has become
     * idle. The fence orders the two loads; the host, which writes the count, has no part in it. */
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    /* It may have got a pCPU between the look and the count, which then is that of a vCPU that runs. */
    return hk_is_preempted(cpu) != 0;
}

/* Gives this vCPU's slice to another one, unless that has run meanwhile. */
static void give_slice(hk_u32 cpu, hk_u64 count)
{
    if (hk_yield_count(cpu) == count) {
        hk_count(lock_yielded);
        hk_yield_to(cpu);
    }
}

/* Tells the successor that the owner is preempted. */
static void pass_on(struct node *node)
{
    /* Acquire: pairs with the link in G2, so that the mark is not wiped by the initialisation. */
    hk_u32 next = __atomic_load_n(&node->next, __ATOMIC_ACQUIRE);
    /* Relaxed: a hint. Only this vCPU makes the successor head, so its node is still in this queue. */
    if (next)
        __atomic_store_n(&hk_percpu(next - 1)->sleepy, 1, __ATOMIC_RELAXED);
}

enum gift { OWNER_RUNS, NOTHING_GIVEN, GIVEN };

/* Gives this vCPU's slice to the owner, if `seen` still says who that is and it is preempted. `node` is in the queue, or null. */
static enum gift yield_to_owner(struct powerpc *lock, hk_u32 seen, struct node *node)
{
    hk_u64 count;
    if (!(seen & LOCKED) || !is_preempted(owner_of(seen), &count))
        return OWNER_RUNS;
    if (node)
        pass_on(node);
    /* Relaxed, both: hints. An exchange that fails leaves the next look to set the mark. */
    if (!(seen & SLEEPY))
        exchange(lock, seen, seen | SLEEPY, __ATOMIC_RELAXED);
    /* The mark is a change like any other: the look that sets it lends nothing, and the next one does. */
    if (seen_in(lock) != seen)
        return NOTHING_GIVEN;
    give_slice(owner_of(seen), count);
    return GIVEN;
}

/* One round of waiting for the owner: a gift, or a pause. Counts the look. */
static void wait_a_round(struct powerpc *lock, hk_u32 seen, struct looks *looks, struct node *node)
{
    enum gift gift = yield_to_owner(lock, seen, node);
    if (gift != GIVEN)
        hk_pause();
    looks->was_sleepy |= seen & SLEEPY || gift != OWNER_RUNS;
    looks->made++;
}

/* (*,0,0) -> (*,0,1), past the queue, unless the lock is not open. */
static inline int try_past_queue(struct powerpc *lock, hk_u32 cpu)
{
    for (;;) {
        hk_u32 seen = seen_in(lock);
        /* Any bit but those of the tail. A vCPU that joins the queue meanwhile makes the exchange fail, and it is tried again. */
        if (seen & (HELD_MASK | MUST_QUEUE))
            return 0;
        /* Acquire: pairs with unlock. */
        if (exchange(lock, seen, seen | held_by(cpu), __ATOMIC_ACQUIRE))
            return 1;
    }
}

/* S: looks at the lock for a while. Whether it took it. */
static int steal(struct powerpc *lock, hk_u32 cpu)
{
    struct looks looks = { 0, 0 };
    for (;;) {
        hk_u32 seen = seen_in(lock);
        if (seen & MUST_QUEUE || are_over(&looks, seen, STEAL_SPINS))
            return 0;
        /* Acquire: pairs with unlock. */
        if (!(seen & LOCKED) && exchange(lock, seen, seen | held_by(cpu), __ATOMIC_ACQUIRE))
            return 1;
        wait_a_round(lock, seen, &looks, 0);
    }
}

/* G3: waits to become head. */
static void wait_as_waiter(struct powerpc *lock, hk_u32 before, struct node *node)
{
    /* Acquire: pairs with the hand-over in G6. */
    while (!__atomic_load_n(&node->locked, __ATOMIC_ACQUIRE)) {
        hk_u64 count;
        int before_is_preempted = is_preempted(before, &count);
        /* Relaxed: a hint. */
        if (!before_is_preempted && !__atomic_load_n(&node->sleepy, __ATOMIC_RELAXED)) {
            hk_pause();
            continue;
        }
        enum gift gift = yield_to_owner(lock, seen_in(lock), node);
        if (gift == GIVEN)
            continue;
        if (gift == NOTHING_GIVEN) {
            hk_pause();
            continue;
        }
        /* The owner runs: a waiter that reported otherwise is late. A mark is wiped by its own vCPU alone. */
        __atomic_store_n(&node->sleepy, 0, __ATOMIC_RELAXED);
        /* Relaxed: the loop acquires. As head it has nothing to wait for here. */
        if (before_is_preempted && !__atomic_load_n(&node->locked, __ATOMIC_RELAXED))
            give_slice(before, count);
        else
            hk_pause();
    }
}

/* G4 and G5: waits for the lock and takes it; whether no vCPU is behind. */
static int wait_as_head(struct powerpc *lock, hk_u32 cpu, struct node *node)
{
    struct looks looks = { 0, 0 };
    for (;;) {
        hk_u32 seen = seen_in(lock);
        if (!(seen & LOCKED)) {
            /* G5: (n,*,0) -> (n,0,1), or (0,0,1) if this is the last. Acquire: pairs with unlock. */
            int is_last = seen >> TAIL_SHIFT == cpu + 1;
            hk_u32 tail = is_last ? 0 : seen >> TAIL_SHIFT << TAIL_SHIFT;
            if (exchange(lock, seen, tail | held_by(cpu), __ATOMIC_ACQUIRE))
                return is_last;
            continue;
        }
        /* (n,0,*) -> (n,1,*). Relaxed: forbids stealing, orders nothing. */
        if (are_over(&looks, seen, HEAD_SPINS) && !(seen & MUST_QUEUE))
            __atomic_fetch_or(&lock->word, MUST_QUEUE, __ATOMIC_RELAXED);
        wait_a_round(lock, seen, &looks, node);
    }
}

/* G1 to G6. */
static void queue(struct powerpc *lock, hk_u32 cpu)
{
    struct node *node = hk_percpu(cpu);
    hk_count(lock_slowpath);
    /* G1. Relaxed: published by G2. */
    __atomic_store_n(&node->next, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&node->locked, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&node->sleepy, 0, __ATOMIC_RELAXED);
    /* G2. Release: publishes the node. Acquire: the predecessor's node is published. */
    hk_u32 seen;
    do
        seen = seen_in(lock);
    while (!exchange(lock, seen, (seen & ~(~0u << TAIL_SHIFT)) | (cpu + 1) << TAIL_SHIFT, __ATOMIC_ACQ_REL));
    hk_u32 before = seen >> TAIL_SHIFT;
    if (before) {
        /* Release: pairs with the acquire in G6. */
        __atomic_store_n(&hk_percpu(before - 1)->next, cpu + 1, __ATOMIC_RELEASE);
        wait_as_waiter(lock, before - 1, node);
    }
    hk_announce(HK_HEAD);
    if (!wait_as_head(lock, cpu, node)) {
        hk_u32 next;
        /* G6. Acquire: pairs with the link in G2. */
        while (!(next = __atomic_load_n(&node->next, __ATOMIC_ACQUIRE)))
            hk_pause();
        /* Release: pairs with the wait in G3. */
        __atomic_store_n(&hk_percpu(next - 1)->locked, 1, __ATOMIC_RELEASE);
    }
}

static __attribute__((noinline, cold)) void lock_slow(struct powerpc *lock, hk_u32 cpu)
{
    hk_announce(HK_WAITER);
    if (steal(lock, cpu))
        hk_count(pv_lock_stealing);
    else
        queue(lock, cpu);
}

void hk_pv_lock(struct powerpc *lock)
{
    hk_u32 cpu = hk_cpu();
    if (!try_past_queue(lock, cpu))
        lock_slow(lock, cpu);
}

int hk_pv_try_lock(struct powerpc *lock)
{
    return try_past_queue(lock, hk_cpu());
}

void hk_pv_unlock(struct powerpc *lock)
{
    /* (*,*,1) -> (*,*,0): locked, owner and sleepy go together. Release: pairs with all acquires above. */
    __atomic_fetch_and(&lock->word, ~HELD_MASK, __ATOMIC_RELEASE);
}
