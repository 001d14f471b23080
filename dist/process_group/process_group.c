/* What stands before every backend: checks, numbers, the trivial cases, staging, the order of
 * waits, times, and the rule that a failed collective breaks its group for good. So backends stay
 * small.
 *
 * If the backend takes host memory only, a collective on device memory is held back until its data
 * has been copied out; process_group_wait waits for that. All launched after it are held back too:
 * a backend gets the collectives in the same order on all ranks. While the first bucket of a
 * backward pass is waited for, the device computes the rest.
 */
#include "dist/process_group/process_group.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/spares.h"
#include "dist/collective/collective.h"
#include "dist/collective/process_group_ops.h"
#include "dist/health/flight_recorder.h"
#include "dist/health/rank_status.h"
#include "dist/process_group/allocations.h"
#include "dist/process_group/backend_choice.h"
#include "dist/process_group/first_runs.h"
#include "dist/process_group/injected_delay.h"
#include "dist/process_group/process_group_check.h"
#include "dist/process_group/process_group_launch.h"
#include "dist/process_group/staging.h"
#include "kernels/ops.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    STAGING_SLACK_BYTES = 4 << 10,   /* what rounding up the buckets' sizes can cost */
    STAGING_CHUNK_BYTES = 256 << 10, /* at least, beyond the group's own memory */
};

typedef enum work_state {
    WORK_HELD,       /* its data, or that of works before it, is on its way to host memory */
    WORK_AT_BACKEND, /* `inner` is to be waited for */
    WORK_DONE,
} work_state;

struct work {
    work *next;
    collective what;
    device_stream *stream; /* NULL: host memory */
    staged *copy;          /* in host memory, or NULL */
    work_state state;
    void *inner;
    int64_t began_ns;   /* launched; with a backend that works in wait(), waited for */
    int64_t done_ns;    /* 0: not known */
    int64_t arrives_ns; /* not done before; 0: no such limit */
};

struct process_group {
    const process_group_ops *ops; /* NULL for one rank */
    void *self;
    device *dev; /* NULL: host memory only */
    int rank, world_size;
    int64_t timeout_ms, patience_ms;
    bool one_host;

    pthread_mutex_t lock; /* of all below */
    first_runs known;
    status broken;
    status_kept failure; /* why it is broken */
    uint64_t seq;        /* of the latest collective */
    rank_traffic moved;
    work *first, *last; /* launched and not waited for, oldest first */
    int held;           /* of them */
    spares works;
    injected_delay delay;
    size_t shared_left;
    allocations memory;
    staging *staging; /* NULL until it is needed */
    flight_recorder recorder;
    rank_status *page; /* the rank's status page; NULL: none */
};

/* The lock is held. Keeps the first failure. */
static status break_locked(process_group *group, status st)
{
    if (group->broken == STATUS_OK) {
        group->broken = st;
        status_keep(&group->failure);
    }
    return st;
}

static status broken_locked(process_group *group)
{
    if (group->broken == STATUS_OK)
        return STATUS_OK;
    status_restore(&group->failure);
    return status_context(group->broken, "the process group is broken since");
}

/* Says which collective failed. */
static status name_failure(const process_group *group, const collective *c, status st)
{
    return status_context(st, "%s #%" PRIu64 " on rank %d (%s)", collective_kind_name(c->kind),
                          c->seq, group->rank, process_group_backend(group));
}

static status open_backend(process_group *group, const process_group_options *options)
{
    backend_choice choice = {.ops = &local_ops, .one_host = true};
    if (options->hub == NULL)
        TRY(backend_choice_make(options, &choice));
    group_setup setup = {options, choice.prefix, choice.one_host};
    if (choice.ops->device_memory && options->inject_delay_ms > 0)
        return FAIL(STATUS_INVALID,
                    "an injected delay needs a backend on host memory: %s works on the "
                    "device, so use --backend=%s with it",
                    choice.ops->name, choice.one_host ? "shm" : "gloo");
    TRY(choice.ops->create(&setup, &group->self));
    group->ops = choice.ops;
    group->one_host = choice.one_host;
    return STATUS_OK;
}

status process_group_create(const process_group_options *options, process_group **out)
{
    TRY(process_group_check_options(options));
    process_group *group = calloc(1, sizeof *group);
    if (group == NULL)
        return FAIL(STATUS_NO_MEMORY, "a process group");
    group->dev = options->device;
    group->rank = options->rank;
    group->world_size = options->world_size;
    group->timeout_ms = options->timeout_ms;
    group->patience_ms = process_group_patience_ms(options);
    group->delay.delay_ns = options->inject_delay_ms * 1000000;
    group->shared_left = options->shared_bytes;
    group->page = options->page;
    group->recorder.lane = options->lane;
    group->one_host = true;
    status st = options->world_size > 1 ? open_backend(group, options) : STATUS_OK;
    if (st != STATUS_OK) {
        free(group);
        return status_context(st, "process group of rank %d", options->rank);
    }
    pthread_mutex_init(&group->lock, NULL);
    *out = group;
    return STATUS_OK;
}

void process_group_write_flight_record(process_group *group, FILE *file)
{
    pthread_mutex_lock(&group->lock);
    flight_recorder_write(&group->recorder, file);
    pthread_mutex_unlock(&group->lock);
}

void process_group_destroy(process_group *group)
{
    if (group == NULL)
        return;
    if (group->staging != NULL) /* its copies may be under way; without peers they come to an end */
        (void)group->dev->ops->synchronize(group->dev);
    while (group->first != NULL) {
        work *w = group->first;
        group->first = w->next;
        if (w->copy != NULL)
            staging_release(group->staging, w->copy);
        free(w);
    }
    spares_free(&group->works);
    staging_destroy(group->staging); /* unpins memory that the backend is about to unmap */
    if (group->ops != NULL)
        group->ops->destroy(group->self);
    allocations_free(&group->memory);
    pthread_mutex_destroy(&group->lock);
    free(group);
}

int process_group_rank(const process_group *group)
{
    return group->rank;
}

int process_group_world_size(const process_group *group)
{
    return group->world_size;
}

const char *process_group_backend(const process_group *group)
{
    return group->ops == NULL ? "none" : group->ops->name;
}

bool process_group_is_on_one_host(const process_group *group)
{
    return group->one_host;
}

void process_group_traffic(process_group *group, uint64_t *sent, uint64_t *received)
{
    pthread_mutex_lock(&group->lock);
    *sent = group->moved.sent;
    *received = group->moved.received;
    pthread_mutex_unlock(&group->lock);
}

bool process_group_can_be_captured(const process_group *group)
{
    return group->ops == NULL || group->ops->device_memory;
}

status process_group_check(process_group *group)
{
    pthread_mutex_lock(&group->lock);
    status st = broken_locked(group);
    if (st == STATUS_OK && group->ops != NULL && group->ops->check != NULL) {
        st = group->ops->check(group->self);
        if (st != STATUS_OK) {
            status_context(st, "rank %d (%s)", group->rank, group->ops->name);
            break_locked(group, st);
        }
    }
    pthread_mutex_unlock(&group->lock);
    return st;
}

status process_group_keep_label(process_group *group, const char *text, const char **out)
{
    char *copy = NULL;
    pthread_mutex_lock(&group->lock);
    status st = allocations_add(&group->memory, strlen(text) + 1, (void **)&copy);
    pthread_mutex_unlock(&group->lock);
    if (st == STATUS_OK)
        *out = strcpy(copy, text);
    return st;
}

status process_group_alloc(process_group *group, size_t size_bytes, void **out)
{
    status st = STATUS_OK;
    pthread_mutex_lock(&group->lock);
    if (size_bytes > group->shared_left)
        st =
            FAIL(STATUS_NO_MEMORY,
                 "%zu bytes asked of the process group, %zu left: create it with more shared_bytes",
                 size_bytes, group->shared_left);
    else if (group->ops != NULL && group->ops->alloc != NULL)
        st = group->ops->alloc(group->self, size_bytes, out);
    else
        st = allocations_add(&group->memory, size_bytes, out);
    if (st == STATUS_OK)
        group->shared_left -= size_bytes;
    pthread_mutex_unlock(&group->lock);
    return st;
}

/* A staging_memory_fn. Hands out what is left of the group's memory, whole and once: there the
 * backend needs no copies. */
static status staging_memory(void *ctx, size_t size_bytes, void **out, size_t *got_bytes)
{
    process_group *group = ctx;
    size_t left = group->shared_left + STAGING_SLACK_BYTES;
    if (group->shared_left > 0 && size_bytes <= left && group->ops != NULL &&
        group->ops->alloc != NULL && group->ops->alloc(group->self, left, out) == STATUS_OK) {
        group->shared_left = 0;
        *got_bytes = left;
        return STATUS_OK;
    }
    /* Whole pages of its own: those are what is pinned, and none can be pinned twice. */
    size_t page = memory_page_bytes(), above = 0;
    *got_bytes = size_bytes > STAGING_CHUNK_BYTES ? size_bytes : STAGING_CHUNK_BYTES;
    if (__builtin_add_overflow(*got_bytes, 2 * page, &above))
        return FAIL(STATUS_NO_MEMORY, "cannot allocate %zu bytes", *got_bytes);
    *got_bytes = (*got_bytes + page - 1) / page * page;
    void *memory = NULL;
    TRY(allocations_add(&group->memory, *got_bytes + page, &memory));
    *out = (char *)memory + (page - (uintptr_t)memory % page) % page;
    return STATUS_OK;
}

/* The lock is held. */
static status hold(process_group *group, work *w)
{
    const collective *c = &w->what;
    bool needs_copy = w->stream != NULL && (group->ops == NULL || !group->ops->device_memory);
    if (needs_copy) {
        if (group->staging == NULL)
            TRY(staging_create(group->dev, staging_memory, group, &group->staging));
        TRY(staging_copy_out(group->staging, c, collective_in_bytes(c, group->world_size),
                             collective_out_bytes(c, group->rank, group->world_size), &w->copy));
    }
    w->state = WORK_HELD;
    group->held++;
    return STATUS_OK;
}

/* The lock is held; data that had to be copied has been. */
static status launch_at_backend(process_group *group, work *w)
{
    const collective *c = w->copy != NULL ? &w->copy->host : &w->what;
    w->began_ns = clock_now_ns();
    if (group->ops == NULL) { /* one rank, and scaled */
        collective_do_alone(c);
        w->done_ns = clock_now_ns();
        w->state = WORK_DONE;
        return STATUS_OK;
    }
    if (group->delay.delay_ns > 0 && c->kind == COLLECTIVE_ALL_REDUCE)
        w->arrives_ns = injected_delay_send(&group->delay);
    bool on_device = w->stream != NULL && w->copy == NULL;
    TRY(group->ops->launch(group->self, c, on_device ? w->stream : NULL, &w->inner));
    w->state = WORK_AT_BACKEND;
    return STATUS_OK;
}

/* No peer, or nothing to send. */
static status do_alone(process_group *group, work *w)
{
    const collective *c = &w->what;
    bool scaled = c->prescale < 1 || c->prescale > 1;
    w->began_ns = clock_now_ns();
    w->state = WORK_DONE;
    if (w->stream == NULL || c->count == 0) {
        collective_do_alone(c);
        w->done_ns = clock_now_ns();
        return STATUS_OK;
    }
    if (scaled) /* rare: DDP's factor for one rank is 1 */
        return hold(group, w);
    size_t size_bytes = collective_out_bytes(c, 0, 1);
    return c->in == c->out ? STATUS_OK
                           : group->dev->ops->copy(group->dev, c->out, c->in, size_bytes);
}

/* The lock is held. */
static status start(process_group *group, work *w)
{
    if (group->ops == NULL || (w->what.count == 0 && w->what.kind != COLLECTIVE_BARRIER))
        return do_alone(group, w);
    bool needs_copy = w->stream != NULL && !group->ops->device_memory;
    return needs_copy || group->held > 0 ? hold(group, w) : launch_at_backend(group, w);
}

static void count_traffic(process_group *group, const collective *c)
{
    if (group->ops == NULL)
        return;
    rank_traffic moves = group->ops->traffic(c, group->rank, group->world_size);
    group->moved.sent += moves.sent;
    group->moved.received += moves.received;
}

static status check_stream(const process_group *group, const device_stream *stream)
{
    if (stream == NULL || (group->dev != NULL && group->dev->stream == stream))
        return STATUS_OK;
    return FAIL(STATUS_INVALID, "the process group was not created for the device of this stream");
}

status process_group_launch(process_group *group, const collective *c, device_stream *stream,
                            work **out_work)
{
    TRY(collective_check(c, group->rank, group->world_size));
    TRY(check_stream(group, stream));
    pthread_mutex_lock(&group->lock);
    work *w = spares_take(&group->works, sizeof *w);
    status st =
        w != NULL ? broken_locked(group) : FAIL(STATUS_NO_MEMORY, "a work of %zu bytes", sizeof *w);
    if (st == STATUS_OK) {
        w->what = *c;
        w->stream = stream;
        w->what.seq = ++group->seq;
        bool first = first_runs_note(&group->known, c);
        w->what.timeout_ms = first ? group->patience_ms : group->timeout_ms;
        flight_recorder_launch(&group->recorder, &w->what, stream != NULL, clock_now_ns());
        rank_status_launch(group->page, &w->what);
        count_traffic(group, &w->what);
        st = start(group, w);
        if (st != STATUS_OK) {
            flight_recorder_end(&group->recorder, w->what.seq, false, clock_now_ns());
            break_locked(group, name_failure(group, &w->what, st));
        }
    }
    if (st == STATUS_OK) {
        *(group->first == NULL ? &group->first : &group->last->next) = w;
        *out_work = group->last = w;
    } else if (w != NULL) {
        spares_give(&group->works, w);
    }
    pthread_mutex_unlock(&group->lock);
    return st;
}

status process_group_check_idle(process_group *group, collective_kind kind)
{
    pthread_mutex_lock(&group->lock);
    status st = broken_locked(group);
    if (st == STATUS_OK && group->first != NULL)
        st = FAIL(STATUS_INVALID, "a blocking %s while %s #%" PRIu64 " is still to be waited for",
                  collective_kind_name(kind), collective_kind_name(group->first->what.kind),
                  group->first->what.seq);
    pthread_mutex_unlock(&group->lock);
    return st;
}

static void note_wait(process_group *group, const work *w)
{
    int64_t now_ns = clock_now_ns();
    flight_recorder_wait(&group->recorder, w->what.seq, now_ns);
    rank_status_wait(group->page, &w->what, now_ns);
}

static void note_end(process_group *group, const work *w, status st)
{
    int64_t end_ns = st == STATUS_OK && w->done_ns > 0 ? w->done_ns : clock_now_ns();
    flight_recorder_end(&group->recorder, w->what.seq, st == STATUS_OK, end_ns);
    if (st == STATUS_OK)
        rank_status_end_wait(group->page);
}

/* Takes `w` off the list; it must be the oldest. */
static status take(process_group *group, work *w)
{
    pthread_mutex_lock(&group->lock);
    status st = broken_locked(group);
    if (group->first != w && st == STATUS_OK) {
        st = FAIL(STATUS_INVALID,
                  "%s #%" PRIu64 " waited for before #%" PRIu64
                  ": works are waited for once each, in the order of their launch",
                  collective_kind_name(w->what.kind), w->what.seq,
                  group->first == NULL ? 0 : group->first->what.seq);
        break_locked(group, st);
    }
    work *before = NULL;
    for (work *i = group->first; i != NULL && i != w; i = i->next)
        before = i;
    *(before == NULL ? &group->first : &before->next) = w->next;
    if (group->last == w)
        group->last = before;
    if (st == STATUS_OK)
        note_wait(group, w);
    pthread_mutex_unlock(&group->lock);
    return st;
}

/* Launches `w`, the oldest, and what was held back only because of it. */
static status launch_held(process_group *group, work *w)
{
    if (w->copy != NULL)
        TRY(staging_wait(group->staging, w->copy));
    pthread_mutex_lock(&group->lock);
    status st = launch_at_backend(group, w);
    group->held--;
    for (work *i = group->first;
         st == STATUS_OK && i != NULL && i->state != WORK_AT_BACKEND && i->copy == NULL;
         i = i->next)
        if (i->state == WORK_HELD) {
            st = launch_at_backend(group, i);
            group->held--;
        }
    pthread_mutex_unlock(&group->lock);
    return st;
}

static status finish(process_group *group, work *w)
{
    if (w->state == WORK_HELD)
        TRY(launch_held(group, w));
    int64_t deadline_ns = clock_deadline_ns(w->what.timeout_ms);
    if (w->state == WORK_AT_BACKEND) {
        bool delayed = w->arrives_ns > 0; /* an injected delay passes since the launch */
        if (group->ops->works_in_wait && !delayed)
            w->began_ns = clock_now_ns();
        TRY(group->ops->wait(group->self, w->inner, deadline_ns, &w->done_ns));
    }
    TRY(injected_delay_wait(w->arrives_ns, deadline_ns, &w->done_ns));
    return w->copy == NULL ? STATUS_OK : staging_copy_in(group->staging, w->copy, w->what.out);
}

status process_group_wait(process_group *group, work *w, int64_t *elapsed_ns)
{
    status taken = take(group, w), st = taken;
    if (st == STATUS_OK) {
        st = finish(group, w);
        if (st != STATUS_OK)
            name_failure(group, &w->what, st);
    }
    pthread_mutex_lock(&group->lock);
    if (taken == STATUS_OK && st != STATUS_OK)
        break_locked(group, st);
    if (taken == STATUS_OK)
        note_end(group, w, st);
    if (w->copy != NULL)
        staging_release(group->staging, w->copy);
    if (st == STATUS_OK && elapsed_ns != NULL)
        *elapsed_ns = w->done_ns > 0 ? w->done_ns - w->began_ns : 0;
    spares_give(&group->works, w);
    pthread_mutex_unlock(&group->lock);
    return st;
}
