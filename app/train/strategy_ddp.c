/* DistributedDataParallel: buckets of gradients are averaged over all ranks while backward goes on.
 */
#include "app/train/strategy_ops.h"
#include "dist/comm_hook.h"
#include "dist/ddp.h"

#include <stdlib.h>
#include <string.h>

#define MIB (1024.0 * 1024.0)
#define HOOK_ON_CPU \
    "--comm-hook=%s works on gradients in host memory: use --device=cpu, or --comm-hook=bf16"

enum { FIRST_BUCKET_MIB = 1, BUCKET_CAP_MIB = 25 }; /* PyTorch's */

typedef struct ddp_strategy {
    ddp *reducer;
    comm_hook *hook; /* NULL: gradients are sent as they are */
} ddp_strategy;

static status check(const options *opts, int n)
{
    (void)n;
    bool powersgd = opts->comm_hook != NULL && strcmp(opts->comm_hook, "powersgd") == 0;
    if (powersgd && strncmp(opts->device, "cuda", strlen("cuda")) == 0)
        return FAIL(STATUS_INVALID, HOOK_ON_CPU, opts->comm_hook);
    return STATUS_OK;
}

static status to_plain(void *net, const float *from, float *to)
{
    return network_export(net, from, to);
}

static status from_plain(void *net, const float *from, float *to)
{
    return network_import(net, from, to);
}

static status open_hook(rank_context *rank, ddp_strategy *s)
{
    const parameter *parameters = NULL;
    comm_hook_matrix matrices[NETWORK_MAX_PARAMETERS];
    size_t n = network_layout(rank->net, &parameters);
    comm_hook_options settings = {.rank = (int)rank->opts->powersgd_rank,
                                  .start_iter = rank->opts->powersgd_start_iter,
                                  .to_plain = to_plain,
                                  .from_plain = from_plain,
                                  .ctx = rank->net};
    TRY(comm_hook_parse(rank->opts->comm_hook, &settings.kind));
    if (settings.kind == COMM_HOOK_NONE)
        return STATUS_OK;
    bool on_host = rank->dev->stream == NULL;
    if (settings.kind == COMM_HOOK_POWERSGD && !on_host)
        return FAIL(STATUS_INVALID, HOOK_ON_CPU, rank->opts->comm_hook);
    for (size_t i = 0; i < n; i++) {
        const parameter *p = &parameters[i];
        size_t rows = p->rank > 1 ? (size_t)p->shape[0] : p->count;
        matrices[i] = (comm_hook_matrix){p->offset, rows, p->count / rows};
    }
    comm_hook_arena arena = {
        rank->gradients,           network_count(rank->net), PREEMPT_FLOATS, matrices, n,
        on_host ? NULL : rank->dev};
    return comm_hook_create(rank->group, &settings, &arena, &s->hook);
}

static void close_reducer(void *self)
{
    ddp_strategy *s = self;
    ddp_destroy(s->reducer);
    comm_hook_destroy(s->hook);
}

static status open_reducer(rank_context *rank, void *self)
{
    ddp_strategy *s = self;
    const parameter *parameters = NULL;
    const char *names[NETWORK_MAX_PARAMETERS];
    size_t n = network_layout(rank->net, &parameters), offsets[NETWORK_MAX_PARAMETERS];
    for (size_t i = 0; i < n; i++) {
        offsets[i] = parameters[i].offset;
        names[i] = parameters[i].name;
    }
    TRY(open_hook(rank, s));
    double cap = rank->opts->bucket_cap_mb;
    ddp_options settings = {.first_bucket_bytes =
                                (size_t)((cap < 0 ? FIRST_BUCKET_MIB : cap) * MIB),
                            .bucket_cap_bytes = (size_t)((cap < 0 ? BUCKET_CAP_MIB : cap) * MIB),
                            .overlap = rank->opts->overlap,
                            .hook = s->hook};
    ddp_parameters all = {network_count(rank->net), offsets, n};
    TRY(ddp_create(rank->group, rank->gradients, &all, &settings, &s->reducer));
    ddp_carry(s->reducer, PREEMPT_FLOATS);
    return ddp_name_parameters(s->reducer, names);
}

static status forward_backward(rank_context *rank, void *self, const step_batch *b)
{
    return strategy_ranks_forward_backward(rank, b, b->last ? ddp_on_grad_ready : NULL,
                                           ((ddp_strategy *)self)->reducer);
}

static status synchronize(rank_context *rank, void *self)
{
    TRY(timeline_enter(&rank->timeline, MOMENT_DDP_WAIT));
    return ddp_wait(((ddp_strategy *)self)->reducer);
}

/* Backward hides some of it if the backend has threads of its own (gloo) or a device (NCCL). Of the
 * device's own collectives nobody knows the ends. */
static int64_t comm_ns(const rank_context *rank, void *self, int64_t exposed_ns)
{
    if (rank->dev->stream == NULL)
        return ddp_elapsed(((ddp_strategy *)self)->reducer).comm_ns;
    return rank->place.world_size == 1 ? exposed_ns : -1;
}

/* The parameters of one bucket, as they become ready. */
static void describe_bucket(const rank_context *rank, const ddp *reducer, size_t index, FILE *out)
{
    const parameter *parameters = NULL;
    size_t offset, count, last = network_layout(rank->net, &parameters), first;
    ddp_bucket(reducer, index, &offset, &count);
    while (parameters[last - 1].offset >= offset + count)
        last--;
    for (first = last; first > 0 && parameters[first - 1].offset >= offset;)
        first--;
    fprintf(out, "bucket %zu: %.2f MB, %zu tensors from %s to %s\n", index,
            (double)(count * sizeof(float)) * 1e-6, last - first, parameters[last - 1].name,
            parameters[first].name);
}

static void describe(const rank_context *rank, void *self, FILE *out)
{
    const ddp_strategy *s = self;
    size_t count = network_count(rank->net);
    const collective all = {.kind = COLLECTIVE_ALL_REDUCE, .type = DTYPE_F32, .count = count};
    rank_traffic moves = process_group_expect_traffic(rank->group, &all);
    fprintf(out, "gradients, %.2f MB, averaged over all ranks: an all_reduce of each\n",
            (double)(count * sizeof(float)) * 1e-6);
    fprintf(out, "bucket, %s\n",
            rank->opts->overlap ? "while backward goes on to earlier layers" : "after backward");
    for (size_t i = 0; i < ddp_buckets(s->reducer); i++)
        describe_bucket(rank, s->reducer, i, out);
    fprintf(out, "rank 0 sends %.2f MB in a step, and gets %.2f MB%s\n", (double)moves.sent * 1e-6,
            (double)moves.received * 1e-6, s->hook != NULL ? " (less by --comm-hook)" : "");
    fputs("each rank makes the same optimizer step: parameters are not sent\n", out);
}

const strategy_ops strategy_ddp = {
    .facts = {.name = "ddp",
              .title = "ranks",
              .unit = "rank",
              .can_be_captured = true,
              .has_peer = true,
              .advice = "take it first if the network fits a device: backward hides most of what "
                        "is sent"},
    .check = check,
    .self_bytes = sizeof(ddp_strategy),
    .open = open_reducer,
    .close = close_reducer,
    .forward_backward = forward_backward,
    .synchronize = synchronize,
    .comm_ns = comm_ns,
    .describe = describe,
};
