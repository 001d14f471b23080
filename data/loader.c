#include "data/loader.h"

#include "base/memory.h"
#include "kernels/ops.h"

#include <limits.h>
#include <stdlib.h>

struct loader {
    device *dev;
    loader_options options;
    sampler_plan plan;
    int batches; /* of an epoch */
    int epoch;   /* -1: none has started */
    int next;    /* batch */

    /* The data set where `gather` reads it. */
    const uint8_t *images, *labels;

    uint32_t *order; /* (per_rank) host: this rank's indices of the epoch */

    /* One batch, in the device's memory. */
    float *x;
    uint8_t *batch_labels;
    uint32_t *samples;
};

static status check(const dataset *set, const loader_options *options, sampler_plan *plan)
{
    if (options->batch_size < 1 || options->accum < 1)
        return FAIL(STATUS_INVALID, "loader: batch size %d, accumulation %d: expected at least 1",
                    options->batch_size, options->accum);
    if (options->sampler.samples != set->count)
        return FAIL(STATUS_INVALID, "loader: the sampler counts %u samples, the data set has %u",
                    options->sampler.samples, set->count);
    TRY(sampler_check(&options->sampler, plan));
    if (plan->per_rank > INT_MAX)
        return FAIL(STATUS_INVALID, "loader: %u samples per rank, expected at most %d",
                    plan->per_rank, INT_MAX);
    return STATUS_OK;
}

/* Takes the data set to where the device's gather reads it: host memory, as it is mapped. The one
 * place for a device that keeps its own copy. */
static status place_dataset(loader *load, const dataset *set)
{
    load->images = set->images;
    load->labels = set->labels;
    return STATUS_OK;
}

static status alloc_batch(loader *load)
{
    const device_ops *ops = load->dev->ops;
    size_t per_rank = load->plan.per_rank, capacity = (size_t)load->options.batch_size;
    if (capacity > per_rank)
        capacity = per_rank;
    TRY(memory_alloc(per_rank * sizeof *load->order, (void **)&load->order));
    TRY(ops->alloc(load->dev, capacity * DATASET_PIXELS * sizeof *load->x, (void **)&load->x));
    TRY(ops->alloc(load->dev, capacity, (void **)&load->batch_labels));
    return ops->alloc(load->dev, capacity * sizeof *load->samples, (void **)&load->samples);
}

status loader_create(device *dev, const dataset *set, const loader_options *options, loader **out)
{
    sampler_plan plan;
    loader *load = NULL;
    TRY(check(set, options, &plan));
    TRY(memory_alloc(sizeof *load, (void **)&load));
    load->dev = dev;
    load->options = *options;
    load->plan = plan;
    load->epoch = -1;
    load->batches = (int)((plan.per_rank - 1) / (uint32_t)options->batch_size) + 1;
    status st = place_dataset(load, set);
    if (st == STATUS_OK)
        st = alloc_batch(load);
    if (st != STATUS_OK) {
        loader_destroy(load);
        return st;
    }
    *out = load;
    return STATUS_OK;
}

void loader_destroy(loader *load)
{
    if (load == NULL)
        return;
    const device_ops *ops = load->dev->ops;
    ops->free(load->dev, load->samples);
    ops->free(load->dev, load->batch_labels);
    ops->free(load->dev, load->x);
    free(load->order);
    free(load);
}

status loader_start_epoch(loader *load, int epoch)
{
    if (epoch < 0)
        return FAIL(STATUS_INVALID, "loader: epoch %d, expected 0 or more", epoch);
    TRY(sampler_indices(&load->options.sampler, epoch, load->order));
    load->epoch = epoch;
    load->next = 0;
    return STATUS_OK;
}

int loader_steps(const loader *load)
{
    return (load->batches - 1) / load->options.accum + 1;
}

int loader_micro_steps(const loader *load, int step)
{
    ASSERT(step >= 0 && step < loader_steps(load));
    int rest = load->batches - step * load->options.accum;
    return rest < load->options.accum ? rest : load->options.accum;
}

uint32_t loader_samples(const loader *load)
{
    return load->plan.per_rank;
}

void loader_skip(loader *load, int step)
{
    ASSERT(step >= 0 && step <= loader_steps(load));
    load->next = step == loader_steps(load) ? load->batches : step * load->options.accum;
}

/* Samples of this rank before batch `batch_index` of the epoch. */
static uint32_t samples_before(const loader *load, int batch_index)
{
    uint64_t before = (uint64_t)batch_index * (uint64_t)load->options.batch_size;
    return before < load->plan.per_rank ? (uint32_t)before : load->plan.per_rank;
}

/* DDP averages the ranks' gradients; times this, the step's is the mean over all its samples. */
static float step_grad_scale(const loader *load, int step)
{
    int first = step * load->options.accum;
    uint32_t of_this_rank =
        samples_before(load, first + loader_micro_steps(load, step)) - samples_before(load, first);
    double world_size = load->options.sampler.world_size;
    double of_all_ranks = of_this_rank * world_size; /* the sampler gives all ranks equally many */
    return (float)(world_size / of_all_ranks);
}

status loader_next(loader *load, batch *out)
{
    if (load->epoch < 0 || load->next >= load->batches)
        return FAIL(STATUS_INVALID, "loader: batch %d of an epoch of %d%s", load->next + 1,
                    load->batches, load->epoch < 0 ? " that has not started" : "");
    device *dev = load->dev;
    uint32_t first = samples_before(load, load->next);
    int n = (int)(samples_before(load, load->next + 1) - first);
    TRY(dev->ops->upload(dev, load->samples, load->order + first,
                         (size_t)n * sizeof *load->samples));
    TRY(dev->ops->gather(dev, load->images, load->labels, load->samples, n, DATASET_PIXELS, load->x,
                         load->batch_labels));
    *out = (batch){.n = n,
                   .x = load->x,
                   .labels = load->batch_labels,
                   .samples = load->samples,
                   .epoch = load->epoch,
                   .grad_scale = step_grad_scale(load, load->next / load->options.accum)};
    load->next++;
    return STATUS_OK;
}
