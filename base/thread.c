#include "base/thread.h"

#include "base/clock.h"
#include "base/digest.h"
#include "base/host.h"
#include "base/memory.h"
#include "base/trace.h"

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* matmul_bf16 (kernels/cpu/linear.inc) takes most: 257 KiB. */
enum { LEAST_STACK_KIB = 512 };

void thread_block_signals(sigset_t *before)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, before);
}

void thread_restore_signals(const sigset_t *before)
{
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

status thread_start(void *(*run)(void *), void *arg, const char *name, pthread_t *out)
{
    sigset_t before;
    pthread_t thread;
    thread_block_signals(&before);
    int error = pthread_create(&thread, NULL, run, arg);
    thread_restore_signals(&before);
    if (error != 0)
        return FAIL(STATUS_NO_MEMORY, "%s thread: %s (raise ulimit -u or ulimit -v)", name,
                    strerror(error));
    *out = thread;
    return STATUS_OK;
}

status thread_check_stack(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= LEAST_STACK_KIB * 1024)
        return STATUS_OK;
    return FAIL(STATUS_INVALID, "the stack may be %llu KiB, and %d are needed: raise ulimit -s",
                (unsigned long long)limit.rlim_cur / 1024, LEAST_STACK_KIB);
}

/* Linux tells of every hardware thread which others are of its core and which package it is in:
 * two small files. That is all that is asked of a machine's topology here, and takes less time than
 * a library that reads all of it.
 */

typedef struct hardware_thread {
    int package;
    int core; /* its first hardware thread: allowed or not */
    int id;
} hardware_thread;

int cores_count(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

uint64_t cores_number(void)
{
    cpu_set_t set;
    uint64_t host = host_number();
    if (host == 0 || sched_getaffinity(0, sizeof set, &set) != 0)
        return 0;
    return fnv1a(host, &set, sizeof set);
}

/* The first number of a file of the system's about a hardware thread, such as "2,66"; `otherwise`
 * if there is none. */
static int read_topology(int id, const char *name, int otherwise)
{
    char path[96];
    int value = otherwise;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/%s", id, name);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return otherwise;
    if (fscanf(file, "%d", &value) != 1)
        value = otherwise;
    fclose(file);
    return value;
}

static int by_place(const void *a_, const void *b_)
{
    const hardware_thread *a = a_, *b = b_;
    int order = (a->package > b->package) - (a->package < b->package);
    if (order == 0)
        order = (a->core > b->core) - (a->core < b->core);
    return order != 0 ? order : (a->id > b->id) - (a->id < b->id);
}

static int read_allowed(hardware_thread out[CORES_MAX])
{
    cpu_set_t set;
    int n = 0;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 0;
    for (int id = 0; id < CORES_MAX; id++)
        if (CPU_ISSET((size_t)id, &set))
            out[n++] = (hardware_thread){.package = read_topology(id, "physical_package_id", 0),
                                         .core = read_topology(id, "thread_siblings_list", id),
                                         .id = id};
    qsort(out, (size_t)n, sizeof *out, by_place);
    return n;
}

void cores_list(int need, cores *out)
{
    hardware_thread all[CORES_MAX];
    int n = read_allowed(all), n_cores = 0;
    for (int i = 0; i < n; i++)
        n_cores += i == 0 || all[i].core != all[i - 1].core;
    out->n = 0;
    for (int i = 0; i < n && n >= need; i++)
        if (n_cores < need || i == 0 || all[i].core != all[i - 1].core)
            out->ids[out->n++] = (int16_t)all[i].id;
}

void cores_share(const cores *all, int part, int parts, cores *out)
{
    int first = (int)((int64_t)all->n * part / parts);
    int end = (int)((int64_t)all->n * (part + 1) / parts);
    out->n = 0;
    for (int i = first; i < end; i++)
        out->ids[out->n++] = all->ids[i];
}

static cpu_set_t set_of(const int16_t *ids, int n)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = 0; i < n; i++)
        CPU_SET((size_t)ids[i], &set);
    return set;
}

bool cores_bind(pthread_t thread, const int16_t *ids, int n)
{
    cpu_set_t set = set_of(ids, n);
    return pthread_setaffinity_np(thread, sizeof set, &set) == 0;
}

void cores_bind_process(const cores *all)
{
    cpu_set_t set = set_of(all->ids, all->n);
    DIR *threads = opendir("/proc/self/task");
    if (threads == NULL)
        return;
    for (struct dirent *entry = readdir(threads); entry != NULL; entry = readdir(threads))
        if (entry->d_name[0] != '.')
            (void)sched_setaffinity(atoi(entry->d_name), sizeof set, &set);
    closedir(threads);
}

/* Members take pieces from one counter. A worker waits for the next job by spinning a little (the
 * next operation of a step follows within microseconds) and then sleeps on a condition variable.
 */

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

status team_create(int threads, team **out)
{
    ASSERT(threads >= 1);
    team *t = NULL;
    TRY(memory_alloc(sizeof *t, (void **)&t));
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->wake, NULL);
    t->threads = threads;
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
