/* A batch is cut into images for forward, and into pieces of images for backward: each piece has
 * gradients of its own, which are summed in the order of the pieces. */

#include "base/memory.h"
#include "base/trace.h"
#include "kernels/cpu/state.h"

#include <stdlib.h>
#include <string.h>

enum {
    PIECE_IMAGES = 16, /* a piece has at least */
    MAX_PIECES = 16,   /* a batch's: a piece has 300 KB of gradients */
};

/* By kind. */
static const conv_block_shape shapes[CONV_BLOCK_KINDS] = {
    [CONV_BLOCK_CNN] = {.conv = {{1, 28, 28, 32, 3, .plain_input = true, .relu = true},
                                 {32, 26, 26, 64, 3, .plain_input = false, .relu = false}}},
    [CONV_BLOCK_SPEEDRUN] = {.conv = {{1, 28, 28, 16, 5, .plain_input = true, .relu = false},
                                      {16, 12, 12, 32, 3, .plain_input = false, .relu = false}},
                             .pool_between = true},
};

typedef struct conv_block_plan {
    const conv_block_shape *shape;
    const conv_block_kernels *kernels;
    conv_block_sizes sizes;
    cpu_state *cpu;
    /* scratch: (members of the team); partial: (pieces); kept: (max_n) */
    float *prepared, *scratch, *partial, *kept;
    int nonzero; /* a backward's dy has */
} conv_block_plan;

static conv_block_plan *plan_of(conv_block *plan)
{
    return (conv_block_plan *)(void *)plan;
}

static int round_up(int n, int multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

static int images_of_piece(const conv_block_plan *p, int n)
{
    int spread = round_up(n, MAX_PIECES) / MAX_PIECES;
    return round_up(spread > PIECE_IMAGES ? spread : PIECE_IMAGES, p->sizes.images);
}

static int pieces_of(const conv_block_plan *p, int n)
{
    int images = images_of_piece(p, n);
    return round_up(n, images) / images;
}

static bool same_conv(const conv2d_shape *a, const conv2d_shape *b)
{
    return a->channels == b->channels && a->height == b->height && a->width == b->width &&
           a->out_channels == b->out_channels && a->kernel == b->kernel &&
           a->plain_input == b->plain_input && a->relu == b->relu;
}

static status find(const conv_block_shape *shape, conv_block_kind *out)
{
    for (int kind = 0; kind < CONV_BLOCK_KINDS; kind++) {
        const conv_block_shape *known = &shapes[kind];
        if (same_conv(&shape->conv[0], &known->conv[0]) &&
            same_conv(&shape->conv[1], &known->conv[1]) &&
            shape->pool_between == known->pool_between) {
            *out = (conv_block_kind)kind;
            return STATUS_OK;
        }
    }
    const conv2d_shape *a = &shape->conv[0], *b = &shape->conv[1];
    return FAIL(STATUS_INVALID,
                "cpu device: no code for convolutions of %d channels %dx%d by %dx%d "
                "and of %d by %dx%d",
                a->out_channels, a->height, a->width, a->kernel, a->kernel, b->out_channels,
                b->kernel, b->kernel);
}

/* Memory of a plan lives as long as its network. */
static status plan_alloc(const conv_block_plan *p, size_t floats, float **out)
{
    TRY(memory_alloc(sizeof **out * floats, (void **)out));
    device_note_memory(p->cpu->dev, (int64_t)(sizeof **out * floats));
    return STATUS_OK;
}

static status plan_open(conv_block_plan *p, int max_n)
{
    size_t members = (size_t)team_threads(p->cpu->team);
    TRY(plan_alloc(p, p->sizes.prepared, &p->prepared));
    TRY(plan_alloc(p, p->sizes.scratch * members, &p->scratch));
    if (p->sizes.kept > 0)
        TRY(plan_alloc(p, p->sizes.kept * (size_t)max_n, &p->kept));
    return plan_alloc(p, p->sizes.partial * (size_t)pieces_of(p, max_n), &p->partial);
}

status cpu_conv_block_create(device *dev, const conv_block_shape *shape, int max_n,
                             conv_block **out)
{
    conv_block_kind kind = CONV_BLOCK_KINDS;
    conv_block_plan *p = NULL;
    TRY(find(shape, &kind));
    TRY(memory_alloc(sizeof *p, (void **)&p));
    p->cpu = cpu_of(dev);
    p->shape = &shapes[kind];
    const vector_ops *vec = p->cpu->vec;
    p->kernels =
        &(dev->precision == PRECISION_BF16 ? vec->conv_blocks_bf16 : vec->conv_blocks)[kind];
    p->sizes = p->kernels->sizes(p->cpu->dense);
    status st = plan_open(p, max_n);
    if (st != STATUS_OK) {
        cpu_conv_block_destroy((conv_block *)(void *)p);
        return st;
    }
    *out = (conv_block *)(void *)p;
    return STATUS_OK;
}

void cpu_conv_block_destroy(conv_block *plan)
{
    if (plan == NULL)
        return;
    free(plan_of(plan)->prepared);
    free(plan_of(plan)->scratch);
    free(plan_of(plan)->partial);
    free(plan_of(plan)->kept);
    free(plan);
}

status cpu_conv_block_import(conv_block *plan, int conv, const float *plain, float *weight)
{
    plan_of(plan)->kernels->order(conv, plain, weight, true);
    return STATUS_OK;
}

status cpu_conv_block_export(conv_block *plan, int conv, const float *weight, float *plain)
{
    plan_of(plan)->kernels->order(conv, weight, plain, false);
    return STATUS_OK;
}

typedef struct block_job {
    conv_block_plan *p;
    const conv_block_batch *batch;
    const dropout *drop;
    const float *dy;
    float scale;
} block_job;

/* The images from `first` on that go together, of those before `end`. */
static conv_block_group group_at(const block_job *job, int first, int end)
{
    conv_block_plan *p = job->p;
    int left = end - first, most = p->sizes.images;
    size_t kept = (size_t)first * p->sizes.kept;
    return (conv_block_group){.batch = job->batch,
                              .prepared = p->prepared,
                              .first = first,
                              .dense = p->cpu->dense,
                              .nonzero = &p->nonzero,
                              .count = left < most ? left : most,
                              .kept = kept > 0 ? p->kept + kept : p->kept,
                              .scratch = p->scratch + (size_t)team_member() * p->sizes.scratch};
}

static void forward_group(void *arg, int piece)
{
    const block_job *job = arg;
    conv_block_group group = group_at(job, piece * job->p->sizes.images, job->batch->n);
    job->p->kernels->forward(&group, job->drop);
}

status cpu_conv_block_forward(conv_block *plan, const conv_block_batch *batch, const dropout *drop)
{
    conv_block_plan *p = plan_of(plan);
    block_job job = {.p = p, .batch = batch, .drop = drop};
    int images = p->sizes.images;
    p->kernels->prepare(batch, p->cpu->dense, p->prepared);
    team_run(p->cpu->team, forward_group, &job, round_up(batch->n, images) / images);
    return STATUS_OK;
}

static void backward_piece(void *arg, int piece)
{
    const block_job *job = arg;
    const conv_block_plan *p = job->p;
    float *partial = p->partial + (size_t)piece * p->sizes.partial;
    memset(partial, 0, sizeof *partial * p->sizes.partial);
    int images = images_of_piece(p, job->batch->n), first = piece * images, end = first + images;
    if (end > job->batch->n)
        end = job->batch->n;
    for (int i = first; i < end; i += p->sizes.images) {
        conv_block_group group = group_at(job, i, end);
        p->kernels->backward(&group, job->scale, job->dy, partial);
    }
}

status cpu_conv_block_backward(conv_block *plan, const conv_block_batch *batch, float dropout_p,
                               const float *dy, const param_gradients *out)
{
    conv_block_plan *p = plan_of(plan);
    block_job job = {.p = p, .batch = batch, .dy = dy, .scale = 1.0f / (1.0f - dropout_p)};
    int pieces = pieces_of(p, batch->n);
    p->nonzero = 0;
    team_run(p->cpu->team, backward_piece, &job, pieces);
    for (int piece = 1; piece < pieces; piece++)
        p->cpu->vec->add(p->partial, p->partial + (size_t)piece * p->sizes.partial,
                         p->sizes.partial);
    p->kernels->finish(p->partial, p->cpu->dense, out);
    const conv2d_shape *last = &p->shape->conv[CONV_BLOCK_CONVS - 1];
    int pooled = (last->height - last->kernel + 1) / 2;
    int64_t all = (int64_t)batch->n * last->out_channels * pooled * pooled;
    if (!p->cpu->dense && all > 0)
        trace_number(p->cpu->dev->lane, CPU_NONZERO, 100 * p->nonzero / all);
    return STATUS_OK;
}
