/* Turns a rank's indices into batches in the device's memory. */
#ifndef MNIST_DDP_DATA_LOADER_H
#define MNIST_DDP_DATA_LOADER_H

#include "base/status.h"
#include "data/dataset.h"
#include "data/sampler.h"
#include "kernels/batch.h"
#include "kernels/device.h"

typedef struct loader loader;

typedef struct loader_options {
    int batch_size; /* of one forward, per rank */
    int accum;      /* batches per optimizer step, >= 1 */
    sampler_options sampler;
} loader_options;

/* Borrows the data set and the device. */
status loader_create(device *dev, const dataset *set, const loader_options *options, loader **out);
void loader_destroy(loader *load);

/* Starts an epoch: draws its order. Then loader_steps() times up to `accum` batches. */
status loader_start_epoch(loader *load, int epoch);

/* Optimizer steps of an epoch. */
int loader_steps(const loader *load);

/* Batches of step `step`: `accum`, or fewer in the last one. */
int loader_micro_steps(const loader *load, int step);

/* Samples that this rank contributes to an epoch. */
uint32_t loader_samples(const loader *load);

/* Continues an epoch behind its first `step` steps. Call after loader_start_epoch. */
void loader_skip(loader *load, int step);

/* The next batch of the epoch; valid until the next call. */
status loader_next(loader *load, batch *out);

#endif
