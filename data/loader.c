#include "data/loader.h"

#include "base/memory.h"
#include "kernels/ops.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

_Static_assert((int)AUGMENTATION_SIDE == (int)IDX_SIDE, "the size of an image");

struct loader {
    device *dev;
    loader_options options;
    sampler_plan plan;      /* for an epoch that is distributed whole */
    int partial;            /* the epoch that is not; -1: there is none */
    uint32_t partial_first; /* where it begins */
    uint32_t n_samples;     /* this rank's in the epoch that has started, or in a whole one */
    int epoch;              /* -1: none has started */
    bool repeats;           /* its order is that of the epoch before */
    int step, micro;        /* the next batch of loader_next */

    /* The data set and this rank's order of the epoch, in memory that `gather` reads. */
    gather_source source;
    uint8_t *own_images, *own_labels; /* an accelerator's copy */
    uint32_t *own_order;              /* likewise, (per_rank) */

    /* (2, per_rank) host memory: the order of the epoch, and that of the epoch before or, once it
     * is drawn, of a later one. */
    uint32_t *orders[2];
    int drawn[2]; /* epochs of the two orders; -1: none */
    int now;      /* which of the two is in use */

    gather_output gathered; /* one batch, in the device's memory */
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

/* Puts the data set in memory that the device's gather reads: the mapped host memory, or a copy in
 * the accelerator's memory. Allocates the orders; for an accelerator the host's are pinned. */
static status place_dataset(loader *load, const dataset *set)
{
    device *dev = load->dev;
    size_t order_bytes = load->plan.per_rank * sizeof *load->own_order;
    if (dev->ops->accelerator == NULL) {
        load->source =
            (gather_source){set->images, set->labels, NULL, DATASET_PIXELS, load->options.augment};
        return memory_alloc(2 * order_bytes, (void **)&load->orders[0]);
    }
    TRY(dataset_upload(dev, set, &load->own_images, &load->own_labels));
    TRY(dev->ops->alloc(dev, order_bytes, (void **)&load->own_order));
    TRY(dev->ops->accelerator->alloc_pinned(dev, 2 * order_bytes, (void **)&load->orders[0]));
    load->source = (gather_source){load->own_images, load->own_labels, load->own_order,
                                   DATASET_PIXELS, load->options.augment};
    return STATUS_OK;
}

static status alloc_batch(loader *load)
{
    const device_ops *ops = load->dev->ops;
    size_t per_rank = load->plan.per_rank, capacity = (size_t)load->options.batch_size;
    if (capacity > per_rank)
        capacity = per_rank;
    gather_output *out = &load->gathered;
    TRY(ops->alloc(load->dev, capacity * DATASET_PIXELS * sizeof *out->x, (void **)&out->x));
    TRY(ops->alloc(load->dev, capacity, (void **)&out->labels));
    return ops->alloc(load->dev, capacity * sizeof *out->samples, (void **)&out->samples);
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
    load->n_samples = plan.per_rank;
    load->epoch = load->partial = -1;
    load->drawn[0] = load->drawn[1] = -1;
    status st = place_dataset(load, set);
    if (st == STATUS_OK) {
        load->orders[1] = load->orders[0] + plan.per_rank;
        st = alloc_batch(load);
    }
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
    ops->free(load->dev, load->gathered.samples);
    ops->free(load->dev, load->gathered.labels);
    ops->free(load->dev, load->gathered.x);
    ops->free(load->dev, load->own_order);
    ops->free(load->dev, load->own_labels);
    ops->free(load->dev, load->own_images);
    if (ops->accelerator != NULL)
        ops->accelerator->free_pinned(load->dev, load->orders[0]);
    else
        free(load->orders[0]);
    free(load);
}

static sampler_options sampler_of(const loader *load, int epoch)
{
    sampler_options options = load->options.sampler;
    options.first = epoch == load->partial ? load->partial_first : 0;
    return options;
}

/* Samples of this rank in that epoch. */
static uint32_t samples_of(const loader *load, int epoch)
{
    sampler_plan plan = load->plan;
    sampler_options options = sampler_of(load, epoch);
    if (epoch == load->partial) {
        status st = sampler_check(&options, &plan);
        ASSERT(st == STATUS_OK); /* loader_leave_out has looked */
    }
    return plan.per_rank;
}

status loader_leave_out(loader *load, int epoch, uint32_t used)
{
    sampler_plan plan;
    sampler_options options = load->options.sampler;
    options.first = used;
    TRY(sampler_check(&options, &plan));
    load->partial = epoch;
    load->partial_first = used;
    return STATUS_OK;
}

status loader_draw_epoch(loader *load, int epoch)
{
    int other = 1 - load->now;
    sampler_options options = sampler_of(load, epoch);
    if (epoch < 0)
        return FAIL(STATUS_INVALID, "loader: epoch %d, expected 0 or more", epoch);
    if (load->drawn[other] == epoch)
        return STATUS_OK;
    load->drawn[other] = -1;
    TRY(sampler_indices(&options, epoch, load->orders[other]));
    load->drawn[other] = epoch;
    return STATUS_OK;
}

status loader_start_epoch(loader *load, int epoch)
{
    uint32_t before = load->n_samples;
    TRY(loader_draw_epoch(load, epoch));
    load->n_samples = samples_of(load, epoch);
    size_t order_bytes = load->n_samples * sizeof *load->own_order;
    load->repeats = load->epoch >= 0 && load->n_samples == before &&
                    memcmp(load->orders[0], load->orders[1], order_bytes) == 0;
    load->now = 1 - load->now;
    load->epoch = epoch;
    const uint32_t *order = load->orders[load->now];
    if (load->own_order != NULL)
        return load->dev->ops->accelerator->copy_in(load->dev, load->own_order, order, order_bytes);
    load->source.order = order;
    return STATUS_OK;
}

bool loader_repeats_order(const loader *load)
{
    return load->repeats;
}

/* Batches of so many samples, and steps of so many batches. */
static int batches_of(const loader *load, uint32_t n_samples)
{
    uint32_t batch_size = (uint32_t)load->options.batch_size;
    return (int)(n_samples / batch_size) + (n_samples % batch_size != 0);
}

static int steps_of(const loader *load, uint32_t n_samples)
{
    int batches = batches_of(load, n_samples), accum = load->options.accum;
    return batches / accum + (batches % accum != 0);
}

int loader_steps(const loader *load)
{
    return steps_of(load, load->plan.per_rank);
}

int loader_epoch_steps(const loader *load, int epoch)
{
    return steps_of(load, samples_of(load, epoch));
}

int loader_micro_steps(const loader *load, int step)
{
    int rest = batches_of(load, load->n_samples) - step * load->options.accum;
    ASSERT(step >= 0 && rest > 0);
    return rest < load->options.accum ? rest : load->options.accum;
}

uint32_t loader_samples(const loader *load)
{
    return load->plan.per_rank;
}

/* Samples of this rank before batch `batch_index` of the epoch. */
static uint32_t samples_before(const loader *load, int batch_index)
{
    uint64_t before = (uint64_t)batch_index * (uint64_t)load->options.batch_size;
    return before < load->n_samples ? (uint32_t)before : load->n_samples;
}

int loader_step_samples(const loader *load, int step)
{
    int first = step * load->options.accum;
    return (int)(samples_before(load, first + loader_micro_steps(load, step)) -
                 samples_before(load, first));
}

int loader_step_indices(const loader *load, int step, const uint32_t **out)
{
    sampler_options options = sampler_of(load, load->epoch);
    uint32_t first = samples_before(load, step * load->options.accum);
    uint32_t end = first + (uint32_t)loader_step_samples(load, step);
    uint32_t left = options.samples - options.first; /* in the epoch, for all ranks in turn */
    uint32_t rank = (uint32_t)options.rank, world_size = (uint32_t)options.world_size;
    uint32_t own = rank < left ? (left - rank + world_size - 1) / world_size : 0;
    end = end < own ? end : own;
    *out = load->orders[load->now] + first;
    return end > first ? (int)(end - first) : 0;
}

void loader_plan_step(loader *load, int step, step_plan *plan)
{
    ASSERT(load->epoch >= 0);
    load->step = step;
    load->micro = 0;
    plan->first = samples_before(load, step * load->options.accum);
    plan->epoch = (uint32_t)load->epoch;
    /* DDP averages the ranks' gradients; times this, the step's is the mean over all its samples:
     * the sampler gives all ranks equally many. */
    plan->grad_scale = (float)(1.0 / loader_step_samples(load, step));
}

status loader_next(loader *load, batch *out)
{
    if (load->epoch < 0 || load->micro >= loader_micro_steps(load, load->step))
        return FAIL(STATUS_INVALID, "loader: batch %d of step %d%s", load->micro + 1, load->step,
                    load->epoch < 0 ? " of an epoch that has not started" : ", which has fewer");
    device *dev = load->dev;
    int index = load->step * load->options.accum + load->micro;
    uint32_t offset = (uint32_t)load->micro * (uint32_t)load->options.batch_size;
    int n = (int)(samples_before(load, index + 1) - samples_before(load, index));
    TRY(dev->ops->gather(dev, &load->source, load->options.state, offset, n, &load->gathered));
    *out = (batch){.n = n,
                   .x = load->gathered.x,
                   .labels = load->gathered.labels,
                   .samples = load->gathered.samples,
                   .state = load->options.state};
    load->micro++;
    return STATUS_OK;
}
