#include "dist/process_group/process_group.h"
#include "dist/process_group/process_group_launch.h"

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

status process_group_all_reduce_async(process_group *group, const reduction *what,
                                      device_stream *stream, work **out_work)
{
    collective c = collective_of(COLLECTIVE_ALL_REDUCE, what);
    return process_group_launch(group, &c, stream, out_work);
}

static status launch_and_wait(process_group *group, collective c, device_stream *stream)
{
    work *w = NULL;
    TRY(process_group_check_idle(group, c.kind));
    TRY(process_group_launch(group, &c, stream, &w));
    return process_group_wait(group, w, NULL);
}

status process_group_all_reduce(process_group *group, void *data, size_t count, dtype type,
                                reduce_op op, device_stream *stream)
{
    collective c = {.kind = COLLECTIVE_ALL_REDUCE,
                    .op = op,
                    .type = type,
                    .in = data,
                    .out = data,
                    .count = count,
                    .prescale = 1};
    return launch_and_wait(group, c, stream);
}

status process_group_broadcast(process_group *group, void *data, size_t count, dtype type, int root,
                               device_stream *stream)
{
    collective c = {.kind = COLLECTIVE_BROADCAST,
                    .type = type,
                    .in = data,
                    .out = data,
                    .count = count,
                    .root = root,
                    .prescale = 1};
    return launch_and_wait(group, c, stream);
}

status process_group_barrier(process_group *group)
{
    collective c = {.kind = COLLECTIVE_BARRIER, .prescale = 1};
    return launch_and_wait(group, c, NULL);
}

status process_group_reduce(process_group *group, const reduction *what, int root,
                            device_stream *stream)
{
    collective c = collective_of(COLLECTIVE_REDUCE, what);
    c.root = root;
    return launch_and_wait(group, c, stream);
}

status process_group_all_gather(process_group *group, const void *in, void *out, size_t count,
                                dtype type, device_stream *stream)
{
    collective c = {.kind = COLLECTIVE_ALL_GATHER,
                    .type = type,
                    .in = in,
                    .out = out,
                    .count = count,
                    .prescale = 1};
    return launch_and_wait(group, c, stream);
}

status process_group_reduce_scatter(process_group *group, const reduction *what,
                                    device_stream *stream)
{
    return launch_and_wait(group, collective_of(COLLECTIVE_REDUCE_SCATTER, what), stream);
}

status process_group_send(process_group *group, const void *data, size_t count, dtype type,
                          int peer, device_stream *stream)
{
    collective c = {.kind = COLLECTIVE_SEND,
                    .type = type,
                    .in = data,
                    .count = count,
                    .root = peer,
                    .prescale = 1};
    return launch_and_wait(group, c, stream);
}

status process_group_recv(process_group *group, void *data, size_t count, dtype type, int peer,
                          device_stream *stream)
{
    collective c = {.kind = COLLECTIVE_RECV,
                    .type = type,
                    .out = data,
                    .count = count,
                    .root = peer,
                    .prescale = 1};
    return launch_and_wait(group, c, stream);
}
