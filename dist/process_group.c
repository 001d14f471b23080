/* The checked front door: arguments, numbers, the trivial cases, the order of waits, the rule that
 * a failed collective breaks its group for good, times, and the injected delay. Backends stay
 * small.
 *
 * The injected delay is a slow wire that carries one message at a time: an all_reduce gets the wire
 * when it is launched or when the one before has left it, whichever is later, keeps it for the
 * delay, and is not done before. It runs by the clock, whatever the caller does meanwhile.
 */
#include "dist/process_group.h"

#include "base/clock.h"
#include "base/memory.h"
#include "dist/backend_choice.h"
#include "dist/process_group_ops.h"
#include "dist/reduce.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MESSAGE_BYTES = 1024, MAX_WORLD_SIZE = 1 << 16 };

struct work {
    work *next;
    collective what;
    bool at_backend; /* `inner` is to be waited for */
    void *inner;
    int64_t launched_ns, done_ns;
    int64_t wire_free_ns; /* not done before; 0: no such limit */
};

typedef struct allocation {
    struct allocation *next;
    void *memory;
} allocation;

struct process_group {
    const process_group_ops *ops; /* NULL for one rank */
    void *self;
    int rank, world_size;
    int64_t timeout_ms, inject_delay_ms;

    pthread_mutex_t lock; /* of all below */
    status broken;
    char message[MESSAGE_BYTES];
    uint64_t seq;         /* of the latest collective */
    work *first, *last;   /* launched and not waited for, oldest first */
    int64_t wire_free_ns; /* when the latest injected delay ends */
    size_t shared_left;
    allocation *allocations;
};

const char *collective_kind_name(collective_kind kind)
{
    static const char *const names[] = {"all_reduce", "broadcast", "barrier"};
    return (size_t)kind < sizeof names / sizeof names[0] ? names[kind] : "unknown";
}

size_t dtype_size(dtype type)
{
    return type == DTYPE_F32 ? sizeof(float) : sizeof(int64_t);
}

/* The lock is held. Keeps the first failure and its message. */
static status break_locked(process_group *group, status st)
{
    if (group->broken == STATUS_OK) {
        group->broken = st;
        snprintf(group->message, sizeof group->message, "%s", status_message());
    }
    return st;
}

static status broken_locked(process_group *group)
{
    if (group->broken == STATUS_OK)
        return STATUS_OK;
    return FAIL(group->broken, "the process group is broken since: %s", group->message);
}

static status break_group(process_group *group, const collective *c, status st)
{
    status_context(st, "%s #%" PRIu64 " on rank %d (%s)", collective_kind_name(c->kind), c->seq,
                   group->rank, process_group_backend(group));
    pthread_mutex_lock(&group->lock);
    break_locked(group, st);
    pthread_mutex_unlock(&group->lock);
    return st;
}

static status check_options(const process_group_options *o)
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
    if (o->store == NULL && o->world_size > 1)
        return FAIL(STATUS_INVALID, "a process group of %d ranks needs a store", o->world_size);
    return backend_choice_check(o->backend);
}

status process_group_create(const process_group_options *options, process_group **out)
{
    TRY(check_options(options));
    process_group *group = calloc(1, sizeof *group);
    if (group == NULL)
        return FAIL(STATUS_NO_MEMORY, "a process group");
    group->rank = options->rank;
    group->world_size = options->world_size;
    group->timeout_ms = options->timeout_ms;
    group->inject_delay_ms = options->inject_delay_ms;
    group->shared_left = options->shared_bytes;
    status st = STATUS_OK;
    if (options->world_size > 1) {
        backend_choice choice = {0};
        st = backend_choice_make(options, &choice);
        group_setup setup = {options, choice.prefix, choice.one_host};
        if (st == STATUS_OK)
            st = choice.ops->create(&setup, &group->self);
        if (st == STATUS_OK)
            group->ops = choice.ops;
    }
    if (st != STATUS_OK) {
        free(group);
        return status_context(st, "process group of rank %d", options->rank);
    }
    pthread_mutex_init(&group->lock, NULL);
    *out = group;
    return STATUS_OK;
}

void process_group_destroy(process_group *group)
{
    if (group == NULL)
        return;
    if (group->ops != NULL)
        group->ops->destroy(group->self);
    while (group->first != NULL) {
        work *w = group->first;
        group->first = w->next;
        free(w);
    }
    while (group->allocations != NULL) {
        allocation *a = group->allocations;
        group->allocations = a->next;
        free(a->memory);
        free(a);
    }
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

/* The lock is held. Memory of our own, where the backend has none. */
static status allocate(process_group *group, size_t size_bytes, void **out)
{
    allocation *a = calloc(1, sizeof *a);
    if (a == NULL)
        return FAIL(STATUS_NO_MEMORY, "%zu bytes", sizeof *a);
    status st = memory_alloc(size_bytes, &a->memory);
    if (st != STATUS_OK) {
        free(a);
        return st;
    }
    a->next = group->allocations;
    group->allocations = a;
    *out = a->memory;
    return STATUS_OK;
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
        st = allocate(group, size_bytes, out);
    if (st == STATUS_OK)
        group->shared_left -= size_bytes;
    pthread_mutex_unlock(&group->lock);
    return st;
}

/* No peer, or nothing to send: done at once. */
static void do_alone(const collective *c)
{
    if (c->kind != COLLECTIVE_ALL_REDUCE || c->count == 0)
        return;
    if (c->out != c->in)
        memmove(c->out, c->in, c->count * dtype_size(c->type));
    void *out = c->out;
    if (c->prescale < 1 || c->prescale > 1)
        reduce_buffers(c->type, c->op, c->prescale, &out, 1, c->count);
}

/* The lock is held. */
static status start(process_group *group, work *w, device_stream *stream)
{
    const collective *c = &w->what;
    w->launched_ns = clock_now_ns();
    if (group->ops == NULL || (c->count == 0 && c->kind != COLLECTIVE_BARRIER)) {
        do_alone(c);
        w->done_ns = clock_now_ns();
        return STATUS_OK;
    }
    if (group->inject_delay_ms > 0 && c->kind == COLLECTIVE_ALL_REDUCE) {
        int64_t free_ns = group->wire_free_ns;
        w->wire_free_ns = (free_ns > w->launched_ns ? free_ns : w->launched_ns) +
                          group->inject_delay_ms * 1000000;
        group->wire_free_ns = w->wire_free_ns;
    }
    TRY(group->ops->launch(group->self, c, stream, &w->inner));
    w->at_backend = true;
    return STATUS_OK;
}

static status launch(process_group *group, const collective *c, device_stream *stream, work **out)
{
    size_t size_bytes;
    if (!memory_product(c->count, dtype_size(c->type), &size_bytes) || size_bytes > PTRDIFF_MAX)
        return FAIL(STATUS_INVALID, "%s of %zu elements: more than memory can hold",
                    collective_kind_name(c->kind), c->count);
    if (stream != NULL && (group->ops == NULL || !group->ops->device_memory))
        return FAIL(STATUS_INVALID, "backend %s takes host memory only, not a device's stream",
                    process_group_backend(group));
    work *w = calloc(1, sizeof *w);
    if (w == NULL)
        return FAIL(STATUS_NO_MEMORY, "a work of %zu bytes", sizeof *w);
    pthread_mutex_lock(&group->lock);
    status st = broken_locked(group);
    if (st == STATUS_OK) {
        w->what = *c;
        w->what.seq = ++group->seq;
        st = start(group, w, stream);
        if (st != STATUS_OK) {
            status_context(st, "%s #%" PRIu64 " on rank %d (%s)", collective_kind_name(c->kind),
                           group->seq, group->rank, process_group_backend(group));
            break_locked(group, st);
        }
    }
    if (st == STATUS_OK) {
        *(group->first == NULL ? &group->first : &group->last->next) = w;
        group->last = w;
    }
    pthread_mutex_unlock(&group->lock);
    if (st != STATUS_OK)
        free(w);
    else
        *out = w;
    return st;
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
    pthread_mutex_unlock(&group->lock);
    return st;
}

static void sleep_until(int64_t point_ns)
{
    struct timespec point = {.tv_sec = (time_t)(point_ns / 1000000000),
                             .tv_nsec = (long)(point_ns % 1000000000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &point, NULL) == EINTR) {
    }
}

static status wait_for_wire(work *w, int64_t deadline_ns)
{
    while (w->done_ns < w->wire_free_ns) {
        int64_t now = clock_now_ns();
        if (now >= w->wire_free_ns)
            w->done_ns = w->wire_free_ns;
        else if (now >= deadline_ns)
            return FAIL(STATUS_TIMEOUT, "the injected delay is longer than the timeout");
        else
            sleep_until(w->wire_free_ns < deadline_ns ? w->wire_free_ns : deadline_ns);
    }
    return STATUS_OK;
}

status process_group_wait(process_group *group, work *w, int64_t *elapsed_ns)
{
    int64_t deadline_ns = clock_deadline_ns(group->timeout_ms);
    status st = take(group, w);
    if (st == STATUS_OK) {
        if (w->at_backend)
            st = group->ops->wait(group->self, w->inner, deadline_ns, &w->done_ns);
        if (st == STATUS_OK)
            st = wait_for_wire(w, deadline_ns);
        if (st != STATUS_OK)
            break_group(group, &w->what, st);
    }
    if (st == STATUS_OK && elapsed_ns != NULL)
        *elapsed_ns = w->done_ns - w->launched_ns;
    free(w);
    return st;
}

static status check_types(const collective *c)
{
    bool needs_memory = c->count > 0;
    if (needs_memory && (c->in == NULL || c->out == NULL))
        return FAIL(STATUS_INVALID, "%s of %zu elements at NULL", collective_kind_name(c->kind),
                    c->count);
    if ((unsigned)c->type > DTYPE_I64 || (unsigned)c->op > REDUCE_MAX)
        return FAIL(STATUS_INVALID, "%s: dtype %d or reduce_op %d does not exist",
                    collective_kind_name(c->kind), (int)c->type, (int)c->op);
    if (c->type == DTYPE_I64 && (c->prescale < 1 || c->prescale > 1))
        return FAIL(STATUS_INVALID, "a prescale of %g is for float types", (double)c->prescale);
    return STATUS_OK;
}

status process_group_all_reduce_async(process_group *group, const void *in, void *out, size_t count,
                                      dtype type, reduce_op op, float prescale,
                                      device_stream *stream, work **out_work)
{
    collective c = {.kind = COLLECTIVE_ALL_REDUCE,
                    .op = op,
                    .type = type,
                    .in = in,
                    .out = out,
                    .count = count,
                    .prescale = prescale};
    TRY(check_types(&c));
    return launch(group, &c, stream, out_work);
}

static status do_blocking(process_group *group, const collective *c)
{
    TRY(check_types(c));
    pthread_mutex_lock(&group->lock);
    status st = broken_locked(group);
    if (st == STATUS_OK && group->first != NULL)
        st = FAIL(STATUS_INVALID, "a blocking %s while %s #%" PRIu64 " is still to be waited for",
                  collective_kind_name(c->kind), collective_kind_name(group->first->what.kind),
                  group->first->what.seq);
    pthread_mutex_unlock(&group->lock);
    TRY(st);
    work *w = NULL;
    TRY(launch(group, c, NULL, &w));
    return process_group_wait(group, w, NULL);
}

status process_group_all_reduce(process_group *group, void *data, size_t count, dtype type,
                                reduce_op op)
{
    collective c = {.kind = COLLECTIVE_ALL_REDUCE,
                    .op = op,
                    .type = type,
                    .in = data,
                    .out = data,
                    .count = count,
                    .prescale = 1};
    return do_blocking(group, &c);
}

status process_group_broadcast(process_group *group, void *data, size_t count, dtype type, int root)
{
    if (root < 0 || root >= group->world_size)
        return FAIL(STATUS_INVALID, "broadcast from rank %d of %d", root, group->world_size);
    collective c = {.kind = COLLECTIVE_BROADCAST,
                    .type = type,
                    .in = data,
                    .out = data,
                    .count = count,
                    .root = root,
                    .prescale = 1};
    return do_blocking(group, &c);
}

status process_group_barrier(process_group *group)
{
    collective c = {.kind = COLLECTIVE_BARRIER, .prescale = 1};
    return do_blocking(group, &c);
}
