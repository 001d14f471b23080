#include "app/train/kept_state.h"

#include "base/memory.h"
#include "kernels/ops.h"

#include <stdlib.h>

enum { RECOVER_MS = 5000 }; /* for a device to end what was aborted */

static status copy_out(device *dev, const float *from, size_t count, float **out)
{
    if (*out == NULL)
        TRY(memory_alloc(count * sizeof **out, (void **)out));
    return dev->ops->download(dev, *out, from, count * sizeof **out);
}

static status copy_all(rank_context *rank, kept_state *out)
{
    const char *names[OPTIMIZER_MAX_STATES];
    float *states[OPTIMIZER_MAX_STATES];
    size_t n = optimizer_states(strategy_optimizer(rank->strategy), names, states);
    out->count = network_count(rank->net);
    TRY(copy_out(rank->dev, network_parameters(rank->net), out->count, &out->parameters));
    for (size_t i = 0; i < n && out->optimizer_steps > 0; i++) /* else there is none yet */
        TRY(copy_out(rank->dev, states[i], out->count, &out->states[i]));
    return rank_context_loss_scaling(rank, &out->scaling);
}

status kept_state_take(rank_context *rank, const kept_place *place, int64_t updates,
                       kept_state *out)
{
    const accelerator_ops *accelerator = rank->dev->ops->accelerator;
    out->step = KEPT_STATE_NONE;
    out->optimizer_steps = updates;
    if (accelerator != NULL && accelerator->recover != NULL)
        TRY(accelerator->recover(rank->dev, RECOVER_MS));
    TRY(copy_all(rank, out));
    out->place = *place;
    out->step = place->at.step;
    return STATUS_OK;
}

status kept_state_restore(const kept_state *kept, rank_context *rank)
{
    const char *names[OPTIMIZER_MAX_STATES];
    float *states[OPTIMIZER_MAX_STATES];
    size_t n = optimizer_states(strategy_optimizer(rank->strategy), names, states);
    size_t size_bytes = kept->count * sizeof(float);
    device *dev = rank->dev;
    ASSERT(kept->count == network_count(rank->net) && kept->step == kept->place.at.step);
    TRY(dev->ops->upload(dev, network_parameters(rank->net), kept->parameters, size_bytes));
    for (size_t i = 0; i < n && kept->optimizer_steps > 0; i++)
        TRY(dev->ops->upload(dev, states[i], kept->states[i], size_bytes));
    optimizer_set_steps(strategy_optimizer(rank->strategy), kept->optimizer_steps);
    return rank_context_set_loss_scaling(rank, &kept->scaling);
}

void kept_state_free(kept_state *kept)
{
    free(kept->parameters);
    for (size_t i = 0; i < OPTIMIZER_MAX_STATES; i++)
        free(kept->states[i]);
    *kept = (kept_state){.step = KEPT_STATE_NONE};
}
