#include "kernels/cpu/state.h"

typedef struct pool_job {
    const vector_ops *vec;
    const pool_shape *shape;
    const pool_output *out;
    const dropout *drop;
    const float *z, *dy;
    float *dz, scale;
    size_t in_elements, out_elements; /* of one sample */
} pool_job;

static pool_job job_of(device *dev, const pool_shape *shape, const pool_output *out)
{
    size_t in_elements = (size_t)(shape->channels * shape->height * shape->width);
    return (pool_job){.vec = cpu_of(dev)->vec,
                      .shape = shape,
                      .out = out,
                      .in_elements = in_elements,
                      .out_elements = in_elements / 4};
}

static void forward_sample(void *arg, int i)
{
    const pool_job *job = arg;
    size_t in = (size_t)i * job->in_elements, out = (size_t)i * job->out_elements;
    job->vec->pool_forward(job->shape, job->drop, i, job->z + in, job->out->y + out,
                           job->out->argmax + out);
}

status cpu_pool_forward(device *dev, const pool_shape *shape, const float *z, const dropout *drop,
                        const pool_output *out)
{
    pool_job job = job_of(dev, shape, out);
    if (job.out_elements > VECTOR_MAX_SAMPLE)
        return FAIL(STATUS_INVALID, "pool of more than %d outputs per sample", VECTOR_MAX_SAMPLE);
    job.drop = drop;
    job.z = z;
    team_run(cpu_of(dev)->team, forward_sample, &job, shape->n);
    return STATUS_OK;
}

static void backward_sample(void *arg, int i)
{
    const pool_job *job = arg;
    size_t in = (size_t)i * job->in_elements, out = (size_t)i * job->out_elements;
    job->vec->pool_backward(job->shape, job->out->y + out, job->out->argmax + out, job->dy + out,
                            job->scale, job->dz + in);
}

status cpu_pool_backward(device *dev, const pool_shape *shape, const pool_output *out,
                         const float *dy, float p, float *dz)
{
    pool_job job = job_of(dev, shape, out);
    job.dy = dy;
    job.scale = 1.0f / (1.0f - p);
    job.dz = dz;
    team_run(cpu_of(dev)->team, backward_sample, &job, shape->n);
    return STATUS_OK;
}
