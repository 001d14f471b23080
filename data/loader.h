/* Turns a rank's indices into batches in the device's memory. */
#ifndef MNIST_DDP_DATA_LOADER_H
#define MNIST_DDP_DATA_LOADER_H

#include "base/status.h"
#include "data/dataset.h"
#include "data/sampler.h"
#include "kernels/augmentation.h"
#include "kernels/batch.h"
#include "kernels/device.h"

typedef struct loader loader;

typedef struct loader_options {
    int batch_size; /* samples of a forward, per rank */
    int accum;      /* batches per optimizer step, >= 1 */
    sampler_options sampler;
    augmentation augment;    /* all 0: none */
    const step_state *state; /* device memory: the state of the current step, for the batches */
} loader_options;

/* Borrows the data set and the device. An accelerator gets a copy of the set. */
status loader_create(device *dev, const dataset *set, const loader_options *options, loader **out);
void loader_destroy(loader *load);

/* Of this epoch the first `used` samples of its order are left out, and the rest is redistributed:
 * another number of ranks has used them. To be called before that epoch is drawn.
 * STATUS_INVALID if the data set has fewer. */
status loader_leave_out(loader *load, int epoch, uint32_t used);

/* Draws the order of a later epoch ahead of time, while an accelerator works on the last steps of
 * this one. The steps of the epoch before this one must be done, and the host must have waited for
 * that. */
status loader_draw_epoch(loader *load, int epoch);

/* Starts an epoch: draws its order if it is not drawn yet, and enqueues the copy to the device.
 * Then steps may be taken in any order. */
status loader_start_epoch(loader *load, int epoch);

/* Whether the epoch that has started has the order of the one that started before it. */
bool loader_repeats_order(const loader *load);

/* Optimizer steps of an epoch that is distributed whole, and of this one. */
int loader_steps(const loader *load);
int loader_epoch_steps(const loader *load, int epoch);

/* Batches of step `step`: `accum`, or fewer in the last one. */
int loader_micro_steps(const loader *load, int step);

/* Samples that this rank contributes to an epoch that is distributed whole. */
uint32_t loader_samples(const loader *load);

/* Samples of this rank in step `step`. They determine the shapes of the step's work. */
int loader_step_samples(const loader *load, int step);

/* The data set's indices of the samples of this rank in step `step`, without the sampler's padding:
 * how many, in *out. They live until the next epoch is drawn. */
int loader_step_indices(const loader *load, int step, const uint32_t **out);

/* Begins a step of the epoch: fills in the loader's part of its plan. */
void loader_plan_step(loader *load, int step, step_plan *plan);

/* The next of the step's loader_micro_steps() batches; valid until the next call. The device must
 * have begun the step with the plan on the loader's step state. */
status loader_next(loader *load, batch *out);

#endif
