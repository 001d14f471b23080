/* Members take pieces from one counter. A worker waits for the next job by spinning a little (the
 * next operation of a step follows within microseconds) and then sleeps on a condition variable.
 */
#include "base/team.h"

#include "base/clock.h"
#include "base/cores.h"
#include "base/memory.h"
#include "base/trace.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SPINS = 2000 };

static _Thread_local int member;

typedef struct worker {
    struct team *team;
    int member;
    pthread_t thread;
    trace_lane *lane; /* NULL: nobody looks */
} worker;

struct team {
    int threads;
    void (*on_start)(void);
    worker *workers; /* threads - 1 of them */
    int started;

    pthread_mutex_t lock;
    pthread_cond_t wake;
    int sleepers; /* under lock */

    /* The job: written by the caller before `round` moves on, read by workers after. */
    team_fn fn;
    void *arg;
    int pieces;
    trace_lane *caller;    /* NULL: nobody looks */
    const char *of, *name; /* what the caller does; name NULL: not known */
    atomic_int next;       /* the next piece to take */
    atomic_int busy;       /* workers that have not finished with this round */
    atomic_uint round;     /* moves on once per job, and once to end */
    atomic_bool ending;
};

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

/* Returns how many it took. */
static int take_pieces(team *t)
{
    for (int n = 0;; n++) {
        int piece = atomic_fetch_add_explicit(&t->next, 1, memory_order_relaxed);
        if (piece >= t->pieces)
            return n;
        t->fn(t->arg, piece);
    }
}

static void take_pieces_traced(team *t, trace_lane *lane)
{
    trace_span span = {.of = t->of, .name = t->name, .size_bytes = -1, .begin_ns = clock_now_ns()};
    int n = take_pieces(t);
    span.end_ns = clock_now_ns();
    if (n > 0 && span.name != NULL)
        trace_add(lane, &span);
}

static void await_round(team *t, unsigned seen)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&t->round, memory_order_acquire) != seen)
            return;
        relax();
    }
    pthread_mutex_lock(&t->lock);
    t->sleepers++;
    while (atomic_load_explicit(&t->round, memory_order_acquire) == seen)
        pthread_cond_wait(&t->wake, &t->lock);
    t->sleepers--;
    pthread_mutex_unlock(&t->lock);
}

static void *worker_main(void *arg)
{
    const worker *self = arg;
    team *t = self->team;
    member = self->member;
    if (t->on_start != NULL)
        t->on_start();
    for (unsigned seen = 0;; seen++) {
        await_round(t, seen);
        if (atomic_load(&t->ending))
            return NULL;
        if (self->lane == NULL)
            take_pieces(t);
        else
            take_pieces_traced(t, self->lane);
        atomic_fetch_sub_explicit(&t->busy, 1, memory_order_release);
    }
}

static void next_round(team *t)
{
    atomic_fetch_add_explicit(&t->round, 1, memory_order_release);
    pthread_mutex_lock(&t->lock);
    if (t->sleepers > 0)
        pthread_cond_broadcast(&t->wake);
    pthread_mutex_unlock(&t->lock);
}

status team_create(int threads, void (*on_start)(void), team **out)
{
    ASSERT(threads >= 1);
    team *t = NULL;
    TRY(memory_alloc(sizeof *t, (void **)&t));
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->wake, NULL);
    t->threads = threads;
    t->on_start = on_start;
    status st = memory_alloc(sizeof *t->workers * (size_t)threads, (void **)&t->workers);
    while (st == STATUS_OK && t->started < threads - 1) {
        worker *w = &t->workers[t->started];
        *w = (worker){.team = t, .member = t->started + 1};
        int error = pthread_create(&w->thread, NULL, worker_main, w);
        if (error != 0)
            st = FAIL(STATUS_NO_MEMORY, "start thread %d of %d: %s (raise ulimit -u or ulimit -v)",
                      t->started + 2, threads, strerror(error));
        else
            t->started++;
    }
    if (st != STATUS_OK) {
        team_destroy(t);
        return st;
    }
    if (on_start != NULL)
        on_start();
    *out = t;
    return STATUS_OK;
}

void team_destroy(team *t)
{
    if (t == NULL)
        return;
    atomic_store(&t->ending, true);
    next_round(t);
    for (int i = 0; i < t->started; i++)
        pthread_join(t->workers[i].thread, NULL);
    pthread_cond_destroy(&t->wake);
    pthread_mutex_destroy(&t->lock);
    free(t->workers);
    free(t);
}

void team_run(team *t, team_fn fn, void *arg, int pieces)
{
    if (t->threads == 1 || pieces == 1) {
        for (int piece = 0; piece < pieces; piece++)
            fn(arg, piece);
        return;
    }
    t->fn = fn;
    t->arg = arg;
    t->pieces = pieces;
    if (t->caller != NULL && !trace_doing(t->caller, &t->of, &t->name))
        t->name = NULL;
    atomic_store_explicit(&t->next, 0, memory_order_relaxed);
    atomic_store_explicit(&t->busy, t->threads - 1, memory_order_relaxed);
    next_round(t);
    take_pieces(t);
    while (atomic_load_explicit(&t->busy, memory_order_acquire) > 0)
        relax();
}

/* The threads sleep or spin until team_run publishes the next job, and the lanes with it. */
status team_trace(team *t, trace *traced, trace_lane *caller)
{
    for (int i = 0; i < t->started; i++) {
        char name[TRACE_LANE_NAME_BYTES];
        snprintf(name, sizeof name, "compute %d of %.24s", t->workers[i].member,
                 trace_lane_text(caller));
        TRY(trace_lane_open(traced, name, TRACE_NESTED, &t->workers[i].lane));
    }
    t->caller = caller;
    return STATUS_OK;
}

void team_bind(team *t, const cores *own)
{
    for (int i = 0; i < t->started; i++)
        (void)cores_bind(t->workers[i].thread, &own->ids[t->workers[i].member], 1);
}

int team_threads(const team *t)
{
    return t->threads;
}

int team_member(void)
{
    return member;
}
