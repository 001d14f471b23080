/* Linear layers on oneDNN's sgemm. Every product is cut by its shape into column blocks of the
 * result. Each block is one single-threaded call over the whole batch. No sum is split, so the
 * number of threads cannot change a bit. */
#include "base/memory.h"
#include "kernels/cpu/state.h"

#include <stdatomic.h>
#include <stdlib.h>

enum {
    COLUMNS = 256,
    WEIGHT_COLUMNS = 2304
}; /* of one piece: features, and of a flattened input */

typedef struct linear_plan {
    linear_shape s;
    cpu_state *cpu;
} linear_plan;

static const linear_plan *plan_of(const linear *plan)
{
    return (const linear_plan *)(const void *)plan;
}

status cpu_linear_create(device *dev, const linear_shape *shape, int max_n, linear **out)
{
    (void)max_n;
    if (shape->out_features > VECTOR_MAX_SAMPLE)
        return FAIL(STATUS_INVALID, "linear layer of more than %d outputs", VECTOR_MAX_SAMPLE);
    linear_plan *p = NULL;
    TRY(memory_alloc(sizeof *p, (void **)&p));
    p->s = *shape;
    p->cpu = cpu_of(dev);
    *out = (linear *)(void *)p;
    return STATUS_OK;
}

void cpu_linear_destroy(linear *plan)
{
    free(plan);
}

/* The arena's column for column j of PyTorch's weight: a flattened input keeps its blocked
 * order. */
static size_t private_column(const linear_plan *p, size_t j)
{
    const linear_shape *s = &p->s;
    if (s->channels == 0)
        return j;
    size_t area = (size_t)(s->height * s->width), block = (size_t)p->cpu->vec->block;
    size_t channel = j / area, at = j % area;
    return (channel / block * area + at) * block + channel % block;
}

status cpu_linear_import(linear *plan, const float *plain, float *weight)
{
    const linear_plan *p = plan_of(plan);
    size_t features = (size_t)p->s.in_features;
    for (size_t o = 0; o < (size_t)p->s.out_features; o++)
        for (size_t j = 0; j < features; j++)
            weight[o * features + private_column(p, j)] = plain[o * features + j];
    return STATUS_OK;
}

status cpu_linear_export(linear *plan, const float *weight, float *plain)
{
    const linear_plan *p = plan_of(plan);
    size_t features = (size_t)p->s.in_features;
    for (size_t o = 0; o < (size_t)p->s.out_features; o++)
        for (size_t j = 0; j < features; j++)
            plain[o * features + j] = weight[o * features + private_column(p, j)];
    return STATUS_OK;
}

typedef struct gemm_job {
    const linear_plan *p;
    int n, columns;
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

static status run(const linear_plan *p, gemm_job *job, team_fn fn, int total, int columns)
{
    job->p = p;
    job->columns = columns;
    team_run(p->cpu->team, fn, job, (total + columns - 1) / columns);
    return ONEDNN_CALL((dnnl_status_t)atomic_load(&job->failed));
}

static void note(gemm_job *job, dnnl_status_t code)
{
    if (code != dnnl_success)
        atomic_store(&job->failed, (int)code);
}

static void forward_piece(void *arg, int piece)
{
    gemm_job *job = arg;
    const linear_shape *s = &job->p->s;
    int count = 0, first = piece_columns(job, piece, s->out_features, &count);
    note(job, dnnl_sgemm('N', 'T', job->n, count, s->in_features, 1.0f, job->x, s->in_features,
                         job->weight + (size_t)first * (size_t)s->in_features, s->in_features, 0.0f,
                         job->y + first, s->out_features));
    job->p->cpu->vec->linear_epilogue(job->y, job->n, s->out_features, first, count, job->epilogue);
}

status cpu_linear_forward(linear *plan, int n, const float *x, const float *weight,
                          const linear_epilogue *epilogue, float *y)
{
    const linear_plan *p = plan_of(plan);
    gemm_job job = {.n = n, .x = x, .weight = weight, .epilogue = epilogue, .y = y};
    return run(p, &job, forward_piece, p->s.out_features, COLUMNS);
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
        job->p->cpu->vec->column_sums(job->dy, job->n, s->out_features, out->accumulate, out->db);
}

status cpu_linear_backward_weights(linear *plan, int n, const float *x, const float *dy,
                                   const param_gradients *out)
{
    const linear_plan *p = plan_of(plan);
    gemm_job job = {.n = n, .x = x, .dy = dy, .gradients = out};
    return run(p, &job, weights_piece, p->s.in_features,
               p->s.in_features > 4 * COLUMNS ? WEIGHT_COLUMNS : COLUMNS);
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
        job->p->cpu->vec->relu_backward(job->dx + first, job->input->y + first, job->n,
                                        s->in_features, count, 1.0f / (1.0f - job->input->p));
}

status cpu_linear_backward_data(linear *plan, int n, const float *weight, const float *dy,
                                const relu_output *input, float *dx)
{
    const linear_plan *p = plan_of(plan);
    gemm_job job = {.n = n, .weight = weight, .dy = dy, .input = input, .dx = dx};
    return run(p, &job, data_piece, p->s.in_features,
               p->s.in_features > 4 * COLUMNS ? WEIGHT_COLUMNS : COLUMNS);
}
