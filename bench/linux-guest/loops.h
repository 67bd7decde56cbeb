/* What the loops have in common: threads that all begin at once, count what they do, and are told to stop. */
#ifndef LOOPS_H
#define LOOPS_H

#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define MOST_THREADS 1024

/* One thread. Each counts on a cache line of its own. */
struct loop_thread {
    _Alignas(128) uint64_t done;
    unsigned number;
    pthread_t handle;
};

static struct loop_thread loop_threads[MOST_THREADS];
/* Relaxed everywhere: polled; nothing else is read on the strength of it. */
static atomic_bool loop_is_over;
static pthread_barrier_t loop_begins;

static inline int loop_goes_on(void) {
    return !atomic_load_explicit(&loop_is_over, memory_order_relaxed);
}

/* Ends the program where the kernel refuses something, and says what. */
static inline void loop_fails(const char *what) {
    perror(what);
    exit(1);
}

static inline double loop_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* One turn of a thread, called again and again; returns how much it did. */
typedef uint64_t loop_turn(struct loop_thread *self);

static loop_turn *loop_body;

static void *loop_run_thread(void *argument) {
    struct loop_thread *self = argument;
    uint64_t done = 0;
    pthread_barrier_wait(&loop_begins);
    while (loop_goes_on())
        done += loop_body(self);
    self->done = done;
    return NULL;
}

/* PROGRAM [SECONDS [THREADS]]: runs `turn` in all threads for so long, and prints what all did per second as a figure. */
static inline int loop_main(int count, char **words, const char *name, const char *unit, loop_turn *turn) {
    unsigned seconds = count > 1 ? (unsigned)strtoul(words[1], NULL, 10) : 5;
    unsigned threads = count > 2 ? (unsigned)strtoul(words[2], NULL, 10) : (unsigned)sysconf(_SC_NPROCESSORS_ONLN);
    if (seconds == 0 || threads == 0 || threads > MOST_THREADS) {
        fprintf(stderr, "%s: [SECONDS [THREADS]], at least 1 each, and %d threads at most\n", name, MOST_THREADS);
        return 2;
    }
    loop_body = turn;
    pthread_barrier_init(&loop_begins, NULL, threads + 1);
    for (unsigned number = 0; number < threads; number++) {
        loop_threads[number].number = number;
        if (pthread_create(&loop_threads[number].handle, NULL, loop_run_thread, &loop_threads[number]) != 0)
            loop_fails("pthread_create");
    }
    pthread_barrier_wait(&loop_begins);
    double begun = loop_now();
    sleep(seconds);
    atomic_store_explicit(&loop_is_over, 1, memory_order_relaxed);
    uint64_t done = 0;
    for (unsigned number = 0; number < threads; number++) {
        pthread_join(loop_threads[number].handle, NULL);
        done += loop_threads[number].done;
    }
    /* Turns that had begun are counted whole, so the time until they ended is, too. */
    printf("haltkick: %s=%.6g %s\n", name, (double)done / (loop_now() - begun), unit);
    return 0;
}

#endif
