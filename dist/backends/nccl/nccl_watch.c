/* A collective runs if more were entered than left, and hangs if `left` stands still for the
 * timeout.
 *
 * The first failure stays. The watchdog asks the store who has not come, or has left. If the store
 * hangs, so does the watchdog: so nccl_watch_check() also looks itself whether a collective is long
 * overdue.
 *
 * The first launch of a kernel waits in the driver for all that the device runs, because kernels
 * are loaded when they are first used (CUDA's programming guide, "Lazy Loading"). After a
 * collective that hangs it waits for ever, and nobody calls nccl_watch_check(): then the rank is
 * stuck.
 */
#include "dist/backends/nccl/nccl_watch.h"

#include "base/clock.h"
#include "base/thread.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    TICK_MS = 20,
    OVERDUE_MS = 1000, /* for the watchdog's better explanation */
    STUCK_MS = 10000,  /* after the failure: longer than a checkpoint takes */
};

struct nccl_watch {
    nccl_watch_options o;
    pthread_t thread;
    atomic_int host_waits;

    /* The thread's own. */
    bool told;             /* that this rank waits */
    int64_t host_waits_ns; /* since when; 0: it does not */

    pthread_mutex_t lock; /* of all below */
    pthread_cond_t changed;
    bool ending;
    uint64_t left;       /* when the thread last looked */
    int64_t since_ns;    /* a collective has run since then and none ended; 0: none runs */
    status broken;       /* what broke the group; STATUS_OK: nothing has */
    status_kept failure; /* the same in words */
    bool asked;          /* the failure has been asked for */
};

static uint64_t load(const uint64_t *counter)
{
    return __atomic_load_n(counter, __ATOMIC_ACQUIRE);
}

/* "all_reduce number 7 (1000 elements)": as the device counts them. */
static void name_running(const nccl_watch *w, char *out, size_t size_bytes)
{
    uint64_t what = load(&w->o.progress->what);
    int kind = nccl_what_kind(what);
    snprintf(out, size_bytes, "%s number %" PRIu64 " (%" PRIu64 " elements)",
             kind == NCCL_WHAT_BATCH ? "a batch of sends and receives after"
                                     : collective_kind_name((collective_kind)kind),
             load(&w->o.progress->number), nccl_what_count(what));
}

/* This thread's latest FAIL broke the group, unless another one did before. The lock is held. */
static void break_locked(nccl_watch *w, status st)
{
    if (w->broken != STATUS_OK)
        return;
    status_keep(&w->failure);
    w->broken = st;
}

static void break_group(nccl_watch *w, status st)
{
    pthread_mutex_lock(&w->lock);
    break_locked(w, st);
    pthread_mutex_unlock(&w->lock);
}

static status fail_late(const nccl_watch *w, int64_t ran_ns, const char *who)
{
    char running[128];
    name_running(w, running, sizeof running);
    return FAIL(STATUS_TIMEOUT, "%s has been running for %.1f s%s", running, clock_seconds(ran_ns),
                who);
}

/* Of the collective that runs. */
static int64_t limit_ms(const nccl_watch *w)
{
    bool first = (load(&w->o.progress->what) & NCCL_WHAT_FIRST) != 0;
    return w->o.timeout_ms * (first ? PROCESS_GROUP_FIRST_TIMES : 1);
}

static void look_at_progress(nccl_watch *w, int64_t now_ns)
{
    uint64_t left = load(&w->o.progress->left), entered = load(&w->o.progress->entered);
    pthread_mutex_lock(&w->lock);
    if (entered <= left)
        w->since_ns = 0;
    else if (w->since_ns == 0 || left != w->left)
        w->since_ns = now_ns;
    w->left = left;
    pthread_mutex_unlock(&w->lock);
    if (atomic_load(&w->host_waits) == 0)
        w->host_waits_ns = 0;
    else if (w->host_waits_ns == 0)
        w->host_waits_ns = now_ns;
}

static void look_at_time(nccl_watch *w, int64_t now_ns)
{
    int64_t ran_ns = w->since_ns == 0 ? 0 : now_ns - w->since_ns;
    int64_t limit_ns = limit_ms(w) * 1000000;
    if (ran_ns >= w->o.timeout_ms * 1000000 &&
        peers_find_stopped(first_cause_peers(w->o.cause), 0) >= 0)
        limit_ns = ran_ns; /* who is stopped is not slow */
    uint64_t number = load(&w->o.progress->number);
    if (w->since_ns == 0 || ran_ns < limit_ns / 2) {
        w->told = false;
    } else if (!w->told) {
        w->told = true;
        first_cause_tell_waiting(w->o.cause, number);
    }
    if (w->since_ns != 0 && ran_ns >= limit_ns) {
        char who[256];
        first_cause_name_late(w->o.cause, number, who, sizeof who);
        break_group(w, fail_late(w, ran_ns, who));
    }
}

static void look_at_peers(nccl_watch *w, int64_t now_ns)
{
    char running[128] = "";
    awaited what = {0, load(&w->o.progress->number), w->since_ns};
    first_cause_look(w->o.cause, now_ns);
    if (w->since_ns != 0) {
        name_running(w, running, sizeof running);
        what.only = load(&w->o.progress->peers);
    } else if (w->host_waits_ns != 0) {
        what.number++; /* it is about to be launched, or recorded */
        what.since_ns = w->host_waits_ns;
    } else {
        return;
    }
    status st = first_cause_check(w->o.cause, &what, now_ns);
    if (st != STATUS_OK && running[0] != '\0')
        status_context(st, "%s", running);
    if (st != STATUS_OK)
        break_group(w, st);
}

status nccl_watch_blame(const nccl_watch *watch, status st)
{
    if (st == STATUS_PEER)
        (void)first_cause_blame(watch->o.cause);
    return st;
}

/* Left out while a call of NCCL is under way: whoever made it asks NCCL then. */
static void look_at_nccl(nccl_watch *w)
{
    nccl_comm *comm = w->o.comm;
    ncclResult_t state = ncclSuccess;
    if (pthread_mutex_trylock(&comm->lock) != 0)
        return;
    status st = NCCL_CALL(ncclCommGetAsyncError(comm->handle, &state));
    if (st == STATUS_OK)
        st = nccl_call_status(state, "a collective on the device", __FILE__, __LINE__);
    pthread_mutex_unlock(&comm->lock);
    if (st != STATUS_OK)
        break_group(w, nccl_watch_blame(w, st));
}

/* False if the watch ends, or the group is broken. */
static bool sleep_a_tick(nccl_watch *w)
{
    int64_t tick_ns = clock_deadline_ns(TICK_MS);
    pthread_mutex_lock(&w->lock);
    while (!w->ending && clock_await(&w->changed, &w->lock, tick_ns)) {
    }
    bool goes_on = !w->ending && w->broken == STATUS_OK;
    pthread_mutex_unlock(&w->lock);
    return goes_on;
}

/* Nobody has asked for the failure in time. */
static bool is_stuck(nccl_watch *w)
{
    int64_t deadline_ns = clock_deadline_ns(STUCK_MS);
    pthread_mutex_lock(&w->lock);
    bool in_time = true;
    while (in_time && !w->ending && !w->asked)
        in_time = clock_await(&w->changed, &w->lock, deadline_ns);
    bool stuck = !w->ending && !w->asked;
    pthread_mutex_unlock(&w->lock);
    return stuck;
}

/* What broke the group becomes this thread's latest failure. The lock is held, or broken is set. */
static status failure_locked(const nccl_watch *w)
{
    if (w->broken != STATUS_OK)
        status_restore(&w->failure);
    return w->broken;
}

static void *watch_main(void *arg)
{
    nccl_watch *w = arg;
    while (sleep_a_tick(w)) {
        int64_t now_ns = clock_now_ns();
        look_at_progress(w, now_ns);
        look_at_peers(w, now_ns);
        look_at_nccl(w);
        look_at_time(w, now_ns);
    }
    if (w->o.stuck != NULL && is_stuck(w))
        w->o.stuck(w->o.stuck_ctx, failure_locked(w));
    return NULL;
}

/* The lock is held. */
static void note_asked(nccl_watch *w)
{
    w->asked = w->broken != STATUS_OK;
    if (w->asked)
        pthread_cond_signal(&w->changed);
}

status nccl_watch_check(void *watch)
{
    nccl_watch *w = watch;
    pthread_mutex_lock(&w->lock);
    int64_t ran_ns = w->since_ns == 0 ? 0 : clock_now_ns() - w->since_ns;
    if (ran_ns >= (limit_ms(w) + OVERDUE_MS) * 1000000 && w->broken == STATUS_OK &&
        load(&w->o.progress->left) == w->left)
        break_locked(w, fail_late(w, ran_ns, ""));
    note_asked(w);
    status st = failure_locked(w);
    pthread_mutex_unlock(&w->lock);
    return st;
}

status nccl_watch_read(nccl_watch *watch, char *words, size_t size_bytes)
{
    pthread_mutex_lock(&watch->lock);
    note_asked(watch);
    status st = watch->broken;
    snprintf(words, size_bytes, "%s", watch->failure.text);
    pthread_mutex_unlock(&watch->lock);
    return st;
}

void nccl_watch_abort(nccl_watch *watch, const char *why)
{
    break_group(watch, FAIL(STATUS_PEER, "%s", why));
}

void nccl_watch_host_waits(nccl_watch *watch, bool waits)
{
    atomic_fetch_add(&watch->host_waits, waits ? 1 : -1);
}

static void release(nccl_watch *w)
{
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->changed);
    free(w);
}

status nccl_watch_create(const nccl_watch_options *options, nccl_watch **out)
{
    nccl_watch *w = calloc(1, sizeof *w);
    if (w == NULL)
        return FAIL(STATUS_NO_MEMORY, "a watchdog");
    w->o = *options;
    pthread_cond_init(&w->changed, NULL);
    pthread_mutex_init(&w->lock, NULL);
    status st = thread_start(watch_main, w, "the watchdog's", &w->thread);
    if (st != STATUS_OK) {
        release(w);
        return st;
    }
    *out = w;
    return STATUS_OK;
}

void nccl_watch_destroy(nccl_watch *watch)
{
    if (watch == NULL)
        return;
    pthread_mutex_lock(&watch->lock);
    watch->ending = true;
    pthread_cond_signal(&watch->changed);
    pthread_mutex_unlock(&watch->lock);
    pthread_join(watch->thread, NULL);
    release(watch);
}
