/* The part of rank_context.h that copies a rank's state: from and to the device, and to all ranks.
 */
#include "app/train/rank_context.h"
#include "kernels/ops.h"

status rank_context_loss_scaling(rank_context *rank, loss_scaling *out)
{
    step_state state;
    TRY(rank->dev->ops->download(rank->dev, &state, rank->state, sizeof state));
    *out = state.scaling;
    return STATUS_OK;
}

status rank_context_set_loss_scaling(rank_context *rank, const loss_scaling *scaling)
{
    step_state state = {.scaling = *scaling};
    return rank->dev->ops->upload(rank->dev, rank->state, &state, sizeof state);
}

static status broadcast_loss_scaling(rank_context *rank, int root)
{
    loss_scaling scaling;
    TRY(rank_context_loss_scaling(rank, &scaling));
    double scale = (double)scaling.scale;
    int64_t counts[] = {scaling.good_steps, scaling.skipped, scaling.overflow};
    TRY(process_group_broadcast(rank->group, &scale, 1, DTYPE_F64, root, NULL));
    TRY(process_group_broadcast(rank->group, counts, 3, DTYPE_I64, root, NULL));
    scaling = (loss_scaling){(float)scale, (int32_t)counts[0], counts[1], (uint32_t)counts[2]};
    return rank_context_set_loss_scaling(rank, &scaling);
}

status rank_context_broadcast(rank_context *rank, int root)
{
    const char *names[OPTIMIZER_MAX_STATES];
    float *states[OPTIMIZER_MAX_STATES];
    size_t count = network_count(rank->net), n = optimizer_states(rank->opt, names, states);
    int64_t steps = optimizer_steps(rank->opt);
    device_stream *stream = rank->dev->stream;
    TRY(process_group_broadcast(rank->group, network_parameters(rank->net), count, DTYPE_F32, root,
                                stream));
    TRY(process_group_broadcast(rank->group, &steps, 1, DTYPE_I64, root, NULL));
    optimizer_set_steps(rank->opt, steps);
    if (steps == 0)
        return STATUS_OK; /* no state yet */
    for (size_t i = 0; i < n; i++)
        TRY(process_group_broadcast(rank->group, states[i], count, DTYPE_F32, root, stream));
    return broadcast_loss_scaling(rank, root);
}
