#include "dist/backends/nccl/nccl_comm.h"

#include "base/clock.h"
#include "base/thread.h"
#include "dist/membership/keys.h"
#include "dist/membership/membership.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DETAIL_BYTES = 400 };

static status status_of(ncclResult_t code)
{
    switch (code) {
    case ncclRemoteError:
        return STATUS_PEER;
    case ncclSystemError:
        return STATUS_IO;
    case ncclInvalidArgument:
    case ncclInvalidUsage:
        return STATUS_INVALID;
    default:
        return STATUS_DEVICE;
    }
}

/* NCCL's latest words in one line; they may be of an earlier failure that led to this one. */
static void read_detail(char *out)
{
    const char *words = ncclGetLastError(NULL);
    snprintf(out, DETAIL_BYTES, "%s", words != NULL ? words : "");
    for (char *c = out; *c != '\0'; c++)
        if (*c == '\n' || *c == '\r')
            *c = ' ';
    size_t length = strlen(out);
    while (length > 0 && out[length - 1] == ' ')
        out[--length] = '\0';
}

static const char *hint_of(const char *detail)
{
    if (strstr(detail, "Duplicate GPU") != NULL)
        return "; nccl needs one GPU per rank: use --backend=shm (one host) or gloo, or fewer "
               "ranks";
    return "";
}

status nccl_call_status(ncclResult_t code, const char *call, const char *file, int line)
{
    if (code == ncclSuccess || code == ncclInProgress)
        return STATUS_OK;
    char detail[DETAIL_BYTES];
    read_detail(detail);
    return status_fail(status_of(code), file, line, "%.*s: %s (%d)%s%s%s", (int)strcspn(call, "("),
                       call, ncclGetErrorString(code), (int)code, detail[0] != '\0' ? ": " : "",
                       detail, hint_of(detail));
}

/* 22809 is 2.28.9; up to 2.8 the numbers had one digit less. */
void nccl_call_version(char *out, size_t size_bytes)
{
    int code = 0;
    out[0] = '\0';
    if (ncclGetVersion(&code) != ncclSuccess)
        return;
    int unit = code >= 10000 ? 10000 : 1000;
    snprintf(out, size_bytes, "%d.%d.%d", code / unit, code % unit / 100, code % 100);
}

enum { PREFIX_BYTES = 64, FINALIZE_TIMEOUT_MS = 3000, LOOK_EVERY_MS = 100 };

/* What a rank that joins looks at meanwhile. */
typedef struct joining {
    membership ranks; /* who of this group has a communicator, and who gives up */
    first_cause *cause;
    int64_t next_look_ns;
} joining;

static status share_id(const membership *ranks, int64_t deadline_ns, ncclUniqueId *id)
{
    char value[sizeof *id + 1];
    keys_text key = keys_make(ranks->prefix, KEYS_NCCL_ID, -1);
    if (ranks->member == 0) {
        TRY(NCCL_CALL(ncclGetUniqueId(id)));
        return store_set(ranks->store, key.text, id, sizeof *id);
    }
    TRY(store_get_text(ranks->store, key.text, deadline_ns, value, sizeof value));
    memcpy(id, value, sizeof *id);
    return STATUS_OK;
}

/* An nccl_ask: whether another rank has failed or ended. */
static status look_at_others(void *ctx)
{
    joining *j = ctx;
    int64_t now_ns = clock_now_ns();
    if (now_ns < j->next_look_ns)
        return STATUS_OK;
    j->next_look_ns = now_ns + LOOK_EVERY_MS * 1000000;
    bool known = false;
    TRY(membership_hear(&j->ranks, &known));
    int dead = peers_find_ended(first_cause_peers(j->cause), 0, 0);
    return dead < 0 ? STATUS_OK : first_cause_death(j->cause, dead);
}

/* Names the first other rank that has no communicator yet. */
static status name_missing(const membership *ranks, status st)
{
    int rank = 0;
    status_kept before;
    status_keep(&before);
    bool *up = calloc((size_t)ranks->n, sizeof *up);
    if (up != NULL && membership_look(ranks, up) == STATUS_OK)
        while (rank < ranks->n && (rank == ranks->member || up[rank]))
            rank++;
    else
        rank = ranks->n;
    free(up);
    status_restore(&before);
    if (rank == ranks->n)
        return st;
    return status_context(st,
                          "rank %d has not connected (is a network in between that NCCL cannot "
                          "cross? NCCL_SOCKET_IFNAME chooses one)",
                          rank);
}

static status settle(ncclComm_t comm, const char *call, int64_t deadline_ns, const nccl_ask *ask)
{
    poll_pause pause = {0};
    for (;;) {
        ncclResult_t state = ncclSuccess;
        TRY(NCCL_CALL(ncclCommGetAsyncError(comm, &state)));
        if (state != ncclInProgress)
            return nccl_call_status(state, call, __FILE__, __LINE__);
        if (clock_passed(deadline_ns))
            return FAIL(STATUS_TIMEOUT, "%s: not done within the timeout", call);
        if (poll_pause_once(&pause))
            TRY(ask->fn(ask->ctx));
    }
}

/* The communicator becomes the parent of one whose calls block. */
static status split(nccl_comm *comm, const membership *ranks, int64_t deadline_ns,
                    const nccl_ask *ask)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    comm->parent = comm->handle;
    comm->handle = NULL;
    TRY(NCCL_CALL(ncclCommSplit(comm->parent, 0, ranks->member, &comm->handle, &config)));
    return settle(comm->parent, "ncclCommSplit", deadline_ns, ask);
}

static status join(joining *j, bool eager, int64_t deadline_ns, nccl_comm *out)
{
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    nccl_ask ask = {look_at_others, j};
    meeting up = {.record = "up", .deadline_ns = deadline_ns};
    config.blocking = 0;
    config.splitShare = eager;
    TRY(share_id(&j->ranks, deadline_ns, &id));
    pthread_mutex_lock(&out->lock);
    status st =
        NCCL_CALL(ncclCommInitRankConfig(&out->handle, j->ranks.n, id, j->ranks.member, &config));
    if (st == STATUS_OK)
        st = settle(out->handle, "ncclCommInitRankConfig", deadline_ns, &ask);
    if (st == STATUS_OK && eager)
        st = split(out, &j->ranks, deadline_ns, &ask);
    pthread_mutex_unlock(&out->lock);
    if (st == STATUS_TIMEOUT)
        return name_missing(&j->ranks, st);
    return st == STATUS_OK ? membership_arrive(&j->ranks, &up) : st;
}

void nccl_comm_init(nccl_comm *comm)
{
    comm->handle = comm->parent = NULL;
    comm->aborted = NULL;
    pthread_mutex_init(&comm->lock, NULL);
}

status nccl_comm_open(nccl_comm *comm, const group_setup *setup, first_cause *cause,
                      int64_t deadline_ns)
{
    const process_group_options *o = setup->options;
    char prefix[PREFIX_BYTES];
    snprintf(prefix, sizeof prefix, "%snccl/", setup->prefix);
    joining j = {.ranks = {.store = o->store,
                           .prefix = prefix,
                           .member = o->rank,
                           .n = o->world_size,
                           .noun = "rank"},
                 .cause = cause};
    status st = join(&j, o->eager, deadline_ns, comm);
    if (st != STATUS_OK && st != STATUS_PEER && st != STATUS_TIMEOUT)
        (void)membership_give_up(&j.ranks, STATUS_PEER);
    return st;
}

status nccl_comm_settle(nccl_comm *comm, const char *call, int64_t deadline_ns, const nccl_ask *ask)
{
    return settle(comm->handle, call, deadline_ns, ask);
}

/* Whoever takes what a collective left on the device looks at `aborted` first. */
static void say_and_abort(const nccl_comm *comm, ncclComm_t handle)
{
    if (comm->aborted != NULL)
        __atomic_store_n(comm->aborted, 1, __ATOMIC_SEQ_CST);
    (void)NCCL_CALL(ncclCommAbort(handle));
}

void nccl_comm_interrupt(nccl_comm *comm)
{
    ncclComm_t parent = comm->parent;
    comm->parent = NULL;
    say_and_abort(comm, parent);
}

static status never(void *ctx)
{
    (void)ctx;
    return STATUS_OK;
}

static status take_leave(nccl_comm *comm)
{
    nccl_ask ask = {never, NULL};
    if (comm->parent != NULL) { /* which has what is shared, and so takes the leave of both */
        ncclComm_t child = comm->handle;
        comm->handle = comm->parent;
        comm->parent = NULL;
        TRY(NCCL_CALL(ncclCommDestroy(child)));
    }
    TRY(NCCL_CALL(ncclCommFinalize(comm->handle)));
    TRY(nccl_comm_settle(comm, "ncclCommFinalize", clock_deadline_ns(FINALIZE_TIMEOUT_MS), &ask));
    ncclComm_t handle = comm->handle;
    comm->handle = NULL;
    return NCCL_CALL(ncclCommDestroy(handle));
}

void nccl_comm_close(nccl_comm *comm, bool well)
{
    pthread_mutex_lock(&comm->lock);
    if (comm->handle != NULL && well)
        (void)take_leave(comm);
    if (comm->parent != NULL)
        nccl_comm_interrupt(comm); /* also ends the split, which may yet set the handle */
    if (comm->handle != NULL)
        say_and_abort(comm, comm->handle);
    comm->handle = NULL;
    pthread_mutex_unlock(&comm->lock);
    pthread_mutex_destroy(&comm->lock);
}

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

enum {
    TICK_MS = 20,
    OVERDUE_MS = 1000, /* for the watchdog's better explanation */
    STUCK_MS = 10000,  /* after the failure: longer than a checkpoint takes */
};

struct nccl_watch {
    nccl_watch_options o;
    pthread_t thread;

    /* The thread's own. */
    bool told;             /* that this rank waits */
    int64_t host_waits_ns; /* call_ns */
    pthread_t interrupter;
    bool interrupts; /* that is started */

    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    bool ending;
    uint64_t left;       /* when the thread last looked */
    int64_t since_ns;    /* a collective has run since then and none ended; 0: none runs */
    int64_t call_ns;     /* a call of NCCL has been under way since then; 0: none is */
    int64_t call_ms;     /* how long it may */
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
    w->host_waits_ns = w->call_ns;
    bool late = w->call_ns != 0 && now_ns - w->call_ns >= w->call_ms * 1000000;
    pthread_mutex_unlock(&w->lock);
    if (late && w->o.comm->parent != NULL) /* of another one the caller sees it */
        break_group(w, FAIL(STATUS_TIMEOUT, "a call of NCCL has not returned for %.1f s",
                            clock_seconds(now_ns - w->host_waits_ns)));
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

static void *interrupt_main(void *arg)
{
    nccl_comm_interrupt(arg);
    return NULL;
}

/* The group is broken, or the watch ends: no call begins any more. */
static void interrupt(nccl_watch *w)
{
    pthread_mutex_lock(&w->lock);
    bool waits = w->call_ns != 0 && w->o.comm->parent != NULL;
    pthread_mutex_unlock(&w->lock);
    w->interrupts = waits && thread_start(interrupt_main, w->o.comm, "what ends a call of NCCL's",
                                          &w->interrupter) == STATUS_OK;
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
    interrupt(w);
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

static status set_call(nccl_watch *w, int64_t since_ns, int64_t timeout_ms)
{
    pthread_mutex_lock(&w->lock);
    note_asked(w);
    status st = failure_locked(w);
    w->call_ns = st == STATUS_OK ? since_ns : 0;
    w->call_ms = timeout_ms;
    pthread_mutex_unlock(&w->lock);
    return st;
}

status nccl_watch_enter(nccl_watch *watch, int64_t timeout_ms)
{
    return set_call(watch, clock_now_ns(), timeout_ms);
}

status nccl_watch_leave(nccl_watch *watch)
{
    return set_call(watch, 0, 0);
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
    if (watch->interrupts)
        pthread_join(watch->interrupter, NULL);
    release(watch);
}
