/* Linear layers. The weight lies in the arena as panels of up to 64 inputs, (I/64, O, 64), inputs
 * innermost. So every product reads or writes a panel from its first float to its last:
 *
 *   forward            y^T (O, n) += panel (O, 64) x^T (64, n), for each panel
 *   backward, weights  panel of dw (O, 64) = dy^T (O, n) x (n, 64)
 *   backward, data     dx (n, 64) = dy (n, O) panel (O, 64)
 *
 * Backward, a piece is a panel. Forward, it is a block of samples times a stretch of panels; then
 * the sums of the stretches are added in their order. Stretches depend on the number of inputs
 * alone, so no row of y depends on the other samples. A large batch goes in rounds of samples, so
 * that what a round reads again is still in a cache.
 */
#include "base/memory.h"
#include "kernels/cpu/state.h"

#include <stdlib.h>
#include <string.h>

enum {
    PANEL = 64,         /* inputs, at most */
    PANEL_STEP = 16,    /* a panel's width is a multiple of it */
    STRETCHES = 4,      /* at most */
    STRETCH_PANELS = 3, /* at least, if there is more than one stretch */
    SAMPLES = 64,       /* of a block */
    ROUND = 4 * SAMPLES,
    FINISH_SAMPLES = 16, /* of a piece */
};

typedef struct linear_plan {
    linear_shape s;
    cpu_state *cpu;
    bool is_bf16;
    void (*matmul)(const matmul_args *m, int rows, int columns); /* of the device's precision */
    int panels, stretches;
    /* The device's scratch memory holds, forward, y^T of a round: (stretches, round / SAMPLES, O,
     * SAMPLES). Backward, dy^T of a round: (round / SAMPLES, O, SAMPLES); then, in bfloat16, dy:
     * (round, O padded). */
    size_t stretch_floats;
} linear_plan;

static const linear_plan *plan_of(const linear *plan)
{
    return (const linear_plan *)(const void *)plan;
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

static int pieces_of(int count, int piece)
{
    return (count + piece - 1) / piece;
}

/* Floats from one row of dy in bfloat16 to the next. */
static size_t padded_outputs(const linear_plan *p)
{
    int block = p->cpu->vec->block;
    return (size_t)(pieces_of(p->s.out_features, block) * block);
}

static status check(const linear_shape *s, int block)
{
    if (s->in_features % PANEL_STEP != 0 || s->out_features > VECTOR_MAX_SAMPLE)
        return FAIL(STATUS_INVALID,
                    "cpu device: a linear layer has a multiple of %d inputs and at most %d "
                    "outputs, not %d and %d",
                    PANEL_STEP, VECTOR_MAX_SAMPLE, s->in_features, s->out_features);
    if (s->channels % block != 0)
        return FAIL(STATUS_INVALID,
                    "cpu device: a flattened activation has a multiple of %d channels, not %d",
                    block, s->channels);
    return STATUS_OK;
}

status cpu_linear_create(device *dev, const linear_shape *shape, int max_n, linear **out)
{
    TRY(check(shape, cpu_of(dev)->vec->block));
    linear_plan *p = NULL;
    TRY(memory_alloc(sizeof *p, (void **)&p));
    p->s = *shape;
    p->cpu = cpu_of(dev);
    p->is_bf16 = dev->precision == PRECISION_BF16;
    p->matmul = p->is_bf16 ? p->cpu->vec->matmul_bf16 : p->cpu->vec->matmul;
    p->panels = pieces_of(shape->in_features, PANEL);
    p->stretches = least(STRETCHES, p->panels / STRETCH_PANELS);
    if (p->stretches < 1)
        p->stretches = 1;
    int round = least(ROUND, pieces_of(max_n, SAMPLES) * SAMPLES);
    p->stretch_floats = (size_t)round * padded_outputs(p);
    status st = cpu_reserve_scratch(p->cpu, p->stretch_floats * (size_t)p->stretches);
    if (st != STATUS_OK) {
        free(p);
        return st;
    }
    *out = (linear *)(void *)p;
    return STATUS_OK;
}

void cpu_linear_destroy(linear *plan)
{
    free(plan);
}

/* The first input of a panel. All are multiples of PANEL_STEP, and widths differ by one such step
 * at most. */
static int panel_first(const linear_plan *p, int panel)
{
    int steps = p->s.in_features / PANEL_STEP;
    return (int)((int64_t)panel * steps / p->panels) * PANEL_STEP;
}

static int panel_width(const linear_plan *p, int panel)
{
    return panel_first(p, panel + 1) - panel_first(p, panel);
}

static size_t panel_offset(const linear_plan *p, int panel)
{
    return (size_t)panel_first(p, panel) * (size_t)p->s.out_features;
}

/* Plain rows of a flattened input are (C, area), private ones (C / block, area, block): one
 * transposition for each block of channels. */
static void to_private(const linear_plan *p, const float *plain, float *private)
{
    int area = p->s.height * p->s.width, block = p->cpu->vec->block;
    for (int c = 0; c < p->s.channels; c += block) {
        transpose_args t = {.x = plain + c * area,
                            .out = private + c * area,
                            .x_row = (size_t)area,
                            .out_row = (size_t)block,
                            .parts = 1};
        p->cpu->vec->transpose(&t, block, area);
    }
}

static void to_plain(const linear_plan *p, const float *private, float *plain)
{
    int area = p->s.height * p->s.width, block = p->cpu->vec->block;
    for (int c = 0; c < p->s.channels; c += block) {
        transpose_args t = {.x = private + c * area,
                            .out = plain + c * area,
                            .x_row = (size_t)block,
                            .out_row = (size_t)area,
                            .parts = 1};
        p->cpu->vec->transpose(&t, area, block);
    }
}

/* Room for a row in the private order; *out stays NULL if that is the plain one. */
static status row_alloc(const linear_plan *p, float **out)
{
    if (p->s.channels == 0)
        return STATUS_OK;
    return memory_alloc(sizeof **out * (size_t)p->s.in_features, (void **)out);
}

status cpu_linear_import(linear *plan, const float *plain, float *weight)
{
    const linear_plan *p = plan_of(plan);
    float *row = NULL;
    TRY(row_alloc(p, &row));
    for (int o = 0; o < p->s.out_features; o++, plain += p->s.in_features) {
        if (row != NULL)
            to_private(p, plain, row);
        for (int panel = 0; panel < p->panels; panel++) {
            size_t width = (size_t)panel_width(p, panel);
            memcpy(weight + panel_offset(p, panel) + (size_t)o * width,
                   (row != NULL ? row : plain) + panel_first(p, panel), sizeof *row * width);
        }
    }
    free(row);
    return STATUS_OK;
}

status cpu_linear_export(linear *plan, const float *weight, float *plain)
{
    const linear_plan *p = plan_of(plan);
    float *row = NULL;
    TRY(row_alloc(p, &row));
    for (int o = 0; o < p->s.out_features; o++, plain += p->s.in_features) {
        for (int panel = 0; panel < p->panels; panel++) {
            size_t width = (size_t)panel_width(p, panel);
            memcpy((row != NULL ? row : plain) + panel_first(p, panel),
                   weight + panel_offset(p, panel) + (size_t)o * width, sizeof *row * width);
        }
        if (row != NULL)
            to_plain(p, row, plain);
    }
    free(row);
    return STATUS_OK;
}

/* One round: n samples of a batch. */
typedef struct linear_job {
    const linear_plan *p;
    int first, n;                 /* of the batch */
    const float *x, *weight, *dy; /* x and dy of the round */
    const linear_epilogue *epilogue;
    float *y; /* of the batch */
    const param_gradients *gradients;
    const float *input; /* of the round; NULL: no relu */
    float *dx, scale;   /* of the round */
} linear_job;

/* A panel's inputs of a block of samples, either way round. */
typedef struct panel_inputs {
    _Alignas(64) float x[PANEL * SAMPLES];
} panel_inputs;

static float *transposed_block(const linear_plan *p, int block)
{
    return p->cpu->scratch + (size_t)block * SAMPLES * (size_t)p->s.out_features;
}

/* n rows of `width` floats lie too far apart for a processor to see a pattern. */
static void prefetch_rows(const float *x, size_t stride, int n, int width)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < width; j += PANEL_STEP)
            __builtin_prefetch(x + (size_t)i * stride + j);
}

/* A panel of the weight, if it is before panel `end`. */
static matmul_ahead panel_ahead(const linear_plan *p, const float *weight, int panel, int end)
{
    if (panel >= end)
        return (matmul_ahead){0};
    int width = panel_width(p, panel);
    return (matmul_ahead){.at = weight + panel_offset(p, panel),
                          .row = (size_t)width,
                          .rows = p->s.out_features,
                          .columns = width};
}

static void forward_piece(void *arg, int piece)
{
    const linear_job *job = arg;
    const linear_plan *p = job->p;
    const vector_ops *vec = p->cpu->vec;
    int blocks = pieces_of(job->n, SAMPLES), block = piece % blocks, stretch = piece / blocks;
    int first = block * SAMPLES, n = least(SAMPLES, job->n - first);
    int padded = pieces_of(n, vec->block) * vec->block;
    int panel = stretch * p->panels / p->stretches;
    int end = (stretch + 1) * p->panels / p->stretches;
    size_t features = (size_t)p->s.in_features;
    panel_inputs inputs; /* (width, SAMPLES) */
    transpose_args t = {.x = job->x + (size_t)first * features + panel_first(p, panel),
                        .out = inputs.x,
                        .x_row = features,
                        .out_row = SAMPLES,
                        .parts = 1};
    matmul_args m = {.b = inputs.x,
                     .c = transposed_block(p, block) + (size_t)stretch * p->stretch_floats,
                     .a_step = 1,
                     .b_step = SAMPLES,
                     .c_row = SAMPLES};
    for (; panel < end; panel++, m.add = true) {
        int width = panel_width(p, panel);
        vec->transpose(&t, n, width);
        t.x += width;
        if (panel + 1 < end)
            prefetch_rows(t.x, features, n, panel_width(p, panel + 1));
        m.a = job->weight + panel_offset(p, panel);
        m.a_row = (size_t)width;
        m.depth = width;
        m.ahead = panel_ahead(p, job->weight, panel + 1, end);
        p->matmul(&m, p->s.out_features, padded);
    }
}

/* Samples of y from the sums of all stretches. */
static void finish_piece(void *arg, int piece)
{
    const linear_job *job = arg;
    const linear_plan *p = job->p;
    int first = piece * FINISH_SAMPLES, n = least(FINISH_SAMPLES, job->n - first);
    size_t outputs = (size_t)p->s.out_features;
    transpose_args t = {.x = transposed_block(p, first / SAMPLES) + first % SAMPLES,
                        .out = job->y + (size_t)(job->first + first) * outputs,
                        .x_row = SAMPLES,
                        .out_row = outputs,
                        .parts = p->stretches,
                        .part_step = p->stretch_floats};
    p->cpu->vec->transpose(&t, p->s.out_features, n);
    p->cpu->vec->linear_epilogue(job->y, job->first + first, n, p->s.out_features, job->epilogue);
}

status cpu_linear_forward(linear *plan, int n, const float *x, const float *weight,
                          const linear_epilogue *epilogue, float *y)
{
    const linear_plan *p = plan_of(plan);
    linear_job job = {.p = p, .weight = weight, .epilogue = epilogue, .y = y};
    for (; job.first < n; job.first += ROUND) {
        job.n = least(ROUND, n - job.first);
        job.x = x + (size_t)job.first * (size_t)p->s.in_features;
        team_run(p->cpu->team, forward_piece, &job, p->stretches * pieces_of(job.n, SAMPLES));
        team_run(p->cpu->team, finish_piece, &job, pieces_of(job.n, FINISH_SAMPLES));
    }
    return STATUS_OK;
}

static void transpose_piece(void *arg, int block)
{
    const linear_job *job = arg;
    const linear_plan *p = job->p;
    int first = block * SAMPLES;
    transpose_args t = {.x = job->dy + (size_t)first * (size_t)p->s.out_features,
                        .out = transposed_block(p, block),
                        .x_row = (size_t)p->s.out_features,
                        .out_row = SAMPLES,
                        .parts = 1};
    int n = least(SAMPLES, job->n - first);
    p->cpu->vec->transpose(&t, n, p->s.out_features);
    if (p->is_bf16)
        p->cpu->vec->to_bf16(&(bf16_rows){t.out, t.out, SAMPLES, SAMPLES}, 0, p->s.out_features, n);
}

static void weights_piece(void *arg, int panel)
{
    const linear_job *job = arg;
    const linear_plan *p = job->p;
    const param_gradients *out = job->gradients;
    bool add = out->accumulate || job->first > 0;
    size_t features = (size_t)p->s.in_features, width = (size_t)panel_width(p, panel);
    const float *x = job->x + panel_first(p, panel);
    panel_inputs inputs; /* (SAMPLES, PANEL): rows of x have powers of two between them */
    matmul_args m = {.c = out->dw + panel_offset(p, panel),
                     .a_row = SAMPLES,
                     .a_step = 1,
                     .c_row = width,
                     .add = add,
                     .a_is_bf16 = p->is_bf16};
    for (int block = 0; block * SAMPLES < job->n; block++, x += SAMPLES * features, m.add = true) {
        m.depth = least(SAMPLES, job->n - block * SAMPLES);
        m.ahead = (matmul_ahead){0};
        if (panel + 1 < p->panels)
            m.ahead = (matmul_ahead){.at = x + width,
                                     .row = features,
                                     .rows = m.depth,
                                     .columns = panel_width(p, panel + 1)};
        m.b = x;
        m.b_step = features;
        if (!p->is_bf16) { /* a product of bfloat16 packs it anyway */
            for (int i = 0; i < m.depth; i++)
                memcpy(inputs.x + i * PANEL, x + (size_t)i * features, sizeof *x * width);
            m.b = inputs.x;
            m.b_step = PANEL;
        }
        m.a = transposed_block(p, block);
        p->matmul(&m, p->s.out_features, (int)width);
    }
    if (panel == 0)
        p->cpu->vec->column_sums(job->dy, job->n, p->s.out_features, add, out->db);
}

status cpu_linear_backward_weights(linear *plan, int n, const float *x, const float *dy,
                                   const param_gradients *out)
{
    const linear_plan *p = plan_of(plan);
    linear_job job = {.p = p, .gradients = out};
    for (; job.first < n; job.first += ROUND) {
        job.n = least(ROUND, n - job.first);
        job.x = x + (size_t)job.first * (size_t)p->s.in_features;
        job.dy = dy + (size_t)job.first * (size_t)p->s.out_features;
        team_run(p->cpu->team, transpose_piece, &job, pieces_of(job.n, SAMPLES));
        team_run(p->cpu->team, weights_piece, &job, p->panels);
    }
    return STATUS_OK;
}

/* dy of a block of samples in bfloat16. */
static void round_piece(void *arg, int block)
{
    const linear_job *job = arg;
    const linear_plan *p = job->p;
    bf16_rows rows = {job->dy, p->cpu->scratch, (size_t)p->s.out_features, padded_outputs(p)};
    int first = block * SAMPLES;
    p->cpu->vec->to_bf16(&rows, first, least(SAMPLES, job->n - first), p->s.out_features);
}

static void data_piece(void *arg, int panel)
{
    const linear_job *job = arg;
    const linear_plan *p = job->p;
    int width = panel_width(p, panel);
    size_t features = (size_t)p->s.in_features;
    matmul_args m = {.a = p->is_bf16 ? p->cpu->scratch : job->dy,
                     .b = job->weight + panel_offset(p, panel),
                     .c = job->dx + panel_first(p, panel),
                     .a_row = p->is_bf16 ? padded_outputs(p) : (size_t)p->s.out_features,
                     .a_step = 1,
                     .b_step = (size_t)width,
                     .c_row = features,
                     .depth = p->s.out_features,
                     .a_is_bf16 = p->is_bf16};
    p->matmul(&m, job->n, width);
    if (job->input != NULL)
        p->cpu->vec->relu_backward(m.c, job->input + panel_first(p, panel), job->n,
                                   p->s.in_features, width, job->scale);
}

status cpu_linear_backward_data(linear *plan, int n, const float *weight, const float *dy,
                                const relu_output *input, float *dx)
{
    const linear_plan *p = plan_of(plan);
    linear_job job = {.p = p, .weight = weight};
    if (input != NULL)
        job.scale = 1.0f / (1.0f - input->p);
    for (; job.first < n; job.first += ROUND) {
        size_t in = (size_t)job.first * (size_t)p->s.in_features;
        job.n = least(ROUND, n - job.first);
        job.dy = dy + (size_t)job.first * (size_t)p->s.out_features;
        job.input = input != NULL ? input->y + in : NULL;
        job.dx = dx + in;
        if (p->is_bf16)
            team_run(p->cpu->team, round_piece, &job, pieces_of(job.n, SAMPLES));
        team_run(p->cpu->team, data_piece, &job, p->panels);
    }
    return STATUS_OK;
}
