#include "app/evaluate.h"

#include "base/clock.h"
#include "base/memory.h"
#include "kernels/ops.h"

#include <stdlib.h>

/* Buffers in device memory for one batch. */
typedef struct buffers {
    float *x;
    uint8_t *labels;
    uint32_t *indices;
} buffers;

static void buffers_close(device *dev, buffers *b)
{
    dev->ops->free(dev, b->x);
    dev->ops->free(dev, b->labels);
    dev->ops->free(dev, b->indices);
}

static status buffers_init(device *dev, size_t n, buffers *out)
{
    *out = (buffers){0};
    status st = dev->ops->alloc(dev, sizeof(float) * DATASET_PIXELS * n, (void **)&out->x);
    if (st == STATUS_OK)
        st = dev->ops->alloc(dev, n, (void **)&out->labels);
    if (st == STATUS_OK)
        st = dev->ops->alloc(dev, sizeof(uint32_t) * n, (void **)&out->indices);
    if (st != STATUS_OK)
        buffers_close(dev, out);
    return st;
}

static status evaluate_range(job *j, const buffers *b, uint32_t first, uint32_t end,
                             uint32_t batch_size, double *loss_sum, int64_t *correct)
{
    const device_ops *ops = j->dev->ops;
    uint32_t *indices = NULL;
    TRY(memory_alloc(sizeof *indices * batch_size, (void **)&indices));
    status st = STATUS_OK;
    for (uint32_t at = first; at < end && st == STATUS_OK; at += batch_size) {
        uint32_t n = end - at < batch_size ? end - at : batch_size;
        for (uint32_t i = 0; i < n; i++)
            indices[i] = at + i;
        st = ops->upload(j->dev, b->indices, indices, sizeof *indices * n);
        if (st == STATUS_OK)
            st = ops->gather(j->dev, j->test_set.images, j->test_set.labels, b->indices, (int)n,
                             DATASET_PIXELS, b->x, b->labels);
        batch in = {.n = (int)n, .x = b->x, .labels = b->labels, .samples = b->indices};
        if (st == STATUS_OK)
            st = network_forward(j->net, &in, NETWORK_EVAL);
        if (st == STATUS_OK)
            st = network_score(j->net, loss_sum, correct);
    }
    free(indices);
    return st;
}

status evaluate(job *j, evaluation *out)
{
    int64_t started = clock_now_ns(), correct = 0;
    uint64_t rank = (uint64_t)j->place.rank, world = (uint64_t)j->place.world_size;
    uint32_t count = j->test_set.count;
    uint32_t first = (uint32_t)(count * rank / world), end = (uint32_t)(count * (rank + 1) / world);
    uint32_t batch_size = (uint32_t)network_max_batch(j->net);
    if (j->opts->test_batch_size < (int64_t)batch_size)
        batch_size = (uint32_t)j->opts->test_batch_size;
    double loss_sum = 0;
    buffers b;
    TRY(buffers_init(j->dev, batch_size, &b));
    status st = evaluate_range(j, &b, first, end, batch_size, &loss_sum, &correct);
    buffers_close(j->dev, &b);
    if (st != STATUS_OK)
        return st;
    if (j->group != NULL) {
        TRY(process_group_all_reduce(j->group, &correct, 1, DTYPE_I64, REDUCE_SUM));
        TRY(process_group_all_reduce(j->group, &loss_sum, 1, DTYPE_F64, REDUCE_SUM));
    }
    *out = (evaluation){.images = count,
                        .correct = correct,
                        .loss = loss_sum / count,
                        .elapsed_s = clock_seconds(clock_now_ns() - started)};
    return STATUS_OK;
}

double evaluation_accuracy(const evaluation *e)
{
    return (double)e->correct / (double)e->images;
}
