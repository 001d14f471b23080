#include "kernels/dropout.h"
#include "kernels/reference/reference.h"

/* 1 if element (c, h, w) of sample i stays. */
static int keeps(const dropout *drop, const pool_shape *out, int i, int c, int h, int w)
{
    if (drop->p <= 0.0f)
        return 1;
    if (drop->keep != NULL)
        return drop->keep[((i * out->channels + c) * out->height + h) * out->width + w];
    uint8_t bytes[DROPOUT_BLOCK];
    int position = (h * out->width + w) * out->channels + c;
    dropout_bytes(drop, i, (uint32_t)(position / DROPOUT_BLOCK), bytes);
    return bytes[position % DROPOUT_BLOCK] >= dropout_threshold(drop->p);
}

status reference_pool_forward(device *dev, const pool_shape *shape, const float *z,
                              const dropout *drop, const pool_output *to)
{
    (void)dev;
    pool_shape out = {shape->channels, shape->height / 2, shape->width / 2, shape->n};
    float scale = 1.0f / (1.0f - drop->p);
    size_t at = 0;
    for (int i = 0; i < out.n; i++)
        for (int c = 0; c < out.channels; c++)
            for (int h = 0; h < out.height; h++)
                for (int w = 0; w < out.width; w++, at++) {
                    const float *window =
                        z +
                        ((size_t)(i * shape->channels + c) * (size_t)shape->height +
                         (size_t)(2 * h)) *
                            (size_t)shape->width +
                        2 * w;
                    float best = window[0];
                    uint8_t winner = 0;
                    for (uint8_t k = 1; k < 4; k++) {
                        float value = window[(k >> 1) * shape->width + (k & 1)];
                        if (value > best) {
                            best = value;
                            winner = k;
                        }
                    }
                    to->argmax[at] = winner;
                    to->y[at] = best > 0.0f && keeps(drop, &out, i, c, h, w) ? best * scale : 0.0f;
                }
    return STATUS_OK;
}

status reference_pool_backward(device *dev, const pool_shape *shape, const pool_output *out,
                               const float *dy, float p, float *dz)
{
    (void)dev;
    int out_h = shape->height / 2, out_w = shape->width / 2;
    float scale = 1.0f / (1.0f - p);
    size_t at = 0;
    for (int plane = 0; plane < shape->n * shape->channels; plane++)
        for (int h = 0; h < out_h; h++)
            for (int w = 0; w < out_w; w++, at++) {
                float *window = dz +
                                ((size_t)plane * (size_t)shape->height + (size_t)(2 * h)) *
                                    (size_t)shape->width +
                                2 * w;
                float through = out->y[at] > 0.0f ? dy[at] * scale : 0.0f;
                for (int k = 0; k < 4; k++)
                    window[(k >> 1) * shape->width + (k & 1)] =
                        k == out->argmax[at] ? through : 0.0f;
            }
    return STATUS_OK;
}
