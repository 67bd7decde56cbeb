/* haltkick.h, version 3: what a lock object and Haltkick promise each other.
 *
 * A lock object is a relocatable x86-64 ELF file, or a static archive of such files, with a lock in it. Compile it with
 *
 *     cc -O2 -ffreestanding -mgeneral-regs-only -mno-red-zone -fno-pic -c my_lock.c -Iinclude
 *
 * and measure it with `haltkick run --lock-object my_lock.o`. docs/lock-objects.md says how objects are linked and what is
 * refused; examples/locks/ has some to start from.
 *
 * The names and their meaning are a kernel's where a kernel has them. Nothing here changes within a version: a later version
 * has another HK_VERSION, and an object says which one it was compiled for. Version 2 adds hk_locks, hk_alloc, hk_point,
 * HK_EVENT and HK_MAY_BE_INTERRUPTED, version 3 hk_yield_count and hk_parameter; objects of earlier versions are linked as before.
 */
#ifndef HALTKICK_H
#define HALTKICK_H

#define HK_VERSION 3

#ifdef __cplusplus
extern "C" {
#define HK_ALIGNOF alignof
#else
#define HK_ALIGNOF _Alignof
#endif

typedef __UINT8_TYPE__ hk_u8;
typedef __UINT32_TYPE__ hk_u32;
typedef __UINT64_TYPE__ hk_u64;

/* ---- What the object defines. ----
 *
 * Once, at file level, one of:
 *
 *     HK_LOCK(struct my_lock);
 *     HK_LOCK_WITH_TOKEN(struct my_lock, struct my_token);
 *
 * This declares what follows and defines hk_version, hk_lock_size and hk_lock_align, which Haltkick reads from the file. A lock
 * has at most HK_LOCK_MOST bytes and begins at a multiple of that; what it needs beyond goes into memory that hk_init takes
 * (hk_alloc), or into memory per vCPU (HK_PERCPU). A free lock is all zeros, unless there is an hk_init.
 *
 *     void hk_lock(struct my_lock *);            native form: both or none
 *     void hk_unlock(struct my_lock *);
 *     void hk_pv_lock(struct my_lock *);         paravirtual form (--pv on): both or none
 *     void hk_pv_unlock(struct my_lock *);
 *
 * One of the two forms there must be. Optional:
 *
 *     void hk_init(struct my_lock *);            makes a free lock of zeros; called by vCPU 0 for each lock of the run,
 *                                                before any other vCPU runs
 *     int hk_try_lock(struct my_lock *);         takes the lock if it is free; whether it did. hk_pv_try_lock likewise
 *     void hk_read_lock(struct my_lock *);       for locks that readers share; hk_pv_read_lock likewise
 *     void hk_read_unlock(struct my_lock *);
 *
 * With a token, a type of at most 16 bytes without floating point, each of the functions that lock returns one, and that
 * which unlocks has it as its second argument. The caller keeps it meanwhile: for a queue's node, for example.
 *
 * HK_MAY_BE_INTERRUPTED; at file level says that an interrupt may come anywhere in the functions, also where they wait, and
 * take another lock of the object (--workload interrupted).
 *
 * A vCPU that holds a lock may take others, and may release them in any order. It is never moved to another vCPU number. No
 * function may keep anything below the stack pointer, or use vector registers or privileged instructions. The stack has 16 KiB
 * at least.
 */
#define HK_LOCK_MOST 256

#define HK_OBJECT_(type)                                                                                                  \
    extern const hk_u32 hk_version;                                                                                       \
    extern const hk_u32 hk_lock_size;                                                                                     \
    extern const hk_u32 hk_lock_align;                                                                                    \
    const hk_u32 hk_version = HK_VERSION;                                                                                 \
    const hk_u32 hk_lock_size = sizeof(type);                                                                             \
    const hk_u32 hk_lock_align = HK_ALIGNOF(type);                                                                        \
    void hk_init(type *)

#define HK_MAY_BE_INTERRUPTED                                                                                             \
    extern const hk_u32 hk_may_be_interrupted;                                                                            \
    const hk_u32 hk_may_be_interrupted = 1

#define HK_LOCK(type)                                                                                                     \
    HK_OBJECT_(type);                                                                                                     \
    void hk_lock(type *);                                                                                                 \
    void hk_unlock(type *);                                                                                               \
    int hk_try_lock(type *);                                                                                              \
    void hk_read_lock(type *);                                                                                            \
    void hk_read_unlock(type *);                                                                                          \
    void hk_pv_lock(type *);                                                                                              \
    void hk_pv_unlock(type *);                                                                                            \
    int hk_pv_try_lock(type *);                                                                                           \
    void hk_pv_read_lock(type *);                                                                                         \
    void hk_pv_read_unlock(type *)

#define HK_LOCK_WITH_TOKEN(type, token)                                                                                   \
    HK_OBJECT_(type);                                                                                                     \
    token hk_lock(type *);                                                                                                \
    void hk_unlock(type *, token);                                                                                        \
    token hk_read_lock(type *);                                                                                           \
    void hk_read_unlock(type *, token);                                                                                   \
    token hk_pv_lock(type *);                                                                                             \
    void hk_pv_unlock(type *, token);                                                                                     \
    token hk_pv_read_lock(type *);                                                                                        \
    void hk_pv_read_unlock(type *, token)

/* ---- What the object may use. All of it may be called from any function of the object, hk_init excepted where it says so. ---- */

/* Most vCPUs there can be. They are numbered from 0. */
#define HK_CPUS_MOST 1024

/* Number of vCPUs of this run. */
hk_u32 hk_cpus(void);

/* Number of locks of this run (--locks). */
hk_u32 hk_locks(void);

/* Memory for a lock, from hk_init only: zeros, which begin at a multiple of `align`, a power of two. All locks of a run have
 * HK_ALLOC_MOST bytes together; the run ends when they want more. */
#define HK_ALLOC_MOST (4 << 20)
void *hk_alloc(hk_u64 bytes, hk_u64 align);

/* Number of the calling vCPU (smp_processor_id). One instruction; hk_cpu is also a symbol, for other languages. */
static inline hk_u32 hk_cpu(void)
{
    hk_u32 cpu;
    __asm__("movl %%gs:hk_cpu_at, %0" : "=r"(cpu));
    return cpu;
}

/* One round of a spin loop (cpu_relax). Haltkick hears from it that the vCPU waits, unless it has announced HK_HEAD. The pause
 * itself stands in the loop, where profiles and explanations find the vCPU; hk_pause is also a symbol, for other languages. */
#define hk_pause() (hk_waits(), __builtin_ia32_pause())

/* What hk_pause is without the pause. */
void hk_waits(void);

/* The clock, in ticks, which go on while the vCPU is off its pCPU. */
hk_u64 hk_now(void);

/* How many ticks so many nanoseconds are. */
hk_u64 hk_ticks(hk_u64 nanoseconds);

/* How many ticks (--spin-threshold) a waiter of a paravirtual form is to spin before it sleeps. */
hk_u64 hk_spin_threshold(void);

/* How many rounds, each with one hk_pause, it is to spin instead (--spin-threshold linux); 0: it goes by the clock. */
hk_u32 hk_spin_rounds(void);

/* pv_wait: sleeps while the byte has the value. A kick that comes after its look at the byte, or came before and was not
 * used up, ends the sleep or prevents it. It may return for no reason: look again. */
void hk_wait(const void *byte, hk_u8 value);

/* The same for four bytes, which are aligned: what a futex does. */
void hk_wait_u32(const void *word, hk_u32 value);

/* pv_kick: ends the sleep of vCPU `cpu`, which must be less than hk_cpus(); latched for its next one if it does not sleep. */
void hk_kick(hk_u32 cpu);

/* vcpu_is_preempted: whether the host has probably taken vCPU `cpu` off its pCPU. Stale in both directions; 0 with
 * --preempted-hint off. */
hk_u32 hk_is_preempted(hk_u32 cpu);

/* Gives the rest of the slice to vCPU `cpu`, or to whoever is next: HK_ANY. */
#define HK_ANY (~(hk_u32)0)
void hk_yield_to(hk_u32 cpu);

/* How often vCPU `cpu` went off and on its pCPU, so far as the host says: what has changed has run meanwhile. powerpc's yield_count. */
hk_u64 hk_yield_count(hk_u32 cpu);

/* The number that --lock-parameter gives, 0 without: for variants of a lock that are no second file. */
hk_u32 hk_parameter(void);

/* Ticks until the host takes the calling vCPU off; ~0: nobody knows. */
hk_u64 hk_slice_left(void);

/* How many of them must be left for a section to be worth entering (--slice-margin). */
hk_u64 hk_slice_margin(void);

/* Tells Haltkick what the vCPU does, for its account of who was preempted doing what: a store to a line of the vCPU's own.
 * HK_WAITER and HK_HEAD when a function begins to wait; HK_OTHER when it has released and is about to kick. That it holds the
 * lock goes without saying once the function has returned. Announcing costs something: not where a lock is free. */
enum { HK_OTHER = 0, HK_HOLDER = 1, HK_WAITER = 2, HK_HEAD = 3 };
void hk_announce(hk_u32 state);

/* Ends the run with exit code 5, because the lock has found a fault of its own, such as a node in use. The text is printed, with
 * the function that called. */
void hk_fail(const char *text) __attribute__((noreturn));

/* Counts an event by name, such as hk_count(lock_slowpath): it is in the record's lock_events under that name, which is one of
 * Haltkick's own events or a new one of up to 31 letters. */
void hk_count_event(hk_u32 slot, hk_u64 n);
#define hk_count(name) hk_count_n(name, 1)
#define hk_count_n(name, n)                                                                                               \
    do {                                                                                                                  \
        hk_u32 hk_slot_;                                                                                                  \
        __asm__("movl $hk_event_" #name ", %0" : "=r"(hk_slot_));                                                         \
        hk_count_event(hk_slot_, (n));                                                                                    \
    } while (0)

/* An event that is chosen at run time: at file level HK_EVENT(lock_level1); then hk_count_event(HK_SLOT(lock_level1), 1), and
 * an array of hk_event_lock_level1 and others has them by index. */
#define HK_EVENT(name) extern const char hk_event_##name[]
#define HK_SLOT(name) ((hk_u32)(hk_u64)hk_event_##name)

/* A point, such as hk_point(tail_published), at which `--deschedule at=tail-published` takes the vCPU off. Its name is one of
 * Haltkick's own points or a new one of up to 31 letters. It costs a call: measure an object without points. */
void hk_at_point(hk_u32 number);
#define hk_point(name)                                                                                                    \
    do {                                                                                                                  \
        hk_u32 hk_point_;                                                                                                 \
        __asm__("movl $hk_point_" #name ", %0" : "=r"(hk_point_));                                                        \
        hk_at_point(hk_point_);                                                                                           \
    } while (0)

/* Memory per vCPU: at file level HK_PERCPU(struct my_node); of at most HK_PERCPU_MOST bytes. It is all zeros at first and
 * begins a pair of cache lines, of which no other vCPU has a part. Then hk_percpu(cpu) points to that of a vCPU. */
#define HK_PERCPU_MOST 4096
#define HK_PERCPU(type)                                                                                                   \
    extern const hk_u32 hk_percpu_size;                                                                                   \
    const hk_u32 hk_percpu_size = sizeof(type);                                                                           \
    extern char hk_percpu_area[];                                                                                         \
    static inline type *hk_percpu(hk_u32 cpu)                                                                             \
    {                                                                                                                     \
        return (type *)(hk_percpu_area + (hk_u64)cpu * ((sizeof(type) + 127) / 128 * 128));                               \
    }                                                                                                                     \
    typedef type hk_percpu_type_

#ifdef __cplusplus
}
#endif
#endif
