#include "base/memory.h"
#include "kernels/dropout.h"
#include "kernels/reference/dot.h"
#include "kernels/reference/reference.h"

#include <stdlib.h>
#include <string.h>

static const linear_shape *shape_of(const linear *plan)
{
    return (const linear_shape *)(const void *)plan;
}

status reference_linear_create(device *dev, const linear_shape *shape, int max_n, linear **out)
{
    (void)dev;
    (void)max_n;
    linear_shape *s = NULL;
    TRY(memory_alloc(sizeof *s, (void **)&s));
    *s = *shape;
    *out = (linear *)(void *)s;
    return STATUS_OK;
}

void reference_linear_destroy(linear *plan)
{
    free(plan);
}

status reference_linear_copy(linear *plan, const float *from, float *to)
{
    const linear_shape *s = shape_of(plan);
    memcpy(to, from, sizeof *to * (size_t)s->in_features * (size_t)s->out_features);
    return STATUS_OK;
}

static void add_scaled(float *restrict y, const float *restrict x, float factor, int count)
{
    for (int i = 0; i < count; i++)
        y[i] += factor * x[i];
}

static void drop_row(const dropout *drop, int i, float *row, int count)
{
    float scale = 1.0f / (1.0f - drop->p);
    uint8_t bytes[DROPOUT_BLOCK];
    for (int j = 0; j < count; j++) {
        if (drop->keep == NULL && j % DROPOUT_BLOCK == 0)
            dropout_bytes(drop, i, (uint32_t)(j / DROPOUT_BLOCK), bytes);
        int kept = drop->keep != NULL ? drop->keep[i * count + j]
                                      : bytes[j % DROPOUT_BLOCK] >= dropout_threshold(drop->p);
        row[j] = kept ? row[j] * scale : 0.0f;
    }
}

status reference_linear_forward(linear *plan, int n, const float *x, const float *weight,
                                const linear_epilogue *epilogue, float *y)
{
    const linear_shape *s = shape_of(plan);
    for (int i = 0; i < n; i++) {
        const float *in = x + (size_t)i * (size_t)s->in_features;
        float *row = y + (size_t)i * (size_t)s->out_features;
        for (int o = 0; o < s->out_features; o++)
            row[o] = dot(in, weight + (size_t)o * (size_t)s->in_features, s->in_features);
    }
    return epilogue != NULL ? reference_linear_finish(plan, n, epilogue, y) : STATUS_OK;
}

status reference_linear_finish(linear *plan, int n, const linear_epilogue *epilogue, float *y)
{
    const linear_shape *s = shape_of(plan);
    const dropout *drop = epilogue->drop;
    for (int i = 0; i < n; i++) {
        float *row = y + (size_t)i * (size_t)s->out_features;
        for (int o = 0; o < s->out_features; o++) {
            float z = row[o] + epilogue->bias[o];
            row[o] = epilogue->relu && !(z > 0.0f) ? 0.0f : z;
        }
        if (drop != NULL && drop->p > 0.0f)
            drop_row(drop, i, row, s->out_features);
    }
    return STATUS_OK;
}

status reference_linear_backward_weights(linear *plan, int n, const float *x, const float *dy,
                                         const param_gradients *out)
{
    const linear_shape *s = shape_of(plan);
    if (!out->accumulate) {
        memset(out->dw, 0, sizeof *out->dw * (size_t)s->in_features * (size_t)s->out_features);
        memset(out->db, 0, sizeof *out->db * (size_t)s->out_features);
    }
    for (int i = 0; i < n; i++)
        for (int o = 0; o < s->out_features; o++) {
            float gradient = dy[i * s->out_features + o];
            out->db[o] += gradient;
            add_scaled(out->dw + (size_t)o * (size_t)s->in_features,
                       x + (size_t)i * (size_t)s->in_features, gradient, s->in_features);
        }
    return STATUS_OK;
}

status reference_linear_backward_data(linear *plan, int n, const float *weight, const float *dy,
                                      const relu_output *input, float *dx)
{
    const linear_shape *s = shape_of(plan);
    size_t features = (size_t)s->in_features;
    float scale = input != NULL ? 1.0f / (1.0f - input->p) : 1.0f;
    memset(dx, 0, sizeof *dx * (size_t)n * features);
    for (int i = 0; i < n; i++) {
        float *row = dx + (size_t)i * features;
        for (int o = 0; o < s->out_features; o++)
            add_scaled(row, weight + (size_t)o * features, dy[i * s->out_features + o],
                       s->in_features);
        if (input != NULL)
            for (int j = 0; j < s->in_features; j++)
                row[j] = input->y[(size_t)i * features + (size_t)j] > 0.0f ? row[j] * scale : 0.0f;
    }
    return STATUS_OK;
}
