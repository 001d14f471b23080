/* The CPU device: loops that the compiler vectorises for each generation of processor. */
#include "base/memory.h"
#include "base/thread.h"
#include "base/trace.h"
#include "kernels/clip_math.h"
#include "kernels/cpu/state.h"
#include "kernels/host.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

status cpu_reserve_scratch(cpu_state *cpu, size_t floats)
{
    if (floats <= cpu->scratch_floats)
        return STATUS_OK;
    float *larger = NULL;
    TRY(memory_alloc(sizeof *larger * floats, (void **)&larger));
    device_note_memory(cpu->dev, (int64_t)(sizeof *larger * (floats - cpu->scratch_floats)));
    free(cpu->scratch);
    cpu->scratch = larger;
    cpu->scratch_floats = floats;
    return STATUS_OK;
}

static void destroy(device *dev)
{
    cpu_state *cpu = cpu_of(dev);
    team_destroy(cpu->team);
    free(cpu->scratch);
    free(cpu);
}

static status trace_members(device *dev, trace *t)
{
    return team_trace(cpu_of(dev)->team, t, dev->lane);
}

static void bind_members(device *dev, const cores *own)
{
    team_bind(cpu_of(dev)->team, own);
}

/* Batches from the data set. Its images lie in random order in memory that no cache holds, so those
 * of the next image are asked for while one is normalised. */

enum {
    IMAGES = 8, /* a piece's */
    LINE_BYTES = 64,
};

typedef struct gather_job {
    const vector_ops *vec;
    const gather_source *source;
    const uint32_t *order; /* the batch's */
    uint32_t epoch;
    int n;
    const gather_output *out;
} gather_job;

static const uint8_t *image_of(const gather_source *s, uint32_t index)
{
    return s->images + (size_t)index * (size_t)s->pixels;
}

static void prefetch_image(const gather_source *s, uint32_t index)
{
    const uint8_t *image = image_of(s, index);
    for (int at = 0; at < s->pixels; at += LINE_BYTES)
        __builtin_prefetch(image + at);
}

static void place_image(const gather_job *job, uint32_t index, float *x)
{
    const gather_source *s = job->source;
    if (!augmentation_is_on(&s->augment)) {
        job->vec->normalise(image_of(s, index), x, (size_t)s->pixels);
        return;
    }
    affine drawn = augmentation_draw(&s->augment, index, job->epoch);
    affine_map map = augmentation_map(&drawn);
    job->vec->augment(image_of(s, index), &map, x);
}

static void gather_piece(void *arg, int piece)
{
    const gather_job *job = arg;
    const gather_source *s = job->source;
    int first = piece * IMAGES, end = job->n - first < IMAGES ? job->n : first + IMAGES;
    for (int i = first; i < end; i++) {
        uint32_t index = job->order[i];
        if (i + 1 < end)
            prefetch_image(s, job->order[i + 1]);
        place_image(job, index, job->out->x + (size_t)i * (size_t)s->pixels);
        job->out->labels[i] = s->labels[index];
        job->out->samples[i] = index;
    }
}

static status gather(device *dev, const gather_source *source, const step_state *state,
                     uint32_t offset, int n, const gather_output *out)
{
    gather_job job = {.vec = cpu_of(dev)->vec,
                      .source = source,
                      .order = source->order + state->plan.first + offset,
                      .epoch = state->plan.epoch,
                      .n = n,
                      .out = out};
    team_run(cpu_of(dev)->team, gather_piece, &job, (n + IMAGES - 1) / IMAGES);
    return STATUS_OK;
}

/* Elements of one piece of an optimizer step: a few per thread, and each fits the second-level
 * cache. */
enum { OPTIMIZER_PIECE = 64 << 10 };

typedef struct step_job step_job;
typedef void (*optimizer_piece_fn)(const step_job *job, const optimizer_slice *s);

/* An optimizer step is cut into pieces of the flat arenas. */
struct step_job {
    const vector_ops *vec;
    optimizer_piece_fn piece;
    const void *math;
    const optimizer_slice *all;
};

static float *from(float *array, size_t first)
{
    return array != NULL ? array + first : NULL;
}

static void step_piece(void *arg, int piece)
{
    const step_job *job = arg;
    const optimizer_slice *all = job->all;
    size_t first = (size_t)piece * OPTIMIZER_PIECE, left = all->count - first;
    optimizer_slice s = {.param = all->param + first,
                         .grad = all->grad + first,
                         .state1 = from(all->state1, first),
                         .state2 = from(all->state2, first),
                         .count = left < OPTIMIZER_PIECE ? left : OPTIMIZER_PIECE};
    job->piece(job, &s);
}

static status step(device *dev, const optimizer_slice *all, optimizer_piece_fn piece,
                   const void *math)
{
    step_job job = {.vec = cpu_of(dev)->vec, .piece = piece, .math = math, .all = all};
    team_run(cpu_of(dev)->team, step_piece, &job,
             (int)((all->count + OPTIMIZER_PIECE - 1) / OPTIMIZER_PIECE));
    return STATUS_OK;
}

static void sgd_piece(const step_job *job, const optimizer_slice *s)
{
    const sgd_math *m = job->math;
    if (s->state1 == NULL)
        job->vec->sgd_plain(s->param, s->grad, s->count, *m);
    else
        job->vec->sgd_momentum(s->param, s->grad, s->state1, s->count, *m);
}

static void adam_piece(const step_job *job, const optimizer_slice *s)
{
    const adam_math *m = job->math;
    job->vec->adam(s->param, s->grad, s->state1, s->state2, s->count, *m);
}

static void adadelta_piece(const step_job *job, const optimizer_slice *s)
{
    const adadelta_math *m = job->math;
    job->vec->adadelta(s->param, s->grad, s->state1, s->state2, s->count, *m);
}

static status sgd_step(device *dev, const optimizer_slice *slice, step_state *state,
                       const sgd_options *options)
{
    sgd_math m = sgd_math_of(options, state);
    return step(dev, slice, sgd_piece, &m);
}

static status adam_step(device *dev, const optimizer_slice *slice, step_state *state,
                        const adam_options *options)
{
    adam_math m = adam_math_of(options, state);
    return step(dev, slice, adam_piece, &m);
}

static status adadelta_step(device *dev, const optimizer_slice *slice, step_state *state,
                            const adadelta_options *options)
{
    adadelta_math m = adadelta_math_of(options, state);
    return step(dev, slice, adadelta_piece, &m);
}

/* Clipping gradients by their norm: one pass of the team for the sum of squares, and one that
 * scales them if the norm is too large. */

enum { PIECES_MOST = 64, PIECE_LEAST = 16 << 10 /* elements */ };

typedef struct clip_job {
    const vector_ops *vec;
    float *grad;
    size_t count, piece; /* elements, of all and of a piece */
    double sums[PIECES_MOST];
    float factor;
} clip_job;

static size_t piece_elements(size_t count)
{
    size_t share = (count + PIECES_MOST - 1) / PIECES_MOST;
    return share > PIECE_LEAST ? share : PIECE_LEAST;
}

static size_t elements_of(const clip_job *job, int piece)
{
    size_t left = job->count - (size_t)piece * job->piece;
    return left < job->piece ? left : job->piece;
}

static void sum_piece(void *arg, int piece)
{
    clip_job *job = arg;
    job->sums[piece] =
        job->vec->sum_of_squares(job->grad + (size_t)piece * job->piece, elements_of(job, piece));
}

static void scale_piece(void *arg, int piece)
{
    const clip_job *job = arg;
    job->vec->scale(job->grad + (size_t)piece * job->piece, elements_of(job, piece), job->factor);
}

static status clip_gradients(device *dev, const gradient_clip *clip, const step_state *state)
{
    (void)state; /* a host scales no loss */
    cpu_state *cpu = cpu_of(dev);
    clip_job job = {.vec = cpu->vec,
                    .grad = clip->grad,
                    .count = clip->count,
                    .piece = piece_elements(clip->count)};
    int pieces = (int)((job.count + job.piece - 1) / job.piece);
    double sum = 0;
    team_run(cpu->team, sum_piece, &job, pieces);
    for (int i = 0; i < pieces; i++)
        sum += job.sums[i];
    *clip->norm = sqrt(sum);
    job.factor = clip_factor(*clip->norm, clip->max_norm);
    if (clip_changes(job.factor))
        team_run(cpu->team, scale_piece, &job, pieces);
    return STATUS_OK;
}

static const device_ops cpu_ops = {
    .name = "cpu",
    .destroy = destroy,
    .trace = trace_members,
    .bind = bind_members,
    HOST_OPS,
    .gather = gather,
    .conv_block_create = cpu_conv_block_create,
    .conv_block_destroy = cpu_conv_block_destroy,
    .conv_block_import = cpu_conv_block_import,
    .conv_block_export = cpu_conv_block_export,
    .conv_block_forward = cpu_conv_block_forward,
    .conv_block_backward = cpu_conv_block_backward,
    .linear_create = cpu_linear_create,
    .linear_destroy = cpu_linear_destroy,
    .linear_import = cpu_linear_import,
    .linear_export = cpu_linear_export,
    .linear_forward = cpu_linear_forward,
    .linear_finish = cpu_linear_finish,
    .linear_backward_weights = cpu_linear_backward_weights,
    .linear_backward_data = cpu_linear_backward_data,
    .clip_gradients = clip_gradients,
    .sgd_step = sgd_step,
    .adam_step = adam_step,
    .adadelta_step = adadelta_step,
};

#ifdef HAVE_AVX_KERNELS
static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

static bool has_avx512_bf16(void)
{
    return has_avx512() && __builtin_cpu_supports("avx512bf16");
}

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#endif

static bool is_any(void)
{
    return true;
}

/* The instructions that there is code for, the best first. */
static const struct {
    const char *name; /* as --isa spells it */
    bool (*is_here)(void);
    bool bf16; /* it is for products of bfloat16 alone */
    const vector_ops *ops;
} isas[] = {
#ifdef HAVE_AVX_KERNELS
    {"avx512", has_avx512_bf16, true, &vector_ops_avx512_bf16},
    {"avx512", has_avx512, false, &vector_ops_avx512},
    {"avx2", has_avx2, false, &vector_ops_avx2},
#endif
    {"generic", is_any, false, &vector_ops_generic},
};

/* NULL: this processor lacks them. */
static const vector_ops *choose_isa(const char *wanted, bool bf16)
{
    bool any = wanted == NULL || strcmp(wanted, "auto") == 0;
    for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++)
        if ((any || strcmp(wanted, isas[i].name) == 0) && (bf16 || !isas[i].bf16) &&
            isas[i].is_here())
            return isas[i].ops;
    return NULL;
}

status cpu_device_create(const device_options *options, device *dev)
{
    const vector_ops *vec = choose_isa(options->isa, options->precision == PRECISION_BF16);
    if (vec == NULL)
        return FAIL(STATUS_INVALID, "this processor has no %s", options->isa);
    TRY(memory_alloc(sizeof(cpu_state), &dev->state));
    dev->ops = &cpu_ops;
    cpu_of(dev)->dev = dev;
    cpu_of(dev)->vec = vec;
    cpu_of(dev)->dense = options->dense;
    snprintf(dev->description, sizeof dev->description, "%s", vec->text);
    status st = team_create(options->threads, &cpu_of(dev)->team);
    if (st != STATUS_OK)
        destroy(dev);
    return st;
}

const char *cpu_device_kernels(const char *isa)
{
    const vector_ops *vec = choose_isa(isa, false);
    return vec != NULL ? vec->text : NULL;
}
