/* FSDP (PyTorch's fully_shard; ZeRO stage 3: Rajbhandari et al., 2020): each rank has a slice of
 * the parameters, of the gradients and of the optimizer's state, and steps that.
 *
 * A unit is a part of the network, a layer or all convolutions. Its parameters are all-gathered
 * before it computes, and those of the next one meanwhile. Its gradients are reduce-scattered as
 * soon as they are there. So each rank has its shard, which is a slice of every unit, and two
 * buffers that the units take in turn:
 *
 *   forward    buffer 0   [gather 0]  fc1        [gather 2]  fc3
 *              buffer 1               [gather 1]  fc2
 *   backward   buffer 0   fc3, its gradients             [its gradients of fc1]
 *              buffer 1               fc2, its gradients
 *
 * In backward a unit's gradients take the place of its parameters. With --accum they are added up
 * over batches, as ddp's: there is a whole array of them, as under PyTorch's
 * set_requires_gradient_sync(False).
 *
 * Sums have ddp's bits wherever a backend sums in rank order. Slices are equal, of whole cache
 * lines, and the last ones may hold padding, whose gradients are zero. The wish to stop travels
 * behind the gradients of the last unit, the logits' layer, which is small: these are all-reduced,
 * so that each rank gets the wish, and no step has a message more.
 */
#include "app/train/strategy_ops.h"
#include "base/memory.h"
#include "dist/process_group/process_group.h"
#include "kernels/ops.h"

#include <stdlib.h>
#include <string.h>

enum { LINE_FLOATS = 16, BUFFERS = 2, MAX_WORKS = 4, NO_UNIT = -1 };

/* Of a unit, in floats. */
typedef struct fsdp_unit {
    size_t count;  /* its parameters */
    size_t slice;  /* a rank's */
    size_t shard;  /* where it begins in a shard; */
    size_t padded; /* and with all ranks' slices, where in a whole array */
} fsdp_unit;

typedef struct fsdp_layout {
    fsdp_unit units[NETWORK_MAX_PARAMETERS];
    int n;
    size_t shard, padded;    /* of all units */
    size_t padding;          /* of one unit, at most */
    size_t buffers[BUFFERS]; /* the greatest unit of each */
} fsdp_layout;

/* A collective under way. */
typedef struct fsdp_work {
    work *work;
    int reduces; /* the unit whose gradients; NO_UNIT: it gathers */
} fsdp_work;

typedef struct fsdp {
    rank_context *rank;
    fsdp_layout layout;
    float *buffers[BUFFERS];
    float *gradients;  /* with --accum: of all units, padded; NULL: they are in the buffers */
    const float *wish; /* this rank's, and zeros behind it */
    int held[BUFFERS]; /* whose parameters are there, or on their way; NO_UNIT: nobody's */
    uint64_t brought[BUFFERS]; /* the number of the gather */
    fsdp_work works[MAX_WORKS];
    uint64_t launched, awaited; /* all are waited for in the order of their launch */
    bool evaluates;             /* a test's batch: no time is counted */
    bool last;                  /* of the step's batches: gradients are final */
    int64_t comm_ns;
} fsdp;

static size_t round_up(size_t count, size_t to)
{
    return (count + to - 1) / to * to;
}

/* The last unit has the wish to stop behind its gradients. */
static fsdp_layout layout_of(const rank_context *rank)
{
    size_t world_size = (size_t)rank->mesh.model.world_size;
    fsdp_layout all = {.n = network_parts(rank->settings.model)};
    ASSERT(all.n <= NETWORK_MAX_PARAMETERS);
    for (int i = 0; i < all.n; i++) {
        size_t count =
            network_cut_count(rank->settings.model, (network_cut){.first_part = i, .n_parts = 1});
        size_t sent = count + (i + 1 == all.n ? PREEMPT_FLOATS : 0);
        size_t slice = round_up((sent + world_size - 1) / world_size, LINE_FLOATS);
        size_t padding = slice * world_size - count, *buffer = &all.buffers[i % BUFFERS];
        all.units[i] = (fsdp_unit){count, slice, all.shard, all.padded};
        all.shard += slice;
        all.padded += slice * world_size;
        all.padding = padding > all.padding ? padding : all.padding;
        *buffer = slice * world_size > *buffer ? slice * world_size : *buffer;
    }
    return all;
}

/* The array of gradients: those of the shard, the wish and zeros, and what is not sharded. */
static size_t after_wish(const fsdp_layout *l)
{
    return l->shard + round_up(PREEMPT_FLOATS + l->padding, LINE_FLOATS);
}

static void share_network(const rank_context *rank, network_share *out)
{
    const fsdp_layout l = layout_of(rank);
    out->shard = l.shard;
    out->parameters = l.shard + PREEMPT_FLOATS;
    out->gradients = after_wish(&l) + l.buffers[0] + l.buffers[1];
    if (rank->opts->accum > 1)
        out->gradients += l.padded;
}

/* Copies this rank's slice of a unit, without padding. */
static status copy_own(const fsdp *f, const fsdp_unit *u, copy_op *copy, float *to,
                       const float *from)
{
    size_t begin = u->slice * (size_t)f->rank->mesh.model.rank;
    size_t at = begin < u->count ? begin : u->count, left = u->count - at;
    size_t count = left < u->slice ? left : u->slice;
    return copy(f->rank->dev, to + u->shard, from + at, count * sizeof *to);
}

static float *room_of(const fsdp *f, int unit)
{
    return f->gradients != NULL           ? f->gradients + f->layout.units[unit].padded
           : unit == 0 && f->held[0] == 0 ? f->buffers[1] /* they are still read */
                                          : f->buffers[unit % BUFFERS];
}

/* All ranks have the sum of the last unit's gradients, and of the wishes. */
static status take_last(const fsdp *f, const float *sum)
{
    device *dev = f->rank->dev;
    const fsdp_unit *u = &f->layout.units[f->layout.n - 1];
    TRY(copy_own(f, u, dev->ops->copy, f->rank->gradients, sum));
    return dev->ops->copy(dev, f->rank->parameters + f->layout.shard, sum + u->count,
                          PREEMPT_FLOATS * sizeof *sum);
}

static status await_oldest(fsdp *f)
{
    int64_t ns = 0;
    const fsdp_work *w = &f->works[f->awaited++ % MAX_WORKS];
    TRY(process_group_wait(f->rank->mesh.model.group, w->work, &ns));
    f->comm_ns += f->evaluates ? 0 : ns;
    return w->reduces == f->layout.n - 1 ? take_last(f, room_of(f, w->reduces)) : STATUS_OK;
}

/* All collectives up to number `until` are done. */
static status await(fsdp *f, uint64_t until, moment m)
{
    timeline *t = &f->rank->timeline;
    moment was = t->entered;
    bool enters = f->awaited < until && !f->evaluates;
    if (enters)
        TRY(timeline_enter(t, m));
    while (f->awaited < until)
        TRY(await_oldest(f));
    return enters ? timeline_enter(t, was) : STATUS_OK;
}

static status launch(fsdp *f, const collective *c, int reduces)
{
    fsdp_work *w = &f->works[f->launched % MAX_WORKS];
    ASSERT(f->launched - f->awaited < MAX_WORKS);
    w->reduces = reduces;
    TRY(process_group_launch(f->rank->mesh.model.group, c, f->rank->dev->stream, &w->work));
    f->launched++;
    return STATUS_OK;
}

static status prefetch(void *self, int unit)
{
    fsdp *f = self;
    const fsdp_unit *u = &f->layout.units[unit];
    int buffer = unit % BUFFERS;
    const collective c = {.kind = COLLECTIVE_ALL_GATHER,
                          .in = f->rank->parameters + u->shard,
                          .out = f->buffers[buffer],
                          .count = u->slice,
                          .label = "a layer's parameters, a slice from each rank"};
    if (f->held[buffer] == unit)
        return STATUS_OK;
    TRY(launch(f, &c, NO_UNIT));
    f->held[buffer] = unit;
    f->brought[buffer] = f->launched;
    return STATUS_OK;
}

static status unshard(void *self, int unit, const float **out)
{
    fsdp *f = self;
    TRY(prefetch(f, unit));
    TRY(await(f, f->brought[unit % BUFFERS], MOMENT_GATHER));
    *out = f->buffers[unit % BUFFERS];
    return STATUS_OK;
}

/* The gradients of the unit before have left: what is gathered next takes their place. */
static status take_room(void *self, int unit, float **out)
{
    fsdp *f = self;
    TRY(await(f, f->launched, MOMENT_REDUCE));
    *out = room_of(f, unit);
    ASSERT(*out != f->buffers[1] ||
           f->layout.units[unit].slice * (size_t)f->rank->mesh.model.world_size <=
               f->layout.buffers[1]);
    for (int i = 0; i < BUFFERS; i++)
        if (f->buffers[i] == *out)
            f->held[i] = NO_UNIT;
    return STATUS_OK;
}

/* Behind the gradients there may be what was there before: the sums of padding are to be zero. */
static status reduce(void *self, int unit)
{
    fsdp *f = self;
    device *dev = f->rank->dev;
    size_t world_size = (size_t)f->rank->mesh.model.world_size;
    const fsdp_unit *u = &f->layout.units[unit];
    bool all = unit + 1 == f->layout.n;
    float *room = room_of(f, unit);
    const collective c = {.kind = all ? COLLECTIVE_ALL_REDUCE : COLLECTIVE_REDUCE_SCATTER,
                          .in = room,
                          .out = all ? room : f->rank->gradients + u->shard,
                          .count = all ? u->count + PREEMPT_FLOATS : u->slice,
                          .prescale = 1.0f / (float)world_size,
                          .label = all ? "the last layer's gradients and the wish to stop"
                                       : "a layer's gradients, a slice to each rank"};
    if (!f->last)
        return STATUS_OK;
    TRY(dev->ops->copy(dev, room + u->count, f->wish + (all ? 0 : PREEMPT_FLOATS),
                       (u->slice * world_size - u->count) * sizeof *room));
    return launch(f, &c, unit);
}

/* All ranks have drawn the same. */
static status keep(void *self, int unit, const float *parameters)
{
    const fsdp *f = self;
    return copy_own(f, &f->layout.units[unit], f->rank->dev->ops->upload, f->rank->parameters,
                    parameters);
}

static void forget(fsdp *f)
{
    for (int i = 0; i < BUFFERS; i++)
        f->held[i] = NO_UNIT;
}

static status open_shard(rank_context *rank, void *self)
{
    fsdp *f = self;
    *f = (fsdp){.rank = rank, .layout = layout_of(rank)};
    const network_sharding hooks = {f, prefetch, unshard, take_room, reduce, keep};
    f->wish = rank->gradients + f->layout.shard;
    f->buffers[0] = rank->gradients + after_wish(&f->layout);
    f->buffers[1] = f->buffers[0] + f->layout.buffers[0];
    if (rank->opts->accum > 1)
        f->gradients = f->buffers[1] + f->layout.buffers[1];
    forget(f);
    return network_shard(rank->net, &hooks);
}

/* What the step before has gathered is old. A graph that was replayed has left other units. */
static status forward_backward(rank_context *rank, void *self, const step_batch *b)
{
    fsdp *f = self;
    forget(f);
    f->last = b->last;
    f->evaluates = false;
    return strategy_ranks_forward_backward(rank, b, NULL, NULL);
}

/* In a mesh, then, of ranks with the same slices (PyTorch's hybrid sharding). */
static status synchronize(rank_context *rank, void *self)
{
    fsdp *f = self;
    TRY(await(f, f->launched, MOMENT_REDUCE));
    TRY(strategy_ranks_average(rank, rank->gradients, f->layout.shard,
                               "gradients of the same slices"));
    return strategy_ranks_average(rank, rank->parameters + f->layout.shard, PREEMPT_FLOATS,
                                  "the wish to stop");
}

/* A rank that has no batch left gathers what the others need. */
static status evaluate(rank_context *rank, void *self, const batch *in)
{
    fsdp *f = self;
    const float *parameters = NULL;
    forget(f);
    f->evaluates = true;
    if (in != NULL) {
        TRY(network_forward(rank->net, in, NETWORK_EVAL));
        return network_score(rank->net);
    }
    for (int unit = 0; unit < f->layout.n; unit++)
        TRY(unshard(f, unit, &parameters));
    return STATUS_OK;
}

static status move_state(rank_context *rank, void *self, size_t arena, network_order way,
                         float *host)
{
    const fsdp *f = self;
    float *state = strategy_ranks_arena(rank, arena);
    for (int i = 0; i < f->layout.n; i++) {
        const fsdp_unit *u = &f->layout.units[i];
        const state_slice own = {state + u->shard, u->slice, u->slice, i};
        TRY(strategy_ranks_move_slice(rank, &own, way, host));
        host += host != NULL ? u->count : 0;
    }
    return STATUS_OK;
}

static int64_t comm_ns(const rank_context *rank, void *self, int64_t exposed_ns)
{
    (void)exposed_ns;
    return rank->dev->stream == NULL ? ((const fsdp *)self)->comm_ns : -1;
}

static double mb(size_t floats)
{
    return (double)(floats * sizeof(float)) * 1e-6;
}

static void describe(const rank_context *rank, void *self, FILE *out)
{
    const fsdp *f = self;
    const fsdp_layout *l = &f->layout;
    fprintf(out,
            "each rank has, and steps, 1/%d of the parameters, %.2f MB, with their gradients\n",
            rank->mesh.model.world_size, mb(network_model_count(rank->net)));
    fputs("and optimizer state; a layer is gathered when it computes, the next meanwhile:\n", out);
    fprintf(out, "%.2f MB have room for both, and in backward for their gradients\n",
            mb(l->buffers[0] + l->buffers[1]));
    fputs("gradients are averaged over all ranks, layer by layer, a slice to each rank\n", out);
    if (rank->mesh.dp.group != NULL)
        fputs("and then over the rows: ranks with the same slices\n", out);
    if (f->gradients != NULL)
        fprintf(out, "before that each rank adds up its own of all batches: %.2f MB\n",
                mb(l->padded));
}

const strategy_ops strategy_fsdp = {
    .facts = {.name = "fsdp",
              .title = "mode fsdp, ranks",
              .unit = "rank",
              .alone = "one rank has nothing to share",
              .axis = "fsdp",
              .can_be_captured = true,
              .has_peer = true,
              .advice = "take it if parameters, gradients and optimizer state together do not fit: "
                        "a slice of all three each"},
    .self_bytes = sizeof(fsdp),
    .open = open_shard,
    .network = share_network,
    .move_state = move_state,
    .forward_backward = forward_backward,
    .synchronize = synchronize,
    .evaluate = evaluate,
    .comm_ns = comm_ns,
    .describe = describe,
};
