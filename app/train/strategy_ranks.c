#include "app/train/strategy_ranks.h"

#include <string.h>

status strategy_ranks_check(const options *opts)
{
    if (opts->replicas >= 0 && opts->command != COMMAND_DEMO)
        return FAIL(STATUS_INVALID,
                    "--replicas=%lld: only --mode=dp has replicas; for ranks give "
                    "--nproc-per-node=%lld",
                    (long long)opts->replicas, (long long)opts->replicas);
    if (strcmp(opts->backend, "local") == 0)
        return FAIL(STATUS_INVALID, "--backend=local: is for the threads of --mode=dp; processes "
                                    "take shm (one host), gloo or nccl (GPUs)");
    return STATUS_OK;
}

status strategy_ranks_forward_backward(rank_context *rank, const step_batch *b, grad_ready_fn ready,
                                       void *ctx)
{
    TRY(timeline_enter(&rank->timeline, MOMENT_FORWARD));
    TRY(network_forward(rank->net, &b->in, NETWORK_TRAIN));
    TRY(timeline_enter(&rank->timeline, MOMENT_BACKWARD));
    return network_backward(rank->net, !b->first, ready, ctx);
}

status strategy_ranks_optimizer_step(rank_context *rank, void *self)
{
    (void)self;
    TRY(timeline_enter(&rank->timeline, MOMENT_OPTIMIZER));
    if (rank->settings.clip_grad_norm > 0)
        TRY(network_clip_gradients(rank->net, (float)rank->settings.clip_grad_norm, rank->state));
    return optimizer_step(rank->opt, rank->state);
}

const char *strategy_ranks_backend(const rank_context *rank, void *self)
{
    (void)self;
    return process_group_backend(rank->group);
}

device_use strategy_ranks_use(const rank_context *rank, void *self, int index)
{
    uint64_t sent = 0, received = 0;
    (void)self, (void)index;
    process_group_traffic(rank->group, &sent, &received);
    return (device_use){(int64_t)sent, (int64_t)received, rank->dev->memory_peak};
}
