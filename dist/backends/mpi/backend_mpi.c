/* Collectives by MPI, as a module: the program runs without MPI.
 *
 * launch() starts the nonblocking call. MPI moves data only while a process calls it, so most of it
 * moves in wait(), which calls MPI_Test until it is done; and a little in each launch().
 * Meanwhile wait() looks whether the other ranks live: MPI does not tell a process that another one
 * has ended. MPI's launcher ends all others then, about a second later.
 */
#include "base/clock.h"
#include "base/digest.h"
#include "base/memory.h"
#include "base/module.h"
#include "base/text.h"
#include "dist/backends/mpi/mpi_process.h"
#include "dist/backends/mpi/mpi_requests.h"
#include "dist/collective/process_group_ops.h"
#include "dist/health/first_cause.h"
#include "dist/membership/membership.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    PREFIX_BYTES = 80,
    SPINS = 20,          /* tests before this thread leaves the core to others */
    NAP_NS = 100 * 1000, /* between two tests, once it has waited PATIENT_MS: a rank is late */
    PATIENT_MS = 200,
    LOOK_MS = 10, /* between two looks at the other ranks */
    GOODBYE_MS = 2000,
    TAGS = 1 << 15, /* MPI promises as many */
};

typedef struct mpi_work {
    struct mpi_work *next;
    collective what;
    mpi_requests requests;
} mpi_work;

typedef struct mpi_group {
    mpi_place place;
    first_cause *cause;
    uint64_t done;    /* the latest collective that is, sends and receives aside */
    departure end;    /* why it has failed */
    MPI_Comm goodbye; /* of its own: MPI would add up who leaves early with those that go on */
    atomic_bool aborted;
    char why[128]; /* set before `aborted` */

    pthread_mutex_t lock; /* of the queue: launches may come from another thread than waits */
    mpi_work *first, *last;
    spares works;
} mpi_group;

/* A wait for one work. */
typedef struct waiting {
    const collective *what;
    int64_t since_ns, deadline_ns, look_ns;
    bool told; /* the others, that this rank waits */
} waiting;

static status fail_late(const mpi_group *g, const waiting *w)
{
    const collective *c = w->what;
    char who[256] = "";
    if (!collective_is_send_or_recv(c->kind))
        first_cause_name_late(g->cause, c->seq, who, sizeof who);
    else if (peers_find_stopped(first_cause_peers(g->cause), c->root) == c->root)
        snprintf(who, sizeof who, ": rank %d is stopped", c->root);
    else
        snprintf(who, sizeof who, ": rank %d has not come", c->root);
    return FAIL(STATUS_TIMEOUT, "waited %.1f s%s", clock_seconds(clock_now_ns() - w->since_ns),
                who);
}

static status check_aborted(const mpi_group *g)
{
    return atomic_load(&g->aborted) ? FAIL(STATUS_PEER, "%s", g->why) : STATUS_OK;
}

/* Whether it is worth waiting on. */
static status look_at_others(const mpi_group *g, waiting *w, int64_t now_ns)
{
    const collective *c = w->what;
    bool between_two = collective_is_send_or_recv(c->kind);
    awaited what = {between_two ? first_cause_bit(c->root) : 0, c->seq, w->since_ns};
    w->look_ns = now_ns + LOOK_MS * INT64_C(1000000);
    TRY(check_aborted(g));
    if (!w->told && !between_two && now_ns - w->since_ns > (w->deadline_ns - w->since_ns) / 2) {
        w->told = true;
        first_cause_tell_waiting(g->cause, c->seq);
    }
    first_cause_look(g->cause, now_ns);
    TRY(first_cause_check(g->cause, &what, now_ns));
    return now_ns >= w->deadline_ns ? fail_late(g, w) : STATUS_OK;
}

/* MPI's words are this thread's message: who is to blame, if that can be seen. */
static status blame(const mpi_group *g, status st)
{
    if (st == STATUS_PEER)
        (void)first_cause_blame(g->cause);
    return st;
}

static status start(const mpi_group *g, const mpi_place *place, const collective *c,
                    mpi_requests *r)
{
    TRY(mpi_process_enter());
    status st = mpi_requests_start(place, c, r);
    mpi_process_leave();
    return blame(g, st);
}

static status test(const mpi_group *g, mpi_requests *r, bool *done)
{
    TRY(mpi_process_enter());
    status st = mpi_requests_test(r, done);
    mpi_process_leave();
    return blame(g, st);
}

static status await(const mpi_group *g, const collective *c, mpi_requests *r, int64_t deadline_ns)
{
    const struct timespec nap = {.tv_nsec = NAP_NS};
    waiting w = {.what = c, .since_ns = clock_now_ns(), .deadline_ns = deadline_ns};
    w.look_ns = w.since_ns + LOOK_MS * INT64_C(1000000);
    for (int tests = 1;; tests++) {
        bool done = false;
        TRY(test(g, r, &done));
        if (done)
            return STATUS_OK;
        if (tests < SPINS)
            continue;
        int64_t now_ns = clock_now_ns();
        if (now_ns >= w.look_ns || now_ns >= deadline_ns)
            TRY(look_at_others(g, &w, now_ns));
        if (now_ns - w.since_ns < PATIENT_MS * INT64_C(1000000))
            sched_yield();
        else
            nanosleep(&nap, NULL);
    }
}

/* What the peers hear when this rank leaves. */
static status note_failure(mpi_group *g, status st)
{
    if (st != STATUS_OK && g->end.why == STATUS_OK) {
        g->end.why = st;
        snprintf(g->end.words, sizeof g->end.words, "%.500s", status_text());
    }
    return st;
}

static status mpi_launch(void *self, const collective *c, device_stream *stream, void **out_work)
{
    (void)stream;
    mpi_group *g = self;
    pthread_mutex_lock(&g->lock);
    mpi_work *w = spares_take(&g->works, sizeof *w);
    pthread_mutex_unlock(&g->lock);
    if (w == NULL)
        return FAIL(STATUS_NO_MEMORY, "a work of %zu bytes", sizeof *w);
    w->what = *c;
    status st = start(g, &g->place, c, &w->requests);
    pthread_mutex_lock(&g->lock);
    *(g->first == NULL ? &g->first : &g->last->next) = w; /* also if MPI has some of it */
    g->last = w;
    (void)note_failure(g, st);
    pthread_mutex_unlock(&g->lock);
    *out_work = w;
    return st;
}

static status mpi_wait(void *self, void *work_, int64_t deadline_ns, int64_t *done_ns)
{
    mpi_group *g = self;
    mpi_work *w = work_;
    status st = await(g, &w->what, &w->requests, deadline_ns);
    if (st == STATUS_OK)
        st = mpi_requests_finish(&g->place, &w->what, &w->requests);
    *done_ns = clock_now_ns();
    pthread_mutex_lock(&g->lock);
    (void)note_failure(g, st);
    if (st == STATUS_OK) { /* else MPI may still write to it */
        ASSERT(g->first == w);
        g->first = w->next;
        if (!collective_is_send_or_recv(w->what.kind))
            g->done = w->what.seq;
        spares_give(&g->works, w);
    }
    pthread_mutex_unlock(&g->lock);
    return st;
}

/* A rank that ends MPI waits for all others to do so. So all meet once more, and who does not come
 * is not waited for. */
static bool say_goodbye(mpi_group *g)
{
    collective last = {.kind = COLLECTIVE_BARRIER, .seq = g->done + 1};
    const mpi_place place = {g->goodbye, g->place.rank, g->place.world_size};
    mpi_requests r = {0};
    status st = start(g, &place, &last, &r);
    if (st == STATUS_OK)
        st = await(g, &last, &r, clock_deadline_ns(GOODBYE_MS));
    return st == STATUS_OK;
}

/* Works that were not done when their group ended: MPI may write to them. */
static mpi_work *abandoned;

static void mpi_abort(void *self, const char *why)
{
    mpi_group *g = self;
    snprintf(g->why, sizeof g->why, "%s", why);
    atomic_store(&g->aborted, true);
}

static void mpi_destroy(void *self)
{
    mpi_group *g = self;
    bool was_made = g->goodbye != MPI_COMM_NULL;
    (void)note_failure(g, check_aborted(g)); /* it may have come between two collectives */
    bool well = was_made && g->end.why == STATUS_OK && g->first == NULL && say_goodbye(g);
    g->end.number = g->done;
    if (g->cause != NULL)
        first_cause_depart(g->cause, &g->end);
    if (well && mpi_process_enter() == STATUS_OK) {
        MPI_Comm_free(&g->place.comm);
        MPI_Comm_free(&g->goodbye);
        mpi_process_leave();
    }
    if (g->first != NULL) {
        g->last->next = abandoned;
        abandoned = g->first;
    }
    if (was_made)
        mpi_process_close(well);
    spares_free(&g->works);
    first_cause_destroy(g->cause);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

/* A meeting's compare(): the ranks' numbers in MPI_COMM_WORLD, if one job of MPI has them all. */
static status list_numbers(void *ctx, char *const records[], char **outcome)
{
    int n = *(const int *)ctx;
    text_stream list;
    const char *job = strchr(records[0], ' ');
    for (int rank = 1; rank < n; rank++) {
        const char *other = strchr(records[rank], ' ');
        if (job == NULL || other == NULL || strcmp(job, other) != 0)
            return FAIL(STATUS_INVALID,
                        "backend mpi: ranks 0 and %d were not started by the same mpirun", rank);
    }
    TRY(text_stream_open(&list));
    for (int rank = 0; rank < n; rank++)
        fprintf(list.file, "%d ", atoi(records[rank]));
    return text_stream_close(&list, outcome, NULL);
}

/* world[i]: rank i's number in MPI_COMM_WORLD. */
static status meet(const group_setup *setup, int64_t deadline_ns, int *world)
{
    const process_group_options *o = setup->options;
    char prefix[PREFIX_BYTES], record[400], *list = NULL, *at;
    int n = o->world_size, own = 0;
    snprintf(prefix, sizeof prefix, "%smpi/", setup->prefix);
    membership ranks = {
        .store = o->store, .prefix = prefix, .member = o->rank, .n = n, .noun = "rank"};
    meeting how = {.record = record,
                   .deadline_ns = deadline_ns,
                   .late = "has not begun MPI in time",
                   .compare = list_numbers,
                   .ctx = &n};
    MPI_Comm_rank(MPI_COMM_WORLD, &own);
    snprintf(record, sizeof record, "%d %.300s", own, mpi_process_job());
    TRY(membership_meet(&ranks, &how, &list));
    at = list;
    for (int rank = 0; rank < n; rank++)
        world[rank] = (int)strtol(at, &at, 10);
    free(list);
    return STATUS_OK;
}

static status open_group(mpi_group *g, const group_setup *setup, int *world)
{
    int64_t deadline_ns = clock_deadline_ns(process_group_patience_ms(setup->options));
    status st = mpi_process_check();
    if (st != STATUS_OK) {
        peers_decline(setup);
        return st;
    }
    TRY(first_cause_create(setup, NULL, deadline_ns, &g->cause));
    TRY(mpi_process_open(deadline_ns));
    st = meet(setup, deadline_ns, world);
    int tag = (int)(fnv1a(FNV1A_START, setup->prefix, strlen(setup->prefix)) % TAGS);
    if (st == STATUS_OK)
        st = mpi_process_make_comm(world, g->place.world_size, tag, deadline_ns, &g->place.comm);
    if (st == STATUS_OK)
        st = mpi_process_make_comm(world, g->place.world_size, tag, deadline_ns, &g->goodbye);
    if (st != STATUS_OK)
        mpi_process_close(false);
    return st;
}

static status mpi_create(const group_setup *setup, void **self)
{
    const process_group_options *o = setup->options;
    mpi_group *g = calloc(1, sizeof *g);
    int *world = calloc((size_t)o->world_size, sizeof *world);
    status st = STATUS_OK;
    if (g == NULL || world == NULL) {
        free(g);
        free(world);
        return FAIL(STATUS_NO_MEMORY, "an mpi group of %d ranks", o->world_size);
    }
    g->place = (mpi_place){MPI_COMM_NULL, o->rank, o->world_size};
    g->goodbye = MPI_COMM_NULL;
    pthread_mutex_init(&g->lock, NULL);
    st = open_group(g, setup, world);
    free(world);
    if (st != STATUS_OK) {
        status_kept cause; /* what follows is of less interest */
        status_keep(&cause);
        g->end.why = st;
        snprintf(g->end.words, sizeof g->end.words, "%.500s", cause.text);
        mpi_destroy(g);
        status_restore(&cause);
        return st;
    }
    *self = g;
    return STATUS_OK;
}

static void mpi_version(char *out, size_t size_bytes)
{
    char text[MPI_MAX_LIBRARY_VERSION_STRING + 1] = "", number[32] = "";
    int length = 0;
    (void)MPI_Get_library_version(text, &length);
    if (sscanf(text, "Open MPI v%31[0-9.]", number) != 1)
        snprintf(number, sizeof number, "%.31s", text);
    snprintf(out, size_bytes, "%s", number);
}

/* MPI does not say what it moves: what is told is nominal. */
static const process_group_ops mpi_ops = {
    .name = "mpi",
    .device_memory = false,
    .works_in_wait = true,
    .create = mpi_create,
    .launch = mpi_launch,
    .wait = mpi_wait,
    .abort = mpi_abort,
    .destroy = mpi_destroy,
    .traffic = collective_star_traffic,
    .version = mpi_version,
};

extern const module mnist_ddp_module;
const module mnist_ddp_module __attribute__((visibility("default"))) = {
    .abi_version = MODULE_ABI_VERSION, .process_group = &mpi_ops};
