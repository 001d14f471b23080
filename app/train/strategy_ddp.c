/* DistributedDataParallel: buckets of gradients are averaged over all ranks while backward goes on.
 */
#include "app/train/strategy_ranks.h"
#include "dist/ddp.h"

#define MIB (1024.0 * 1024.0)

enum { FIRST_BUCKET_MIB = 1, BUCKET_CAP_MIB = 25 }; /* PyTorch's */

static status check(const options *opts, int world_size)
{
    (void)world_size;
    return strategy_ranks_check(opts);
}

static status open_reducer(rank_context *rank, void **self)
{
    const parameter *parameters = NULL;
    const char *names[NETWORK_MAX_PARAMETERS];
    size_t n = network_layout(rank->net, &parameters), offsets[NETWORK_MAX_PARAMETERS];
    for (size_t i = 0; i < n; i++) {
        offsets[i] = parameters[i].offset;
        names[i] = parameters[i].name;
    }
    double cap = rank->opts->bucket_cap_mb;
    ddp_options settings = {.first_bucket_bytes =
                                (size_t)((cap < 0 ? FIRST_BUCKET_MIB : cap) * MIB),
                            .bucket_cap_bytes = (size_t)((cap < 0 ? BUCKET_CAP_MIB : cap) * MIB),
                            .overlap = rank->opts->overlap};
    ddp *reducer = NULL;
    ddp_parameters all = {network_count(rank->net), offsets, n};
    TRY(ddp_create(rank->group, rank->gradients, &all, &settings, &reducer));
    status st = ddp_name_parameters(reducer, names);
    if (st != STATUS_OK) {
        ddp_destroy(reducer);
        return st;
    }
    ddp_carry(reducer, PREEMPT_FLOATS);
    *self = reducer;
    return STATUS_OK;
}

static void close_reducer(void *self)
{
    ddp_destroy(self);
}

static status forward_backward(rank_context *rank, void *self, const step_batch *b)
{
    return strategy_ranks_forward_backward(rank, b, b->last ? ddp_on_grad_ready : NULL, self);
}

static status synchronize(rank_context *rank, void *self)
{
    TRY(timeline_enter(&rank->timeline, MOMENT_DDP_WAIT));
    return ddp_wait(self);
}

/* Backward hides some of it if the backend has threads of its own (gloo) or a device (NCCL). Of the
 * device's own collectives nobody knows the ends. */
static int64_t comm_ns(const rank_context *rank, void *self, int64_t exposed_ns)
{
    if (rank->dev->stream == NULL)
        return ddp_elapsed(self).comm_ns;
    return rank->place.world_size == 1 ? exposed_ns : -1;
}

const strategy_ops strategy_ddp = {
    .facts = {.name = "ddp", .title = "ranks", .unit = "rank", .can_be_captured = true},
    .check = check,
    .open = open_reducer,
    .close = close_reducer,
    .forward_backward = forward_backward,
    .synchronize = synchronize,
    .optimizer_step = strategy_ranks_optimizer_step,
    .backend = strategy_ranks_backend,
    .use = strategy_ranks_use,
    .comm_ns = comm_ns,
};
