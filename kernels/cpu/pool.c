#include "kernels/cpu/state.h"

typedef struct pool_job {
    const vector_ops *vec;
    const pool_shape *shape;
    const dropout *drop;
    const float *z, *y, *dy;
    float *y_out, *dz_out, scale;
    const uint8_t *argmax;
    uint8_t *argmax_out;
    size_t in_elements, out_elements; /* of one sample */
} pool_job;

static pool_job job_of(device *dev, const pool_shape *shape)
{
    size_t in_elements = (size_t)(shape->channels * shape->height * shape->width);
    return (pool_job){.vec = cpu_of(dev)->vec,
                      .shape = shape,
                      .in_elements = in_elements,
                      .out_elements = in_elements / 4};
}

static void forward_sample(void *arg, int i)
{
    const pool_job *job = arg;
    size_t in = (size_t)i * job->in_elements, out = (size_t)i * job->out_elements;
    job->vec->pool_forward(job->shape, job->drop, i, job->z + in, job->y_out + out,
                           job->argmax_out + out);
}

status cpu_pool_forward(device *dev, const pool_shape *shape, int n, const float *z,
                        const dropout *drop, float *y, uint8_t *argmax)
{
    pool_job job = job_of(dev, shape);
    if (job.out_elements > VECTOR_MAX_SAMPLE)
        return FAIL(STATUS_INVALID, "pool of more than %d outputs per sample", VECTOR_MAX_SAMPLE);
    job.drop = drop;
    job.z = z;
    job.y_out = y;
    job.argmax_out = argmax;
    team_run(cpu_of(dev)->team, forward_sample, &job, n);
    return STATUS_OK;
}

static void backward_sample(void *arg, int i)
{
    const pool_job *job = arg;
    size_t in = (size_t)i * job->in_elements, out = (size_t)i * job->out_elements;
    job->vec->pool_backward(job->shape, job->y + out, job->argmax + out, job->dy + out, job->scale,
                            job->dz_out + in);
}

status cpu_pool_backward(device *dev, const pool_shape *shape, int n, const float *y,
                         const uint8_t *argmax, const float *dy, float p, float *dz)
{
    pool_job job = job_of(dev, shape);
    job.y = y;
    job.argmax = argmax;
    job.dy = dy;
    job.scale = 1.0f / (1.0f - p);
    job.dz_out = dz;
    team_run(cpu_of(dev)->team, backward_sample, &job, n);
    return STATUS_OK;
}
