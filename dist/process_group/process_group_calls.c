#include "dist/process_group/process_group.h"
#include "dist/process_group/process_group_state.h"

static collective collective_of(collective_kind kind, const reduction *what)
{
    return (collective){.kind = kind,
                        .op = what->op,
                        .type = what->type,
                        .in = what->in,
                        .out = what->out,
                        .count = what->count,
                        .prescale = what->prescale};
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

status process_group_reduce(process_group *group, const reduction *what, int root,
                            device_stream *stream)
{
    collective c = collective_of(COLLECTIVE_REDUCE, what);
    c.root = root;
    return process_group_run(group, &c, stream);
}

status process_group_all_gather(process_group *group, const void *in, void *out, size_t count,
                                dtype type, device_stream *stream)
{
    collective c = {
        .kind = COLLECTIVE_ALL_GATHER, .type = type, .in = in, .out = out, .count = count};
    return process_group_run(group, &c, stream);
}

status process_group_reduce_scatter(process_group *group, const reduction *what,
                                    device_stream *stream)
{
    collective c = collective_of(COLLECTIVE_REDUCE_SCATTER, what);
    return process_group_run(group, &c, stream);
}

static collective rows_of(collective_kind kind, const collective_rows *what, int root)
{
    return (collective){.kind = kind,
                        .type = what->type,
                        .in = what->in,
                        .out = what->out,
                        .count = what->count,
                        .root = root};
}

status process_group_gather(process_group *group, const collective_rows *what, int root,
                            device_stream *stream)
{
    collective c = rows_of(COLLECTIVE_GATHER, what, root);
    return process_group_run(group, &c, stream);
}

status process_group_scatter(process_group *group, const collective_rows *what, int root,
                             device_stream *stream)
{
    collective c = rows_of(COLLECTIVE_SCATTER, what, root);
    return process_group_run(group, &c, stream);
}

status process_group_all_to_all(process_group *group, const collective_rows *what,
                                device_stream *stream)
{
    collective c = rows_of(COLLECTIVE_ALL_TO_ALL, what, 0);
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
        process_group_break(group, st);
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
    process_group_break(group, st); /* the backend's batch is still open */
    pthread_mutex_unlock(&group->lock);
    for (int i = 0; i < launched; i++) /* so they end at once */
        (void)process_group_wait(group, works[i], NULL);
    status_restore(&why);
    return st;
}
