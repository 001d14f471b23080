/* Linear layers on oneDNN's sgemm. Every product is cut by its shape into column blocks of the
 * result. Each block is one single-threaded call over the whole batch. No sum is split, so the
 * number of threads cannot change a bit. */
#include "base/memory.h"
#include "kernels/dropout.h"
#include "kernels/onednn/state.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    COLUMNS = 256,       /* of one piece */
    WIDE_COLUMNS = 2304, /* of one piece, if the input has many features */
    WIDE = 4 * COLUMNS,
    MAX_OUTPUTS = 16384,
};

typedef struct linear_plan {
    linear_shape s;
    onednn_state *state;
} linear_plan;

static const linear_plan *plan_of(const linear *plan)
{
    return (const linear_plan *)(const void *)plan;
}

status onednn_linear_create(device *dev, const linear_shape *shape, int max_n, linear **out)
{
    (void)max_n;
    if (shape->out_features > MAX_OUTPUTS)
        return FAIL(STATUS_INVALID, "linear layer of more than %d outputs", (int)MAX_OUTPUTS);
    linear_plan *p = NULL;
    TRY(memory_alloc(sizeof *p, (void **)&p));
    p->s = *shape;
    p->state = onednn_of(dev);
    *out = (linear *)(void *)p;
    return STATUS_OK;
}

void onednn_linear_destroy(linear *plan)
{
    free(plan);
}

/* Copies between PyTorch's columns (C, H, W) of a flattened input and the arena's (H, W, C). */
static status reorder(const linear *plan, const float *from, float *to, bool import)
{
    const linear_shape *s = &plan_of(plan)->s;
    size_t features = (size_t)s->in_features, rows = (size_t)s->out_features;
    size_t channels = s->channels > 0 ? (size_t)s->channels : 1, area = features / channels;
    for (size_t o = 0; o < rows; o++)
        for (size_t c = 0; c < channels; c++)
            for (size_t at = 0; at < area; at++) {
                size_t plain = o * features + c * area + at;
                size_t ours = o * features + at * channels + c;
                to[import ? ours : plain] = from[import ? plain : ours];
            }
    return STATUS_OK;
}

status onednn_linear_import(linear *plan, const float *plain, float *weight)
{
    return reorder(plan, plain, weight, true);
}

status onednn_linear_export(linear *plan, const float *weight, float *plain)
{
    return reorder(plan, weight, plain, false);
}

typedef struct gemm_job {
    const linear_plan *p;
    int n, columns; /* of the batch; of a piece */
    const float *x, *weight, *dy;
    const linear_epilogue *epilogue;
    const param_gradients *gradients;
    const relu_output *input; /* NULL: no relu */
    float *y, *dx;
    atomic_int failed; /* the dnnl_status_t of a failed call */
} gemm_job;

/* Columns [first, first + *count) of a result with `total` of them. */
static int piece_columns(const gemm_job *job, int piece, int total, int *count)
{
    int first = piece * job->columns;
    *count = total - first < job->columns ? total - first : job->columns;
    return first;
}

static status run(gemm_job *job, team_fn fn, int total)
{
    job->columns = total > WIDE ? WIDE_COLUMNS : COLUMNS;
    team_run(job->p->state->team, fn, job, (total + job->columns - 1) / job->columns);
    return ONEDNN_CALL((dnnl_status_t)atomic_load(&job->failed));
}

static void note(gemm_job *job, dnnl_status_t code)
{
    if (code != dnnl_success)
        atomic_store(&job->failed, (int)code);
}

/* Columns [first, first + count) of y (n, O), in place. */
static void apply_epilogue(const gemm_job *job, int first, int count)
{
    const linear_epilogue *e = job->epilogue;
    int outputs = job->p->s.out_features;
    bool drops = e->drop != NULL && e->drop->p > 0.0f;
    float scale = drops ? 1.0f / (1.0f - e->drop->p) : 1.0f;
    uint8_t keep[MAX_OUTPUTS];
    for (int i = 0; i < job->n; i++) {
        float *row = job->y + (size_t)i * (size_t)outputs + first;
        for (int j = 0; j < count; j++)
            row[j] += e->bias[first + j];
        if (e->relu)
            for (int j = 0; j < count; j++)
                row[j] = row[j] > 0.0f ? row[j] : 0.0f;
        if (!drops)
            continue;
        dropout_keep(e->drop, i, outputs, 1, keep);
        for (int j = 0; j < count; j++)
            row[j] = keep[first + j] != 0 ? row[j] * scale : 0.0f;
    }
}

static void forward_piece(void *arg, int piece)
{
    gemm_job *job = arg;
    const linear_shape *s = &job->p->s;
    int count = 0, first = piece_columns(job, piece, s->out_features, &count);
    note(job, dnnl_sgemm('N', 'T', job->n, count, s->in_features, 1.0f, job->x, s->in_features,
                         job->weight + (size_t)first * (size_t)s->in_features, s->in_features, 0.0f,
                         job->y + first, s->out_features));
    apply_epilogue(job, first, count);
}

status onednn_linear_forward(linear *plan, int n, const float *x, const float *weight,
                             const linear_epilogue *epilogue, float *y)
{
    gemm_job job = {
        .p = plan_of(plan), .n = n, .x = x, .weight = weight, .epilogue = epilogue, .y = y};
    return run(&job, forward_piece, job.p->s.out_features);
}

/* db (+)= column sums of dy (n, O). */
static void sum_columns(const gemm_job *job)
{
    const param_gradients *out = job->gradients;
    size_t outputs = (size_t)job->p->s.out_features;
    if (!out->accumulate)
        memset(out->db, 0, sizeof *out->db * outputs);
    for (int i = 0; i < job->n; i++)
        for (size_t j = 0; j < outputs; j++)
            out->db[j] += job->dy[(size_t)i * outputs + j];
}

static void weights_piece(void *arg, int piece)
{
    gemm_job *job = arg;
    const linear_shape *s = &job->p->s;
    const param_gradients *out = job->gradients;
    int count = 0, first = piece_columns(job, piece, s->in_features, &count);
    note(job, dnnl_sgemm('T', 'N', s->out_features, count, job->n, 1.0f, job->dy, s->out_features,
                         job->x + first, s->in_features, out->accumulate ? 1.0f : 0.0f,
                         out->dw + first, s->in_features));
    if (piece == 0)
        sum_columns(job);
}

status onednn_linear_backward_weights(linear *plan, int n, const float *x, const float *dy,
                                      const param_gradients *out)
{
    gemm_job job = {.p = plan_of(plan), .n = n, .x = x, .dy = dy, .gradients = out};
    return run(&job, weights_piece, job.p->s.in_features);
}

/* Columns [first, first + count) of dx (n, I), in place: what goes through the relu before. */
static void apply_relu(const gemm_job *job, int first, int count)
{
    float scale = 1.0f / (1.0f - job->input->p);
    for (int i = 0; i < job->n; i++) {
        size_t at = (size_t)i * (size_t)job->p->s.in_features + (size_t)first;
        float *restrict dx = job->dx + at;
        const float *restrict y = job->input->y + at;
        for (int j = 0; j < count; j++)
            dx[j] = y[j] > 0.0f ? dx[j] * scale : 0.0f;
    }
}

static void data_piece(void *arg, int piece)
{
    gemm_job *job = arg;
    const linear_shape *s = &job->p->s;
    int count = 0, first = piece_columns(job, piece, s->in_features, &count);
    note(job,
         dnnl_sgemm('N', 'N', job->n, count, s->out_features, 1.0f, job->dy, s->out_features,
                    job->weight + first, s->in_features, 0.0f, job->dx + first, s->in_features));
    if (job->input != NULL)
        apply_relu(job, first, count);
}

status onednn_linear_backward_data(linear *plan, int n, const float *weight, const float *dy,
                                   const relu_output *input, float *dx)
{
    gemm_job job = {
        .p = plan_of(plan), .n = n, .weight = weight, .dy = dy, .input = input, .dx = dx};
    return run(&job, data_piece, job.p->s.in_features);
}
