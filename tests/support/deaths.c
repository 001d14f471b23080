#include "tests/support/deaths.h"

#include "base/clock.h"
#include "kernels/ops.h"
#include "tests/support/facts.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { BEFORE = 3, COUNT = 5000, LATE_MS = 150 };

/* One collective: enqueued, and waited for. */
typedef struct deadly {
    status (*start)(struct deadly *d);
    status (*finish)(struct deadly *d);
    process_group *group;
    device_stream *stream;
    float *data;
    device_graph *graph;
    work *under_way;
} deadly;

static status start_all_reduce(deadly *d)
{
    return process_group_launch(
        d->group,
        &(collective){.kind = COLLECTIVE_ALL_REDUCE, .in = d->data, .out = d->data, .count = COUNT},
        d->stream, &d->under_way);
}

static status finish_on_host(deadly *d)
{
    return process_group_wait(d->group, d->under_way, NULL);
}

static status finish_on_device(deadly *d)
{
    device *dev = ranks_device();
    TRY(process_group_wait(d->group, d->under_way, NULL));
    return dev->ops->synchronize(dev);
}

static status start_graph(deadly *d)
{
    device *dev = ranks_device();
    return dev->ops->accelerator->graph_launch(dev, d->graph);
}

static status finish_graph(deadly *d)
{
    device *dev = ranks_device();
    (void)d;
    return dev->ops->synchronize(dev);
}

/* The rank's last deed. */
static status die(deadly *d, const death *how)
{
    clock_sleep_ms(how->sleep_ms);
    if (how->signal == 0)
        return STATUS_OK;
    if (!how->before)
        TRY(d->start(d));
    raise(how->signal);
    return FAIL(STATUS_INVALID, "signal %d was survived", how->signal);
}

static status live_and_die(deadly *d, int rank, const death *how)
{
    char message[RANK_MESSAGE_BYTES];
    for (int i = 0; i < BEFORE; i++) {
        TRY(d->start(d));
        TRY(d->finish(d));
    }
    if (rank == how->rank)
        return die(d, how);
    if (how->late_rank > 0 && rank == how->late_rank)
        clock_sleep_ms(LATE_MS);
    status st = d->start(d);
    if (st == STATUS_OK)
        st = d->finish(d);
    snprintf(message, sizeof message, "%s", status_text());
    if (st == STATUS_OK)
        return FAIL(STATUS_INVALID, "the all_reduce came to an end without rank %d", how->rank);
    if (process_group_check(d->group) != st || !facts_in_a_line(status_text(), "broken", NULL))
        return FAIL(STATUS_INVALID, "the group is not broken: %s", status_text());
    if (process_group_barrier(d->group) != st || !facts_in_a_line(status_text(), "broken", NULL))
        return FAIL(STATUS_INVALID, "the group is not broken: %s", status_text());
    return FAIL(st, "%s", message);
}

status deaths_in_all_reduce(process_group *group, int rank, int world_size, void *arg)
{
    static _Thread_local float data[COUNT];
    (void)world_size;
    deadly d = {.start = start_all_reduce, .finish = finish_on_host, .group = group, .data = data};
    return live_and_die(&d, rank, arg);
}

status deaths_on_device(process_group *group, int rank, int world_size, void *arg)
{
    (void)world_size;
    device *dev = ranks_device();
    deadly d = {.start = start_all_reduce,
                .finish = finish_on_device,
                .group = group,
                .stream = dev->stream};
    TRY(dev->ops->alloc(dev, COUNT * sizeof *d.data, (void **)&d.data));
    status st = live_and_die(&d, rank, arg);
    dev->ops->free(dev, d.data);
    return st;
}

static status record(deadly *d)
{
    device *dev = ranks_device();
    const accelerator_ops *ops = dev->ops->accelerator;
    TRY(start_all_reduce(d)); /* NCCL connects the ranks */
    TRY(finish_on_device(d));
    TRY(ops->capture_begin(dev));
    status st = start_all_reduce(d);
    if (st == STATUS_OK)
        st = process_group_wait(d->group, d->under_way, NULL);
    status ended = ops->capture_end(dev, st == STATUS_OK ? &d->graph : NULL);
    return st != STATUS_OK ? st : ended;
}

status deaths_in_graph(process_group *group, int rank, int world_size, void *arg)
{
    (void)world_size;
    device *dev = ranks_device();
    deadly d = {
        .start = start_graph, .finish = finish_graph, .group = group, .stream = dev->stream};
    TRY(dev->ops->alloc(dev, COUNT * sizeof *d.data, (void **)&d.data));
    status st = record(&d);
    if (st == STATUS_OK)
        st = live_and_die(&d, rank, arg);
    dev->ops->accelerator->graph_destroy(d.graph);
    dev->ops->free(dev, d.data);
    return st;
}
