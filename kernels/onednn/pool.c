#include "kernels/dropout.h"
#include "kernels/onednn/state.h"

enum { MAX_OUTPUTS = 16384 }; /* of one sample */

typedef struct pool_job {
    const pool_shape *shape;
    const pool_output *out;
    const dropout *drop;
    const float *z, *dy;
    float *dz, scale;
    size_t in_elements, out_elements; /* of one sample */
} pool_job;

static pool_job job_of(const pool_shape *s, const pool_output *out, float p)
{
    return (pool_job){.shape = s,
                      .out = out,
                      .scale = 1.0f / (1.0f - p),
                      .in_elements = (size_t)(s->channels * s->height * s->width),
                      .out_elements = (size_t)(s->channels * (s->height / 2) * (s->width / 2))};
}

/* Where the window of output (h, w) has its first channel. */
static size_t window_at(const pool_shape *s, int h, int w)
{
    return (size_t)((2 * h * s->width + 2 * w) * s->channels);
}

/* All channels of one output. z: the window's upper left. */
static void forward_window(const pool_job *job, const float *z, const uint8_t *keep,
                           float *restrict y, uint8_t *restrict argmax)
{
    int channels = job->shape->channels, row = job->shape->width * channels;
    float scale = job->scale;
    const float *right = z + channels, *below = z + row, *across = below + channels;
    for (int c = 0; c < channels; c++) {
        float best = z[c];
        int winner = 0;
        winner = right[c] > best ? 1 : winner;
        best = right[c] > best ? right[c] : best;
        winner = below[c] > best ? 2 : winner;
        best = below[c] > best ? below[c] : best;
        winner = across[c] > best ? 3 : winner;
        best = across[c] > best ? across[c] : best;
        best = best > 0.0f ? best * scale : 0.0f;
        y[c] = keep[c] != 0 ? best : 0.0f;
        argmax[c] = (uint8_t)winner;
    }
}

static void forward_sample(void *arg, int i)
{
    const pool_job *job = arg;
    const pool_shape *s = job->shape;
    uint8_t keep[MAX_OUTPUTS];
    int out_h = s->height / 2, out_w = s->width / 2;
    const float *z = job->z + (size_t)i * job->in_elements;
    dropout_keep(job->drop, i, s->channels, out_h * out_w, keep);
    for (int h = 0; h < out_h; h++)
        for (int w = 0; w < out_w; w++) {
            size_t at = (size_t)((h * out_w + w) * s->channels);
            size_t out = (size_t)i * job->out_elements + at;
            forward_window(job, z + window_at(s, h, w), keep + at, job->out->y + out,
                           job->out->argmax + out);
        }
}

status onednn_pool_forward(device *dev, const pool_shape *shape, const float *z,
                           const dropout *drop, const pool_output *out)
{
    pool_job job = job_of(shape, out, drop->p);
    if (job.out_elements > MAX_OUTPUTS)
        return FAIL(STATUS_INVALID, "pool of more than %d outputs per sample", (int)MAX_OUTPUTS);
    job.drop = drop;
    job.z = z;
    team_run(onednn_of(dev)->team, forward_sample, &job, shape->n);
    return STATUS_OK;
}

/* All channels of the window that one output came from. */
static void backward_window(const pool_job *job, const float *restrict y,
                            const uint8_t *restrict argmax, const float *restrict dy,
                            float *restrict dz)
{
    int channels = job->shape->channels, row = job->shape->width * channels;
    float scale = job->scale;
    float *right = dz + channels, *below = dz + row, *across = below + channels;
    for (int c = 0; c < channels; c++) {
        float through = y[c] > 0.0f ? dy[c] * scale : 0.0f;
        int winner = argmax[c];
        dz[c] = winner == 0 ? through : 0.0f;
        right[c] = winner == 1 ? through : 0.0f;
        below[c] = winner == 2 ? through : 0.0f;
        across[c] = winner == 3 ? through : 0.0f;
    }
}

static void backward_sample(void *arg, int i)
{
    const pool_job *job = arg;
    const pool_shape *s = job->shape;
    int out_h = s->height / 2, out_w = s->width / 2;
    float *dz = job->dz + (size_t)i * job->in_elements;
    for (int h = 0; h < out_h; h++)
        for (int w = 0; w < out_w; w++) {
            size_t out = (size_t)i * job->out_elements + (size_t)((h * out_w + w) * s->channels);
            backward_window(job, job->out->y + out, job->out->argmax + out, job->dy + out,
                            dz + window_at(s, h, w));
        }
}

status onednn_pool_backward(device *dev, const pool_shape *shape, const pool_output *out,
                            const float *dy, float p, float *dz)
{
    pool_job job = job_of(shape, out, p);
    job.dy = dy;
    job.dz = dz;
    team_run(onednn_of(dev)->team, backward_sample, &job, shape->n);
    return STATUS_OK;
}
