/* queue whose waiters sleep while the holder or the head is preempted (--preempted-hint)
 *
 * FlexGuard (Laforet and others, SOSP 2025): waiters spin in a queue as long as the vCPUs ahead of them run, and sleep once one does not.
 *
 *     word    {free, held by a vCPU; does a vCPU sleep}      who takes it has the lock
 *     tail    of the queue, head      who of the queue may race for the word
 *     set     of the vCPUs that sleep until this lock is released
 *
 * The lock of the paper lives in user space. A program in the kernel counts there how many holders of any lock are preempted, and
 * recognises a holder by the address of its next instruction. Here the word names the holder from the first moment on, and the host says
 * whether that vCPU runs. So each lock decides for itself. The lock is *stopped* if its holder is preempted, or the head of its queue.
 *
 *     F10 lock    word: free -> held: has the lock
 *     F11         stopped: F15
 *     F12 queue   initialise the node; swap it into the tail; link behind p; spin until granted or stopped
 *     F13 race    spin: free -> held: taken; until taken or stopped
 *     F14 leave   the queue: tail := 0 if this is the last; else head := next, grant it. Taken: has the lock
 *     F15 sleep   enter the set; free -> held and sleeps: leave the set, has the lock; held -> held and sleeps; sleep while in the set
 *     F16         leave the set; F11. From now on F13 takes the word as F15 does
 *
 *     F17 unlock  held, no vCPU sleeps -> free: done
 *     F18         no vCPU sleeps := true; take one out of the set; there is none: F17
 *     F19         word := free; kick that one
 *
 * It excludes: F10, F13 and F15 exchange a word that is free for one that names the vCPU. All else is about who asks.
 *
 * The queue may be left in any order: a waiter leaves it from its middle. The one before it grants its node later, whatever that is used
 * for by then. A vCPU may race too early for that, which does no harm. Each vCPU that links is granted by the one before it, which leaves
 * sooner or later. A node has one successor each time it is used, and F14 waits for the link: so none is written late.
 *
 * No sleeper is forgotten: F15 enters the set, and then looks at the word. F18 changes the word, and then looks at the set. So either F18
 * finds the vCPU, or that vCPU sees the word that F18 has left, and marks it again, or sees it free. A vCPU that F18 takes out asks for the
 * lock. Its kick comes after the release, and it looks at the word again after the kick. It marks the word, or takes it with the mark, for
 * those that are in the set still. So F19 may overwrite a mark. F19 does not touch the lock after the release.
 *
 * How long a vCPU waits has no bound: F10 takes the word past all that wait. Without preempted flags nobody sleeps, and the lock is a queue
 * that newcomers overtake.
 */
#include "haltkick.h"

#define HELD 1
#define SLEEPS 2 /* a vCPU sleeps, or is about to: who releases has to look */
#define OWNER_SHIFT 2
#define LOOK_EVERY 16 /* rounds of spinning in the queue between two looks at whether the lock is stopped */

#define WORDS (HK_CPUS_MOST / 64)

/* A vCPU in a queue: named by its number + 1, where 0 is nobody. */
struct node {
    hk_u32 next;    /* written by the successor */
    hk_u32 granted; /* 1: it may race; the comment above says why grants may come late */
    hk_u8 sleeps __attribute__((aligned(64)));
} __attribute__((aligned(64)));

struct flexguard {
    hk_u32 word; /* 0: free; else HELD, perhaps SLEEPS, and who holds it */
    hk_u32 tail;
    hk_u32 head; /* who was last made head of the queue: a hint, and stale while there is no queue */
    hk_u64 set[WORDS];
};

HK_LOCK(struct flexguard);
HK_PERCPU(struct node);

static inline hk_u32 held_by(hk_u32 cpu)
{
    return cpu << OWNER_SHIFT | HELD;
}

/* Whether this exchanged a free word for `mark`. */
static inline int take(struct flexguard *lock, hk_u32 mark)
{
    hk_u32 free = 0;
    /* Acquire: pairs with F17 and F19. */
    return __atomic_compare_exchange_n(&lock->word, &free, mark, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

/* Whether a vCPU that all others wait for does not run, by a word that was just seen. Relaxed: hints. */
static int is_stopped(struct flexguard *lock, hk_u32 seen)
{
    if (seen & HELD && hk_is_preempted(seen >> OWNER_SHIFT))
        return 1;
    return __atomic_load_n(&lock->tail, __ATOMIC_RELAXED) && hk_is_preempted(__atomic_load_n(&lock->head, __ATOMIC_RELAXED));
}

static inline hk_u32 seen_in(struct flexguard *lock)
{
    return __atomic_load_n(&lock->word, __ATOMIC_RELAXED);
}

/* Spins until granted, or until the lock is stopped. */
static void wait_behind(struct flexguard *lock, struct node *node)
{
    /* Relaxed: a grant publishes nothing, the word does. */
    for (hk_u32 round = 1; !__atomic_load_n(&node->granted, __ATOMIC_RELAXED); round++) {
        hk_pause();
        if (round % LOOK_EVERY == 0 && is_stopped(lock, seen_in(lock)))
            return;
    }
}

/* F13: whether it took the word. */
static int race(struct flexguard *lock, hk_u32 mark)
{
    hk_announce(HK_HEAD);
    for (;;) {
        /* Relaxed: only a hint when to try. */
        hk_u32 seen = seen_in(lock);
        if (!seen && take(lock, mark))
            return 1;
        if (is_stopped(lock, seen))
            return 0;
        hk_pause();
    }
}

/* F14 */
static void leave_queue(struct flexguard *lock, hk_u32 cpu, struct node *node)
{
    /* Acquire, here and below: pairs with the link in F12. */
    hk_u32 next = __atomic_load_n(&node->next, __ATOMIC_ACQUIRE), last = cpu + 1;
    /* Relaxed: who finds no queue links to no node. */
    if (!next && __atomic_compare_exchange_n(&lock->tail, &last, 0, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return;
    while (!next) {
        hk_pause();
        next = __atomic_load_n(&node->next, __ATOMIC_ACQUIRE);
    }
    /* Before the grant: it may find a vCPU that does not run. Relaxed: as in F12. */
    __atomic_store_n(&lock->head, next - 1, __ATOMIC_RELAXED);
    __atomic_store_n(&hk_percpu(next - 1)->granted, 1, __ATOMIC_RELAXED);
}

/* F12 to F14: whether it took the word. If not, the lock is stopped. */
static int spin(struct flexguard *lock, hk_u32 cpu, hk_u32 mark)
{
    struct node *node = hk_percpu(cpu);
    hk_count(lock_slowpath);
    /* Relaxed: published by the swap. */
    __atomic_store_n(&node->next, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&node->granted, 0, __ATOMIC_RELAXED);
    /* Release: publishes the node. Acquire: the predecessor's node is published. */
    hk_u32 before = __atomic_exchange_n(&lock->tail, cpu + 1, __ATOMIC_ACQ_REL);
    if (before) {
        /* Release: pairs with the acquire in F14. */
        __atomic_store_n(&hk_percpu(before - 1)->next, cpu + 1, __ATOMIC_RELEASE);
        wait_behind(lock, node);
    } else {
        __atomic_store_n(&lock->head, cpu, __ATOMIC_RELAXED);
    }
    int taken = race(lock, mark);
    leave_queue(lock, cpu, node);
    return taken;
}

/* F15: whether it took the word. If not, its holder has to look for sleepers. */
static int take_or_mark(struct flexguard *lock, hk_u32 mark)
{
    /* Relaxed: comes after the entry into the set. */
    hk_u32 seen = seen_in(lock);
    for (;;) {
        hk_u32 next = seen ? seen | SLEEPS : mark;
        if (seen == next)
            return 0;
        hk_u32 now = seen;
        /* Acquire: pairs with F17 and F19. */
        if (__atomic_compare_exchange_n(&lock->word, &now, next, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
            return !seen;
        seen = now;
    }
}

/* Takes a vCPU out of the set; whether it was in it. Sequentially consistent, as the entry in F15 is: each is a full fence. */
static inline int remove_from(struct flexguard *lock, hk_u32 cpu)
{
    hk_u64 bit = 1ull << cpu % 64;
    return !!(__atomic_fetch_and(&lock->set[cpu / 64], ~bit, __ATOMIC_SEQ_CST) & bit);
}

/* F15 and F16: whether it took the word. */
static int sleep_in(struct flexguard *lock, hk_u32 cpu, hk_u32 mark)
{
    struct node *node = hk_percpu(cpu);
    __atomic_store_n(&node->sleeps, 1, __ATOMIC_RELAXED);
    /* The look at the word in `take_or_mark` comes after this; pairs with the exchange of the word in F18. */
    __atomic_fetch_or(&lock->set[cpu / 64], 1ull << cpu % 64, __ATOMIC_SEQ_CST);
    int taken = take_or_mark(lock, mark);
    if (!taken) {
        hk_count(pv_wait_node);
        hk_wait(&node->sleeps, 1);
    }
    /* A vCPU that stayed in the set while it goes on to other things would be kicked in the place of one that sleeps. */
    if (remove_from(lock, cpu) && !taken)
        hk_count(pv_spurious_wakeup);
    return taken;
}

static __attribute__((noinline, cold)) void lock_slow(struct flexguard *lock, hk_u32 cpu)
{
    hk_u32 mark = held_by(cpu);
    for (;;) {
        hk_announce(HK_WAITER);
        /* F11 */
        if (!is_stopped(lock, seen_in(lock)) && spin(lock, cpu, mark))
            return;
        /* F16: other vCPUs may sleep, too. */
        mark |= SLEEPS;
        if (sleep_in(lock, cpu, mark))
            return;
    }
}

/* Takes the next vCPU after `cpu` out of the set, by number and around; its number + 1, or 0. */
static hk_u32 take_one(struct flexguard *lock, hk_u32 cpu)
{
    hk_u32 first = cpu + 1;
    for (hk_u32 step = 0; step <= WORDS; step++) {
        hk_u32 word = (first / 64 + step) % WORDS;
        hk_u64 behind = ~0ull << first % 64;
        /* Relaxed: ordered by the exchange of the word in F18; `remove_from` decides. */
        hk_u64 bits = __atomic_load_n(&lock->set[word], __ATOMIC_RELAXED);
        bits &= step == 0 ? behind : step == WORDS ? ~behind : ~0ull;
        for (; bits; bits &= bits - 1) {
            hk_u32 sleeper = word * 64 + (hk_u32)__builtin_ctzll(bits);
            if (remove_from(lock, sleeper))
                return sleeper + 1;
        }
    }
    return 0;
}

/* F18, F19 */
static __attribute__((noinline, cold)) void unlock_slow(struct flexguard *lock, hk_u32 cpu)
{
    hk_u32 sleeper;
    for (;;) {
        /* Sequentially consistent: the look at the set comes after this; pairs with the entry in F15. */
        hk_u32 before = __atomic_fetch_and(&lock->word, ~(hk_u32)SLEEPS, __ATOMIC_SEQ_CST);
        if ((before & ~(hk_u32)SLEEPS) != held_by(cpu))
            hk_fail("a vCPU unlocks a lock that it does not hold");
        if ((sleeper = take_one(lock, cpu)))
            break;
        hk_u32 held = held_by(cpu);
        /* F17. Release: pairs with every take. */
        if (__atomic_compare_exchange_n(&lock->word, &held, 0, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
            return;
    }
    /* Release: what the sleeper sees of it comes after its removal, which it may repeat. */
    __atomic_store_n(&hk_percpu(sleeper - 1)->sleeps, 0, __ATOMIC_RELEASE);
    /* F19. Release: pairs with every take. From here on, the lock is not touched. */
    __atomic_store_n(&lock->word, 0, __ATOMIC_RELEASE);
    hk_announce(HK_OTHER);
    hk_count(pv_kick_unlock);
    hk_kick(sleeper - 1);
}

void hk_pv_lock(struct flexguard *lock)
{
    hk_u32 cpu = hk_cpu();
    /* F10 */
    if (!take(lock, held_by(cpu)))
        lock_slow(lock, cpu);
}

int hk_pv_try_lock(struct flexguard *lock)
{
    /* Relaxed: failing needs no ordering, and spares the line when the lock is held. */
    return !seen_in(lock) && take(lock, held_by(hk_cpu()));
}

void hk_pv_unlock(struct flexguard *lock)
{
    hk_u32 cpu = hk_cpu(), held = held_by(cpu);
    /* F17. Release: pairs with every take. */
    if (!__atomic_compare_exchange_n(&lock->word, &held, 0, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
        unlock_slow(lock, cpu);
}
