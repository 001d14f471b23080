/* ZeRO stage 1 (PyTorch's ZeroRedundancyOptimizer; Rajbhandari et al., 2020): each rank's optimizer
 * steps a slice of the parameters, and has the state of that slice alone.
 *
 * Gradients are reduce-scattered, parameters all-gathered: together as many bytes as ddp's
 * all-reduce, and the sums have its bits wherever a backend sums in rank order. Slices are equal,
 * of whole cache lines, and the last ones may hold padding. The wish to stop comes after the
 * gradients to the rank of that slice, and from there with the parameters to all.
 */
#include "app/train/strategy_ops.h"
#include "base/memory.h"
#include "dist/process_group/process_group.h"

#include <stdlib.h>
#include <string.h>

enum { LINE_FLOATS = 16 };

static status check(const options *opts, int n)
{
    (void)n;
    if (strcmp(opts->amp, "fp16") == 0)
        return FAIL(STATUS_INVALID, "--mode=zero1: with --amp=fp16 each rank would see an overflow "
                                    "of its own slice only: give --amp=bf16, or --mode=ddp");
    return STATUS_OK;
}

static size_t slice_floats(const rank_context *rank)
{
    size_t world_size = (size_t)rank->place.world_size;
    size_t all = model_kind_count(rank->settings.model) + PREEMPT_FLOATS;
    size_t slice = (all + world_size - 1) / world_size;
    return (slice + LINE_FLOATS - 1) / LINE_FLOATS * LINE_FLOATS;
}

static void share_network(const rank_context *rank, network_share *out)
{
    out->gradients = out->parameters = slice_floats(rank) * (size_t)rank->place.world_size;
}

/* Where this rank's slice begins in the arrays. */
static size_t slice_begin(const rank_context *rank)
{
    return slice_floats(rank) * (size_t)rank->place.rank;
}

/* Of the slice what is parameters; behind them is padding. */
static size_t slice_count(const rank_context *rank)
{
    size_t begin = slice_begin(rank), slice = slice_floats(rank), count = network_count(rank->net);
    return begin >= count ? 0 : count - begin < slice ? count - begin : slice;
}

static void part_of_rank(const rank_context *rank, void *self, optimizer_part *out)
{
    (void)self;
    out->parameters += slice_begin(rank);
    out->gradients += slice_begin(rank);
    out->count = slice_count(rank);
}

/* The rank's slice of the gradients becomes the mean over all ranks. Their norm is known only where
 * all of them are: if they are clipped, all ranks get all. */
static status synchronize(rank_context *rank, void *self)
{
    (void)self;
    bool whole = rank->settings.clip_grad_norm > 0;
    size_t slice = slice_floats(rank);
    float *out = rank->gradients + (whole ? 0 : slice_begin(rank));
    const collective c = {.kind = whole ? COLLECTIVE_ALL_REDUCE : COLLECTIVE_REDUCE_SCATTER,
                          .in = rank->gradients,
                          .out = out,
                          .count = whole ? slice * (size_t)rank->place.world_size : slice,
                          .prescale = 1.0f / (float)rank->place.world_size,
                          .label = "gradients, a slice to each rank"};
    TRY(timeline_enter(&rank->timeline, MOMENT_REDUCE));
    return process_group_run(rank->group, &c, rank->dev->stream);
}

/* The rank in whose slice the wish to stop has been summed puts it behind the parameters. */
static status pass_wish_on(rank_context *rank)
{
    device *dev = rank->dev;
    size_t at = network_count(rank->net), begin = slice_begin(rank);
    if (at < begin || at - begin >= slice_floats(rank))
        return STATUS_OK;
    return dev->ops->copy(dev, rank->parameters + at, rank->gradients + at,
                          PREEMPT_FLOATS * sizeof(float));
}

static status optimizer_step_of_slice(rank_context *rank, void *self)
{
    const collective c = {.kind = COLLECTIVE_ALL_GATHER,
                          .in = rank->parameters + slice_begin(rank),
                          .out = rank->parameters,
                          .count = slice_floats(rank),
                          .label = "parameters, a slice from each rank"};
    (void)self;
    TRY(strategy_ranks_optimizer_step(rank));
    TRY(pass_wish_on(rank));
    TRY(timeline_enter(&rank->timeline, MOMENT_GATHER));
    return process_group_run(rank->group, &c, rank->dev->stream);
}

/* Rank 0 has all parameters; the others get them from it (share_state). */
static status move_state(rank_context *rank, void *self, size_t arena, network_order way,
                         float *host)
{
    float *state = strategy_ranks_arena(rank, arena);
    const state_slice own = {state, slice_count(rank), slice_floats(rank), 0};
    (void)self;
    if (arena > 0)
        return strategy_ranks_move_slice(rank, &own, way, host);
    return host == NULL            ? STATUS_OK
           : way == NETWORK_EXPORT ? network_export(rank->net, state, host)
                                   : network_import(rank->net, host, state);
}

static void describe(const rank_context *rank, void *self, FILE *out)
{
    double mb = (double)(network_count(rank->net) * sizeof(float)) * 1e-6;
    int n = rank->place.world_size;
    (void)self;
    fprintf(out, "gradients, %.2f MB, averaged over all ranks: 1/%d of them to each rank%s\n", mb,
            n, rank->settings.clip_grad_norm > 0 ? " (all, to clip them)" : "");
    fprintf(out, "each rank steps its 1/%d of the parameters, and has the optimizer's state of\n",
            n);
    fputs("that part alone; then all ranks get all parameters\n", out);
}

const strategy_ops strategy_zero1 = {
    .facts = {.name = "zero1",
              .title = "mode zero1, ranks",
              .unit = "rank",
              .alone = "one rank has no state to share",
              .can_be_captured = true,
              .has_peer = true,
              .advice = "take it if the optimizer's state is what does not fit: ddp's weights and "
                        "bytes, and a slice of the state each"},
    .check = check,
    .network = share_network,
    .part = part_of_rank,
    .share_state = strategy_ranks_share_parameters,
    .move_state = move_state,
    .synchronize = synchronize,
    .optimizer_step = optimizer_step_of_slice,
    .describe = describe,
};
