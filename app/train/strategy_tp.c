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
#include "base/memory.h"
#include "kernels/ops.h"

#include <stdlib.h>
#include <string.h>

static status check(const options *opts, int world_size)
{
    model_kind kind = MODEL_MLP;
    mesh placed;
    TRY(model_kind_parse(opts->model, &kind));
    TRY(strategy_place(opts, 0, world_size, &placed));
    int shards = placed.model.world_size;
    if (shards < 2)
        return FAIL(STATUS_INVALID, "--mode=tp: one rank has all of each layer: give "
                                    "--nproc-per-node=2 or more, or --mode=single");
    if (shards > network_tp_most(kind))
        return FAIL(STATUS_INVALID,
                    "--mode=tp: --model=%s can be cut for %d ranks at most, this job has %d: give "
                    "%d in all, as by --nproc-per-node=%d",
                    opts->model, network_tp_most(kind), shards, network_tp_most(kind),
                    network_tp_most(kind));
    if (opts->scale_lr)
        return FAIL(STATUS_INVALID, "--mode=tp: --scale-lr is for ranks with a batch each, and all "
                                    "ranks share one: leave it out, or give --lr");
    if (opts->clip_grad_norm > 0)
        return FAIL(STATUS_INVALID, "--mode=tp: with --clip-grad-norm each rank would know the "
                                    "norm of its own gradients only: leave it out");
    if (strcmp(opts->amp, "fp16") == 0)
        return FAIL(STATUS_INVALID, "--mode=tp: with --amp=fp16 each rank would see an overflow of "
                                    "its own gradients only: give --amp=bf16");
    return strategy_ranks_check(opts);
}

/* The sum goes to all ranks; then the rank goes on with what it did. */
static status all_reduce(void *ctx, void *data, size_t count, size_t element_bytes)
{
    rank_context *rank = ctx;
    moment was = rank->timeline.entered;
    const collective c = {.kind = COLLECTIVE_ALL_REDUCE,
                          .op = REDUCE_SUM,
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

static void share_network(const rank_context *rank, network_share *out)
{
    const mesh_axis *p = &rank->mesh.model;
    out->tp = (network_tp){p->rank, p->world_size, all_reduce, (void *)rank};
    out->gradients =
        network_tp_parameters(rank->settings.model, p->rank, p->world_size) + PREEMPT_FLOATS;
}

static status synchronize(rank_context *rank, void *self)
{
    TRY(strategy_ranks_average_gradients(rank));
    return strategy_ranks_sum_wish(rank, self);
}

/* Host memory for a shard of any rank, for all of them on rank 0; in one block, which `own`
 * begins. */
static status alloc_shards(const rank_context *rank, size_t shard, float **own, float **all)
{
    size_t shards = rank->mesh.model.rank == 0 ? 1 + (size_t)rank->mesh.model.world_size : 1;
    TRY(memory_alloc(sizeof **own * shard * shards, (void **)own));
    *all = *own + shard;
    return STATUS_OK;
}

static status gather_shards(rank_context *rank, size_t arena, size_t shard, float *own, float *all)
{
    const collective c = {.kind = COLLECTIVE_GATHER,
                          .type = DTYPE_F32,
                          .in = own,
                          .out = rank->mesh.model.rank == 0 ? all : NULL,
                          .count = shard,
                          .label = "the model's parts to rank 0"};
    TRY(network_export(rank->net, strategy_ranks_arena(rank, arena), own));
    return process_group_run(rank->mesh.model.group, &c, NULL);
}

static status scatter_shards(rank_context *rank, size_t arena, size_t shard, float *own,
                             const float *all)
{
    const collective c = {.kind = COLLECTIVE_SCATTER,
                          .type = DTYPE_F32,
                          .in = rank->mesh.model.rank == 0 ? all : NULL,
                          .out = own,
                          .count = shard,
                          .label = "the model's parts from rank 0"};
    TRY(process_group_run(rank->mesh.model.group, &c, NULL));
    return network_import(rank->net, own, strategy_ranks_arena(rank, arena));
}

/* No shard is larger than rank 0's. */
static size_t shard_floats(const rank_context *rank)
{
    return network_tp_parameters(rank->settings.model, 0, rank->mesh.model.world_size);
}

static status read_state(rank_context *rank, void *self, size_t arena, float *host)
{
    float *own = NULL, *all = NULL;
    size_t shard = shard_floats(rank);
    (void)self;
    if (rank->mesh.dp.rank > 0) /* it has what the first row has */
        return STATUS_OK;
    TRY(alloc_shards(rank, shard, &own, &all));
    status st = gather_shards(rank, arena, shard, own, all);
    for (int r = 0; r < rank->mesh.model.world_size && host != NULL && st == STATUS_OK; r++)
        network_tp_reorder(rank->net, r, host, all + (size_t)r * shard, NETWORK_EXPORT);
    free(own);
    return st;
}

static status write_state(rank_context *rank, void *self, size_t arena, const float *host)
{
    float *own = NULL, *all = NULL;
    size_t shard = shard_floats(rank);
    (void)self;
    if (rank->mesh.dp.rank > 0) /* it has what the first row has */
        return STATUS_OK;
    TRY(alloc_shards(rank, shard, &own, &all));
    for (int r = 0; r < rank->mesh.model.world_size && host != NULL; r++)
        network_tp_reorder(rank->net, r, (float *)host, all + (size_t)r * shard, NETWORK_IMPORT);
    status st = scatter_shards(rank, arena, shard, own, all);
    free(own);
    return st;
}

static void describe(const rank_context *rank, void *self, FILE *out)
{
    const parameter *fc1 = NULL, *all = NULL;
    model_kind kind = rank->settings.model;
    int first, batch_size = rank->settings.batch_size, n = rank->mesh.model.world_size;
    (void)self;
    for (int r = 0; r < n; r++) {
        int last = network_tp_outputs(kind, r, n, &first) - 1;
        size_t count = network_tp_parameters(kind, r, n);
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
              .least_ranks = 2,
              .axis = "tp",
              .cuts_model = true,
              .most_ranks = network_tp_most,
              .can_be_captured = true,
              .has_peer = true,
              .advice = "take it if a layer is too large for a device and links are fast: a step "
                        "stops for sums of activations, layer by layer"},
    .check = check,
    .network = share_network,
    .read_state = read_state,
    .write_state = write_state,
    .forward_backward = strategy_ranks_pass,
    .synchronize = synchronize,
    .optimizer_step = strategy_ranks_optimizer_step,
    .backend = strategy_ranks_backend,
    .use = strategy_ranks_use,
    .describe = describe,
};
