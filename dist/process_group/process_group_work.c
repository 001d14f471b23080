/* What stands before every backend: checks, numbers, the trivial cases, staging, the order of
 * waits, times, and the rule that a failed collective breaks its group for good. So backends stay
 * small.
 *
 * If the backend takes host memory only, a collective on device memory is held back until its data
 * has been copied out; process_group_wait waits for that. All launched after it are held back too:
 * a backend gets the collectives in the same order on all ranks. While the first bucket of a
 * backward pass is waited for, the device computes the rest. Sends and receives are launched at the
 * next wait, whatever is waited for.
 */
#include "dist/process_group/process_group_state.h"

#include "base/clock.h"
#include "base/memory.h"
#include "dist/collective/collective.h"
#include "dist/collective/process_group_ops.h"
#include "dist/health/flight_recorder.h"
#include "dist/health/rank_status.h"
#include "dist/process_group/backend_choice.h"
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

/* Says which collective failed. */
static status name_failure(const process_group *group, const collective *c, status st)
{
    return status_context(st, "%s #%" PRIu64 " on rank %d (%s)", collective_kind_name(c->kind),
                          c->seq, group->rank, process_group_backend(group));
}

/* The same for what another thread may have ended: that one knows why. */
static status explain_failure(process_group *group, const collective *c, status st)
{
    pthread_mutex_lock(&group->abort_lock);
    if (group->aborted) {
        status_restore(&group->why);
        st = STATUS_PEER;
    }
    pthread_mutex_unlock(&group->abort_lock);
    return name_failure(group, c, st);
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
        TRY(staging_copy_out(group->staging, c,
                             collective_in_bytes(c, group->rank, group->world_size),
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

static bool is_alone(const process_group *group, const collective *c)
{
    return group->ops == NULL || (c->count == 0 && c->kind != COLLECTIVE_BARRIER);
}

/* The lock is held. */
static status start(process_group *group, work *w)
{
    if (is_alone(group, &w->what))
        return do_alone(group, w);
    bool needs_copy = w->stream != NULL && !group->ops->device_memory;
    return needs_copy || group->held > 0 ? hold(group, w) : launch_at_backend(group, w);
}

static void count_traffic(process_group *group, const collective *c)
{
    rank_traffic moves = process_group_expect_traffic(group, c);
    group->moved.sent += moves.sent;
    group->moved.received += moves.received;
}

static status check_stream(const process_group *group, const device_stream *stream)
{
    if (stream == NULL || (group->dev != NULL && group->dev->stream == stream))
        return STATUS_OK;
    return FAIL(STATUS_INVALID, "the process group was not created for the device of this stream");
}

static void note_launch(process_group *group, work *w)
{
    const collective *c = &w->what;
    w->began_ns = clock_now_ns();
    w->record = flight_recorder_launch(&group->recorder, c, w->stream != NULL, w->began_ns);
    if (!collective_is_send_or_recv(c->kind)) /* ranks compare their latest */
        rank_status_launch(group->page, c);
    count_traffic(group, c);
}

/* The lock is held. A launch that only announces comes first: while peers get to know it, this rank
 * makes its notes. One that may block is noted before. */
static status number_and_start(process_group *group, work *w)
{
    collective *c = &w->what;
    bool announces = !is_alone(group, c) && group->ops->works_in_wait;
    c->seq = collective_is_send_or_recv(c->kind) ? ++group->p2p_seq : ++group->seq;
    c->timeout_ms = first_runs_note(&group->known, c) ? group->patience_ms : group->timeout_ms;
    if (!announces)
        note_launch(group, w);
    status st = start(group, w);
    if (announces)
        note_launch(group, w);
    if (st != STATUS_OK) {
        flight_recorder_end(&group->recorder, w->record, false, clock_now_ns());
        st = process_group_break(group, explain_failure(group, c, st));
    }
    return st;
}

static status check(process_group *group, collective *what, const device_stream *stream)
{
    if (!(what->prescale < 0 || what->prescale > 0))
        what->prescale = 1;
    TRY(collective_check(what, group->rank, group->world_size));
    TRY(check_stream(group, stream));
    return process_group_check_call(group, what);
}

/* The lock is held. */
static status make_work(process_group *group, const collective *what, device_stream *stream,
                        work **out)
{
    TRY(process_group_may_begin(group, what));
    work *w = spares_take(&group->works, sizeof *w);
    if (w == NULL)
        return FAIL(STATUS_NO_MEMORY, "a work of %zu bytes", sizeof *w);
    w->what = *what;
    w->stream = stream;
    status st = number_and_start(group, w);
    if (st != STATUS_OK)
        spares_give(&group->works, w);
    else
        *out = w;
    return st;
}

status process_group_launch(process_group *group, const collective *c, device_stream *stream,
                            work **out_work)
{
    collective what = *c;
    work *w = NULL;
    TRY(check(group, &what, stream));
    pthread_mutex_lock(&group->lock);
    status st = make_work(group, &what, stream, &w);
    if (st == STATUS_OK) {
        *(group->first == NULL ? &group->first : &group->last->next) = w;
        *out_work = group->last = w;
    }
    pthread_mutex_unlock(&group->lock);
    return st;
}

static void note_wait(process_group *group, work *w, int64_t now_ns)
{
    w->waited_ns = now_ns;
    flight_recorder_wait(&group->recorder, w->record, w->waited_ns);
    rank_status_wait(group->page, &w->what, w->waited_ns);
}

static void note_end(process_group *group, const work *w, status st)
{
    int64_t end_ns = st == STATUS_OK && w->done_ns > 0 ? w->done_ns : clock_now_ns();
    flight_recorder_end(&group->recorder, w->record, st == STATUS_OK, end_ns);
    if (st == STATUS_OK)
        rank_status_end_wait(group->page);
}

/* Takes `w` off the list; it must be the oldest. */
static status take(process_group *group, work *w, bool *any_held)
{
    pthread_mutex_lock(&group->lock);
    *any_held = group->held > 0;
    status st = process_group_broken(group);
    if (group->first != w && st == STATUS_OK) {
        st = FAIL(STATUS_INVALID,
                  "%s #%" PRIu64 " waited for before #%" PRIu64
                  ": works are waited for once each, in the order of their launch",
                  collective_kind_name(w->what.kind), w->what.seq,
                  group->first == NULL ? 0 : group->first->what.seq);
        process_group_break(group, st);
    }
    work *before = NULL;
    for (work *i = group->first; i != NULL && i != w; i = i->next)
        before = i;
    *(before == NULL ? &group->first : &before->next) = w->next;
    if (group->last == w)
        group->last = before;
    if (st == STATUS_OK)
        note_wait(group, w, clock_now_ns());
    pthread_mutex_unlock(&group->lock);
    return st;
}

/* The lock is held; `w` was, too. */
static status launch_one(process_group *group, work *w, int64_t now_ns)
{
    w->began_ns = now_ns;
    group->held--;
    return launch_at_backend(group, w);
}

/* The latest held send or receive; NULL: there is none. *copy: the latest copy out up to it. The
 * lock is held. */
static work *last_message(const process_group *group, staged **copy)
{
    work *last = NULL;
    staged *latest = NULL;
    for (work *i = group->first; i != NULL; i = i->next) {
        if (i->copy != NULL)
            latest = i->copy;
        if (i->state == WORK_HELD && collective_is_send_or_recv(i->what.kind)) {
            last = i;
            *copy = latest != NULL ? latest : *copy;
        }
    }
    return last;
}

/* Launches `w`, the oldest, if it is held, all up to the last held send or receive, and what was
 * held only because of these. Messages go along because another rank may wait for one before it
 * does what this rank waits for: a batch would wait for itself. The latest copy ends last. */
static status launch_held(process_group *group, work *w)
{
    staged *copy = w->state == WORK_HELD ? w->copy : NULL;
    pthread_mutex_lock(&group->lock);
    work *last = last_message(group, &copy);
    pthread_mutex_unlock(&group->lock);
    if (w->state != WORK_HELD && last == NULL)
        return STATUS_OK;
    if (copy != NULL)
        TRY(staging_wait(group->staging, copy));
    pthread_mutex_lock(&group->lock);
    int64_t now_ns = w->waited_ns = clock_now_ns();
    status st = w->state == WORK_HELD ? launch_one(group, w, now_ns) : STATUS_OK;
    for (work *i = group->first; i != NULL && st == STATUS_OK; i = i->next) {
        if (i->state == WORK_HELD && i->copy != NULL && last == NULL)
            break;
        if (i->state == WORK_HELD)
            st = launch_one(group, i, now_ns);
        if (i == last)
            last = NULL;
    }
    pthread_mutex_unlock(&group->lock);
    return st;
}

static status finish(process_group *group, work *w, bool any_held)
{
    if (any_held)
        TRY(launch_held(group, w));
    int64_t deadline_ns = w->waited_ns + w->what.timeout_ms * 1000000;
    if (w->state == WORK_AT_BACKEND) {
        bool delayed = w->arrives_ns > 0; /* an injected delay passes since the launch */
        if (group->ops->works_in_wait && !delayed)
            w->began_ns = w->waited_ns;
        TRY(group->ops->wait(group->self, w->inner, deadline_ns, &w->done_ns));
    }
    TRY(injected_delay_wait(w->arrives_ns, deadline_ns, &w->done_ns));
    return w->copy == NULL ? STATUS_OK : staging_copy_in(group->staging, w->copy, w->what.out);
}

/* Waits for `w`, which is not on the list, unless `st` says that this has failed before. */
static status end(process_group *group, work *w, bool any_held, status st, int64_t *elapsed_ns)
{
    status taken = st;
    if (st == STATUS_OK) {
        st = finish(group, w, any_held);
        if (st != STATUS_OK)
            st = explain_failure(group, &w->what, st);
    }
    pthread_mutex_lock(&group->lock);
    if (taken == STATUS_OK && st != STATUS_OK)
        process_group_break(group, st);
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

status process_group_wait(process_group *group, work *w, int64_t *elapsed_ns)
{
    bool any_held = false;
    status taken = take(group, w, &any_held);
    return end(group, w, any_held, taken, elapsed_ns);
}

status process_group_run(process_group *group, const collective *c, device_stream *stream)
{
    work *w = NULL;
    collective what = *c;
    what.blocks = true;
    TRY(check(group, &what, stream));
    pthread_mutex_lock(&group->lock);
    status st = make_work(group, &what, stream, &w);
    bool any_held = group->held > 0;
    if (st == STATUS_OK) /* what has a stream may take long to launch */
        note_wait(group, w, stream != NULL ? clock_now_ns() : w->began_ns);
    pthread_mutex_unlock(&group->lock);
    return st == STATUS_OK ? end(group, w, any_held, st, NULL) : st;
}
