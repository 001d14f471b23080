/* Tensor parallelism, as Megatron-LM cuts a pair of linear layers (Shoeybi et al., 2019): a rank
 * has some of fc1's outputs (ColumnParallelLinear: rows of PyTorch's weight and bias), and fc2's
 * columns that take them (RowParallelLinear). All else is the same on all ranks.
 *
 * All ranks of a row (--mesh) see each batch. Forward sums fc2's partial outputs over them;
 * backward the gradient of fc1's input, if other layers come before. What is the same on all of
 * them stays so in every bit: no gradient of a parameter travels, but to other rows. The wish to
 * stop is summed by itself.
 */
#include "app/train/strategy_ops.h"
#include "kernels/ops.h"

#include <string.h>

/* The sum goes to all ranks; then the rank goes on with what it did. */
static status all_reduce(void *ctx, void *data, size_t count, size_t element_bytes)
{
    rank_context *rank = ctx;
    moment was = rank->timeline.entered;
    const collective c = {.kind = COLLECTIVE_ALL_REDUCE,
                          .type = element_bytes == sizeof(float) ? DTYPE_F32 : DTYPE_BF16,
                          .in = data,
                          .out = data,
                          .count = count,
                          .label = was == MOMENT_BACKWARD ? "the gradient of fc1's input"
                                                          : "fc2's partial outputs"};
    TRY(timeline_enter(&rank->timeline, MOMENT_PARTIAL));
    TRY(process_group_run(rank->mesh.model.group, &c, rank->dev->stream));
    return timeline_enter(&rank->timeline, was);
}

static network_cut shard(const rank_context *rank, int i)
{
    return (network_cut){.rank = i, .world_size = rank->mesh.model.world_size};
}

static void share_network(const rank_context *rank, network_share *out)
{
    out->sum = (network_sum){all_reduce, (void *)rank};
}

static status synchronize(rank_context *rank, void *self)
{
    (void)self;
    TRY(strategy_ranks_average_gradients(rank));
    return strategy_ranks_sum_wish(rank);
}

static void describe(const rank_context *rank, void *self, FILE *out)
{
    const parameter *fc1 = NULL, *all = NULL;
    model_kind kind = rank->settings.model;
    int first, batch_size = rank->settings.batch_size, n = rank->mesh.model.world_size;
    (void)self;
    for (int r = 0; r < n; r++) {
        int last = network_shard_outputs(kind, r, n, &first) - 1;
        size_t count = network_cut_count(kind, shard(rank, r));
        fprintf(out, "rank %d has rows %d to %d of fc1, columns %d to %d of fc2 and all else: ", r,
                first, first + last, first, first + last);
        fprintf(out, "%.2f MB\n", (double)(count * sizeof(float)) * 1e-6);
    }
    (void)network_model_layout(rank->net, &all);
    for (fc1 = all; strcmp(fc1->name, "fc1.weight") != 0; fc1++)
        ;
    fprintf(out, "forward sums fc2's outputs over all ranks: %d x %d numbers\n", batch_size,
            fc1[2].shape[0]); /* fc2.weight's */
    if (fc1 > all)
        fprintf(out, "backward sums the gradients of fc1's input: %d x %d numbers\n", batch_size,
                fc1->shape[1]);
    if (rank->mesh.dp.world_size > 1)
        fprintf(out, "so does each of %d rows of ranks; gradients are averaged over the rows\n",
                rank->mesh.dp.world_size);
    else
        fputs("no gradient of a parameter travels: what all have is the same on each\n", out);
}

const strategy_ops strategy_tp = {
    .facts = {.name = "tp",
              .title = "mode tp, ranks",
              .unit = "rank",
              .alone = "one rank has all of each layer",
              .axis = "tp",
              .cuts_model = true,
              .most = network_most_shards,
              .can_be_captured = true,
              .has_peer = true,
              .advice = "take it if a layer is too large for a device and links are fast: a step "
                        "stops for sums of activations, layer by layer"},
    .cut = shard,
    .network = share_network,
    .move_state = strategy_ranks_move_cut,
    .synchronize = synchronize,
    .describe = describe,
};
