/* A process group: its small parts, the way of every collective to the backend and back, its life,
 * the calls, and sub-groups. */

#include "dist/process_group/process_group.h"

#include "base/clock.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/memory.h"
#include "dist/backends/local/backend_local.h"
#include "dist/collective/collective.h"
#include "dist/collective/process_group_ops.h"
#include "dist/health/first_cause.h"
#include "dist/health/hang_report.h"
#include "dist/health/rank_status.h"
#include "dist/process_group/backend_choice.h"
#include "dist/process_group/process_group_state.h"
#include "kernels/ops.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct allocation {
    struct allocation *next;
    void *memory;
} allocation;

/* As memory_alloc; freed by allocations_free. */
static status allocations_add(allocations *list, size_t size_bytes, void **out)
{
    allocation *a = calloc(1, sizeof *a);
    if (a == NULL)
        return FAIL(STATUS_NO_MEMORY, "%zu bytes", sizeof *a);
    status st = memory_alloc(size_bytes, &a->memory);
    if (st != STATUS_OK) {
        free(a);
        return st;
    }
    a->next = list->first;
    list->first = a;
    *out = a->memory;
    return STATUS_OK;
}

static void allocations_free(allocations *list)
{
    while (list->first != NULL) {
        allocation *a = list->first;
        list->first = a->next;
        free(a->memory);
        free(a);
    }
}

/* Notes the collective; whether none of its kind, type, size and root or peer was noted before.
 * Beyond FIRST_RUNS_MOST of them none counts as the first. */
static bool first_runs_note(first_runs *runs, const collective *c)
{
    for (int i = 0; i < runs->n; i++)
        if (runs->seen[i].kind == c->kind && runs->seen[i].type == c->type &&
            runs->seen[i].root == c->root && runs->seen[i].count == c->count)
            return false;
    if (runs->n == FIRST_RUNS_MOST)
        return false;
    runs->seen[runs->n].kind = c->kind;
    runs->seen[runs->n].type = c->type;
    runs->seen[runs->n].root = c->root;
    runs->seen[runs->n].count = c->count;
    runs->n++;
    return true;
}

/* When a message sent now leaves the wire. */
static int64_t injected_delay_send(injected_delay *delay)
{
    int64_t now_ns = clock_now_ns();
    delay->free_ns = (delay->free_ns > now_ns ? delay->free_ns : now_ns) + delay->delay_ns;
    return delay->free_ns;
}

static void sleep_until(int64_t point_ns)
{
    struct timespec point = {.tv_sec = (time_t)(point_ns / 1000000000),
                             .tv_nsec = (long)(point_ns % 1000000000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &point, NULL) == EINTR) {
    }
}

/* Returns when `leaves_ns` has passed; raises *done_ns to it. STATUS_TIMEOUT at the deadline. */
static status injected_delay_wait(int64_t leaves_ns, int64_t deadline_ns, int64_t *done_ns)
{
    while (*done_ns < leaves_ns) {
        int64_t now_ns = clock_now_ns();
        if (now_ns >= leaves_ns)
            *done_ns = leaves_ns;
        else if (now_ns >= deadline_ns)
            return FAIL(STATUS_TIMEOUT, "the injected delay is longer than the timeout");
        else
            sleep_until(leaves_ns < deadline_ns ? leaves_ns : deadline_ns);
    }
    return STATUS_OK;
}

enum { MAX_WORLD_SIZE = 1 << 16 };

static status check_backend(const process_group_options *o)
{
    if (o->hub != NULL)
        return STATUS_OK;
    TRY(backend_choice_check(o->backend));
    if (strcmp(o->backend, "local") == 0)
        return FAIL(STATUS_INVALID, "backend local is for threads that meet at a hub");
    bool on_cpu = o->device == NULL || o->device->stream == NULL;
    return o->world_size == 1 && on_cpu ? backend_choice_check_cpu(o->backend) : STATUS_OK;
}

/* Whether a group can be made as asked: STATUS_INVALID with what is wrong. */
static status process_group_check_options(const process_group_options *o)
{
    if (o->world_size < 1 || o->world_size > MAX_WORLD_SIZE)
        return FAIL(STATUS_INVALID, "world_size %d is not in 1 .. %d", o->world_size,
                    (int)MAX_WORLD_SIZE);
    if (o->rank < 0 || o->rank >= o->world_size)
        return FAIL(STATUS_INVALID, "rank %d is not in 0 .. %d", o->rank, o->world_size - 1);
    if (o->timeout_ms < 1)
        return FAIL(STATUS_INVALID, "timeout of %" PRId64 " ms: at least 1 is needed",
                    o->timeout_ms);
    if (o->inject_delay_ms < 0)
        return FAIL(STATUS_INVALID, "injected delay of %" PRId64 " ms is negative",
                    o->inject_delay_ms);
    if (o->hub == NULL && o->store == NULL && o->world_size > 1)
        return FAIL(STATUS_INVALID, "a process group of %d ranks needs a store", o->world_size);
    return check_backend(o);
}

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

enum {
    STAGING_SLACK_BYTES = 4 << 10,   /* what rounding up the buckets' sizes can cost */
    STAGING_CHUNK_BYTES = 256 << 10, /* at least, beyond the group's own memory */
};

/* The lock is held. The group is broken since `st`, unless it was before; the first failure's words
 * are kept. Returns st. */
static status break_group(process_group *group, status st)
{
    if (group->broken == STATUS_OK) {
        group->broken = st;
        status_keep(&group->failure);
    }
    return st;
}

/* The lock is held. STATUS_OK, or why the group is broken. */
static status broken(process_group *group)
{
    if (group->broken == STATUS_OK)
        return STATUS_OK;
    status_restore(&group->failure);
    return status_context(group->broken, "the process group is broken since");
}

/* The lock is held. STATUS_OK, or why the group is broken; STATUS_INVALID: the call blocks, and
 * another one is still to be waited for. */
static status may_begin(process_group *group, const collective *c)
{
    TRY(broken(group));
    if (!c->blocks || group->first == NULL)
        return STATUS_OK;
    const collective *other = &group->first->what;
    return FAIL(STATUS_INVALID, "a blocking %s while %s #%" PRIu64 " is still to be waited for",
                collective_kind_name(c->kind), collective_kind_name(other->kind), other->seq);
}

/* Says which collective failed. */
static status name_failure(const process_group *group, const collective *c, status st)
{
    int rank = group->whole != NULL ? group->whole[group->rank] : group->rank;
    return status_context(st, "%s #%" PRIu64 " on rank %d%s (%s)", collective_kind_name(c->kind),
                          c->seq, rank, group->of_ranks, process_group_backend(group));
}

/* The same for what another thread may have ended: that one knows why. Else the backend says it, to
 * which a sub-group's ranks are all that there are. */
static status explain_failure(process_group *group, const collective *c, status st)
{
    if (group->whole != NULL)
        first_cause_rename(group->whole, group->world_size);
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
        st = break_group(group, explain_failure(group, c, st));
    }
    return st;
}

/* Blocks until all ranks have called the same, if the group was asked to check that; if they have
 * not, the group is broken. */
static status compare_call(process_group *group, const collective *c)
{
    collective numbered = *c;
    if (group->options.debug < PROCESS_GROUP_DEBUG_DETAIL || group->ops == NULL ||
        group->options.store == NULL || collective_is_send_or_recv(c->kind))
        return STATUS_OK;
    pthread_mutex_lock(&group->lock);
    status st = may_begin(group, c);
    numbered.seq = group->seq + 1;
    uint64_t number = ++group->checked;
    pthread_mutex_unlock(&group->lock);
    TRY(st);
    st = store_meeting_compare(group, number, &numbered);
    if (st == STATUS_OK)
        return STATUS_OK;
    pthread_mutex_lock(&group->lock);
    break_group(group, st);
    pthread_mutex_unlock(&group->lock);
    return st;
}

static status check(process_group *group, collective *what, const device_stream *stream)
{
    if (!(what->prescale < 0 || what->prescale > 0))
        what->prescale = 1;
    TRY(collective_check(what, group->rank, group->world_size));
    TRY(check_stream(group, stream));
    return compare_call(group, what);
}

/* The lock is held. */
static status begin(process_group *group, const collective *what, device_stream *stream, work **out)
{
    TRY(may_begin(group, what));
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
    status st = begin(group, &what, stream, &w);
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
    status st = broken(group);
    if (group->first != w && st == STATUS_OK) {
        st = FAIL(STATUS_INVALID,
                  "%s #%" PRIu64 " waited for before #%" PRIu64
                  ": works are waited for once each, in the order of their launch",
                  collective_kind_name(w->what.kind), w->what.seq,
                  group->first == NULL ? 0 : group->first->what.seq);
        break_group(group, st);
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

static status wait_for(process_group *group, work *w, bool any_held)
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
        st = wait_for(group, w, any_held);
        if (st != STATUS_OK)
            st = explain_failure(group, &w->what, st);
    }
    pthread_mutex_lock(&group->lock);
    if (taken == STATUS_OK && st != STATUS_OK)
        break_group(group, st);
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
    status st = begin(group, &what, stream, &w);
    bool any_held = group->held > 0;
    if (st == STATUS_OK) /* what has a stream may take long to launch */
        note_wait(group, w, stream != NULL ? clock_now_ns() : w->began_ns);
    pthread_mutex_unlock(&group->lock);
    return st == STATUS_OK ? end(group, w, any_held, st, NULL) : st;
}

/* A process group's life, its memory, and what it says of itself. */

/* The ranks meet in the store before each collective: who is missing there may have ended. */
static status watch_ranks(process_group *group)
{
    const process_group_options *o = &group->options;
    char prefix[PROCESS_GROUP_PREFIX_BYTES];
    if (o->debug < PROCESS_GROUP_DEBUG_DETAIL || o->store == NULL || !group->one_host)
        return STATUS_OK;
    snprintf(prefix, sizeof prefix, "%.40scall/", group->prefix);
    const group_setup setup = {.options = o, .prefix = prefix, .one_host = true};
    return peers_create(&setup, clock_deadline_ns(group->patience_ms), &group->watched);
}

static status open_backend(process_group *group, const process_group_options *options)
{
    backend_choice choice = {.ops = &local_ops, .one_host = true};
    if (options->hub == NULL)
        TRY(backend_choice_make(options, &choice));
    group_setup setup = {options, choice.prefix, choice.one_host, choice.hosts, choice.between};
    status st;
    if (choice.ops->device_memory && options->inject_delay_ms > 0)
        st = FAIL(STATUS_INVALID,
                  "an injected delay needs a backend on host memory: %s works on the "
                  "device, so use --backend=%s with it",
                  choice.ops->name, choice.one_host ? "shm" : "gloo");
    else
        st = choice.ops->create(&setup, &group->self);
    if (!choice.one_host)
        group->hosts = lane_hash(0, choice.hosts, (size_t)group->world_size * sizeof(int));
    free(choice.hosts);
    if (st != STATUS_OK)
        return st;
    group->ops = choice.ops;
    group->one_host = choice.one_host;
    snprintf(group->prefix, sizeof group->prefix, "%s", choice.prefix);
    st = watch_ranks(group);
    if (st != STATUS_OK) {
        status_kept cause;
        status_keep(&cause);
        group->ops->destroy(group->self);
        status_restore(&cause);
    }
    return st;
}

status process_group_create(const process_group_options *options, process_group **out)
{
    TRY(process_group_check_options(options));
    process_group *group = calloc(1, sizeof *group);
    if (group == NULL)
        return FAIL(STATUS_NO_MEMORY, "a process group");
    group->options = *options;
    group->options.prefix = NULL; /* that was only for this call */
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
    pthread_mutex_init(&group->abort_lock, NULL);
    LOG_D("process group %s: rank %d of %d, backend %s, %s, timeout %.1f s", group->prefix,
          group->rank, group->world_size, process_group_backend(group),
          group->one_host ? "one host" : "several hosts", (double)group->timeout_ms / 1000);
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
    peers_destroy(group->watched);
    allocations_free(&group->memory);
    pthread_mutex_destroy(&group->lock);
    pthread_mutex_destroy(&group->abort_lock);
    free(group->whole);
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

uint64_t process_group_hosts(const process_group *group)
{
    return group->hosts;
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

rank_traffic process_group_expect_traffic(const process_group *group, const collective *c)
{
    return group->ops != NULL ? group->ops->traffic(c, group->rank, group->world_size)
                              : (rank_traffic){0};
}

bool process_group_can_be_captured(const process_group *group)
{
    return group->ops == NULL || group->ops->device_memory;
}

status process_group_check(process_group *group)
{
    pthread_mutex_lock(&group->lock);
    status st = broken(group);
    if (st == STATUS_OK && group->ops != NULL && group->ops->check != NULL) {
        st = group->ops->check(group->self);
        if (st != STATUS_OK) {
            status_context(st, "rank %d (%s)", group->rank, group->ops->name);
            break_group(group, st);
        }
    }
    pthread_mutex_unlock(&group->lock);
    return st;
}

void process_group_abort(process_group *group, const char *why)
{
    pthread_mutex_lock(&group->abort_lock);
    bool first = !group->aborted;
    if (first) {
        (void)FAIL(STATUS_PEER, "%s", why);
        status_keep(&group->why);
        group->aborted = true;
    }
    pthread_mutex_unlock(&group->abort_lock);
    if (first && group->ops != NULL) /* before the lock: a launch that holds it ends by this */
        group->ops->abort(group->self, why);
    pthread_mutex_lock(&group->lock);
    if (first)
        break_group(group, FAIL(STATUS_PEER, "%s", why));
    pthread_mutex_unlock(&group->lock);
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

status process_group_all_reduce(process_group *group, void *data, size_t count, dtype type,
                                reduce_op op, device_stream *stream)
{
    collective c = {.kind = COLLECTIVE_ALL_REDUCE,
                    .op = op,
                    .type = type,
                    .in = data,
                    .out = data,
                    .count = count};
    return process_group_run(group, &c, stream);
}

status process_group_broadcast(process_group *group, void *data, size_t count, dtype type, int root,
                               device_stream *stream)
{
    collective c = {.kind = COLLECTIVE_BROADCAST,
                    .type = type,
                    .in = data,
                    .out = data,
                    .count = count,
                    .root = root};
    return process_group_run(group, &c, stream);
}

status process_group_barrier(process_group *group)
{
    collective c = {.kind = COLLECTIVE_BARRIER};
    return process_group_run(group, &c, NULL);
}

status process_group_monitored_barrier(process_group *group, int64_t timeout_ms)
{
    if (timeout_ms < 1)
        return FAIL(STATUS_INVALID, "a monitored barrier of %" PRId64 " ms: at least 1 is needed",
                    timeout_ms);
    if (group->ops == NULL)
        return STATUS_OK;
    if (group->options.store == NULL)
        return FAIL(STATUS_INVALID, "backend %s has no monitored barrier: that needs a store",
                    group->ops->name);
    pthread_mutex_lock(&group->lock);
    uint64_t number = ++group->barriers;
    pthread_mutex_unlock(&group->lock);
    return store_meeting_barrier(group, number, timeout_ms);
}

status process_group_all_gather(process_group *group, const void *in, void *out, size_t count,
                                dtype type, device_stream *stream)
{
    collective c = {
        .kind = COLLECTIVE_ALL_GATHER, .type = type, .in = in, .out = out, .count = count};
    return process_group_run(group, &c, stream);
}

status process_group_send(process_group *group, const void *data, size_t count, dtype type,
                          int peer, device_stream *stream)
{
    collective c = {
        .kind = COLLECTIVE_SEND, .type = type, .in = data, .count = count, .root = peer};
    return process_group_run(group, &c, stream);
}

status process_group_recv(process_group *group, void *data, size_t count, dtype type, int peer,
                          device_stream *stream)
{
    collective c = {
        .kind = COLLECTIVE_RECV, .type = type, .out = data, .count = count, .root = peer};
    return process_group_run(group, &c, stream);
}

/* Backends that move in launch order are told where the batch begins and ends. */
static status tell_batch(process_group *group, bool begins)
{
    if (group->ops == NULL || group->ops->batch == NULL)
        return STATUS_OK;
    pthread_mutex_lock(&group->lock);
    status st = group->ops->batch(group->self, begins);
    if (st != STATUS_OK)
        break_group(group, st);
    pthread_mutex_unlock(&group->lock);
    return st;
}

status process_group_batch_isend_irecv(process_group *group, const collective *list, int n,
                                       device_stream *stream, work **works)
{
    int launched = 0;
    for (int i = 0; i < n; i++) {
        if (!collective_is_send_or_recv(list[i].kind))
            return FAIL(STATUS_INVALID, "a batch is of sends and receives, not of %s",
                        collective_kind_name(list[i].kind));
        TRY(collective_check(&list[i], group->rank, group->world_size));
    }
    TRY(tell_batch(group, true));
    status st = STATUS_OK;
    while (launched < n && st == STATUS_OK) {
        st = process_group_launch(group, &list[launched], stream, &works[launched]);
        launched += st == STATUS_OK;
    }
    if (st == STATUS_OK)
        st = tell_batch(group, false);
    if (st == STATUS_OK)
        return STATUS_OK;
    status_kept why;
    status_keep(&why);
    pthread_mutex_lock(&group->lock);
    break_group(group, st); /* the backend's batch is still open */
    pthread_mutex_unlock(&group->lock);
    for (int i = 0; i < launched; i++) /* so they end at once */
        (void)process_group_wait(group, works[i], NULL);
    status_restore(&why);
    return st;
}

/* A sub-group is a process group with a name of its own in the store, where its ranks meet. */

static status check_ranks(const process_group *group, const sub_group *what)
{
    if (what->n < 1 || what->n > group->world_size)
        return FAIL(STATUS_INVALID, "a sub-group of %d ranks of %d", what->n, group->world_size);
    for (int i = 0; i < what->n; i++) {
        int rank = what->ranks[i];
        if (rank < 0 || rank >= group->world_size)
            return FAIL(STATUS_INVALID, "a sub-group with rank %d of %d", rank, group->world_size);
        if (i > 0 && rank <= what->ranks[i - 1])
            return FAIL(STATUS_INVALID, "a sub-group's ranks ascend, but %d comes after %d", rank,
                        what->ranks[i - 1]);
    }
    return STATUS_OK;
}

/* This rank's number in the sub-group; -1: it is not in it. */
static int place_of(const sub_group *what, int rank)
{
    for (int i = 0; i < what->n; i++)
        if (what->ranks[i] == rank)
            return i;
    return -1;
}

/* Short and without an end: "ranks 0, 2, 4 ...". */
static void describe(const sub_group *what, char *out, size_t size_bytes)
{
    int length = snprintf(out, size_bytes, "rank%s", what->n > 1 ? "s" : "");
    for (int i = 0; i < what->n && (size_t)length + 24 < size_bytes; i++)
        length += snprintf(out + length, size_bytes - (size_t)length, "%s %d", i > 0 ? "," : "",
                           what->ranks[i]);
}

status process_group_new_group(process_group *group, const sub_group *what, process_group **out)
{
    char prefix[PROCESS_GROUP_PREFIX_BYTES], ranks[128];
    *out = NULL;
    TRY(check_ranks(group, what));
    pthread_mutex_lock(&group->lock);
    int number = ++group->sub_groups;
    pthread_mutex_unlock(&group->lock);
    int length = snprintf(prefix, sizeof prefix, "%ssub/%d/", group->prefix, number);
    if (length < 0 || (size_t)length >= sizeof prefix)
        return FAIL(STATUS_INVALID, "sub-groups of sub-groups, too deep: at %s", group->prefix);
    int place = place_of(what, group->rank);
    if (place < 0)
        return STATUS_OK;
    process_group_options options = group->options;
    options.rank = place;
    options.world_size = what->n;
    options.prefix = prefix;
    options.shared_bytes = what->shared_bytes;
    options.page = NULL; /* others compare the numbers on it with the whole group's */
    if (what->backend != NULL)
        options.backend = what->backend;
    if (options.hub != NULL)
        TRY(local_hub_sub(group->options.hub, number, what->n, &options.hub));
    describe(what, ranks, sizeof ranks);
    TRY(status_context(process_group_create(&options, out), "the sub-group of %s", ranks));
    snprintf((*out)->of_ranks, sizeof(*out)->of_ranks, " of %.60s", ranks);
    TRY(memory_alloc(sizeof *what->ranks * (size_t)what->n, (void **)&(*out)->whole));
    memcpy((*out)->whole, what->ranks, sizeof *what->ranks * (size_t)what->n);
    return STATUS_OK;
}
