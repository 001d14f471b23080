#include "base/memory.h"
#include "kernels/reference/dot.h"
#include "kernels/reference/reference.h"

#include <stdlib.h>
#include <string.h>

typedef struct plan_state {
    conv2d_shape s;
    int out_h, out_w;
} plan_state;

static const plan_state *state(const conv2d *plan)
{
    return (const plan_state *)(const void *)plan;
}

status reference_conv2d_create(device *dev, const conv2d_shape *shape, int max_n, conv2d **out)
{
    (void)dev;
    (void)max_n;
    plan_state *p = NULL;
    TRY(memory_alloc(sizeof *p, (void **)&p));
    p->s = *shape;
    p->out_h = shape->height - shape->kernel + 1;
    p->out_w = shape->width - shape->kernel + 1;
    *out = (conv2d *)(void *)p;
    return STATUS_OK;
}

void reference_conv2d_destroy(conv2d *plan)
{
    free(plan);
}

status reference_conv2d_copy(conv2d *plan, const float *from, float *to)
{
    const conv2d_shape *s = &state(plan)->s;
    memcpy(to, from, sizeof *to * (size_t)(s->out_channels * s->channels * s->kernel * s->kernel));
    return STATUS_OK;
}

/* Image n, channel c of an (N, C, H, W) tensor. */
static size_t plane(int n, int c, int channels, int height, int width)
{
    return ((size_t)n * (size_t)channels + (size_t)c) * (size_t)height * (size_t)width;
}

/* y (OH, OW) += w (K, K) slid over x (H, W). */
static void correlate(const plan_state *p, const float *restrict x, const float *w,
                      float *restrict y)
{
    int side = p->s.kernel;
    for (int kh = 0; kh < side; kh++)
        for (int kw = 0; kw < side; kw++)
            for (int h = 0; h < p->out_h; h++) {
                const float *row = x + (h + kh) * p->s.width + kw;
                float factor = w[kh * side + kw], *out = y + h * p->out_w;
                for (int i = 0; i < p->out_w; i++)
                    out[i] += factor * row[i];
            }
}

status reference_conv2d_forward(conv2d *plan, int n, const float *x, const float *weight,
                                const float *bias, float *y)
{
    const plan_state *p = state(plan);
    const conv2d_shape *s = &p->s;
    int area = p->out_h * p->out_w, taps = s->kernel * s->kernel;
    for (int i = 0; i < n; i++)
        for (int o = 0; o < s->out_channels; o++) {
            float *out = y + plane(i, o, s->out_channels, p->out_h, p->out_w);
            for (int j = 0; j < area; j++)
                out[j] = bias[o];
            for (int c = 0; c < s->channels; c++)
                correlate(p, x + plane(i, c, s->channels, s->height, s->width),
                          weight + (o * s->channels + c) * taps, out);
            if (s->relu)
                for (int j = 0; j < area; j++)
                    out[j] = out[j] > 0.0f ? out[j] : 0.0f;
        }
    return STATUS_OK;
}

/* The gradient of one plane before its relu, into `out` (OH, OW): dy, or zero for y = 0. */
static void masked(const plan_state *p, const float *y, const float *dy, float *restrict out)
{
    int area = p->out_h * p->out_w;
    for (int j = 0; j < area; j++)
        out[j] = p->s.relu && !(y[j] > 0.0f) ? 0.0f : dy[j];
}

/* dw (K, K) += x (H, W) correlated with dz (OH, OW). */
static void weight_gradient(const plan_state *p, const float *x, const float *dz, float *dw)
{
    int side = p->s.kernel;
    for (int kh = 0; kh < side; kh++)
        for (int kw = 0; kw < side; kw++) {
            float sum = 0;
            for (int h = 0; h < p->out_h; h++)
                sum += dot(x + (h + kh) * p->s.width + kw, dz + h * p->out_w, p->out_w);
            dw[kh * side + kw] += sum;
        }
}

status reference_conv2d_backward_weights(conv2d *plan, int n, const float *x, const float *y,
                                         const float *dy, const param_gradients *out)
{
    const plan_state *p = state(plan);
    const conv2d_shape *s = &p->s;
    int taps = s->kernel * s->kernel, area = p->out_h * p->out_w;
    float *dz = NULL;
    TRY(memory_alloc(sizeof *dz * (size_t)area, (void **)&dz));
    if (!out->accumulate) {
        memset(out->dw, 0, sizeof *out->dw * (size_t)(s->out_channels * s->channels * taps));
        memset(out->db, 0, sizeof *out->db * (size_t)s->out_channels);
    }
    for (int i = 0; i < n; i++)
        for (int o = 0; o < s->out_channels; o++) {
            size_t at = plane(i, o, s->out_channels, p->out_h, p->out_w);
            masked(p, y + at, dy + at, dz);
            for (int j = 0; j < area; j++)
                out->db[o] += dz[j];
            for (int c = 0; c < s->channels; c++)
                weight_gradient(p, x + plane(i, c, s->channels, s->height, s->width), dz,
                                out->dw + (o * s->channels + c) * taps);
        }
    free(dz);
    return STATUS_OK;
}

/* dx (H, W) += dz (OH, OW) spread by w (K, K). */
static void spread(const plan_state *p, const float *restrict dz, const float *w,
                   float *restrict dx)
{
    int side = p->s.kernel;
    for (int kh = 0; kh < side; kh++)
        for (int kw = 0; kw < side; kw++)
            for (int h = 0; h < p->out_h; h++) {
                float factor = w[kh * side + kw], *row = dx + (h + kh) * p->s.width + kw;
                const float *in = dz + h * p->out_w;
                for (int i = 0; i < p->out_w; i++)
                    row[i] += factor * in[i];
            }
}

status reference_conv2d_backward_data(conv2d *plan, int n, const float *weight, const float *y,
                                      const float *dy, float *dx)
{
    const plan_state *p = state(plan);
    const conv2d_shape *s = &p->s;
    int taps = s->kernel * s->kernel, area = p->out_h * p->out_w;
    float *dz = NULL;
    TRY(memory_alloc(sizeof *dz * (size_t)area, (void **)&dz));
    memset(dx, 0, sizeof *dx * plane(n, 0, s->channels, s->height, s->width));
    for (int i = 0; i < n; i++)
        for (int o = 0; o < s->out_channels; o++) {
            size_t at = plane(i, o, s->out_channels, p->out_h, p->out_w);
            masked(p, y + at, dy + at, dz);
            for (int c = 0; c < s->channels; c++)
                spread(p, dz, weight + (o * s->channels + c) * taps,
                       dx + plane(i, c, s->channels, s->height, s->width));
        }
    free(dz);
    return STATUS_OK;
}
