/* DistributedDataParallel's reducer: gradients are averaged over ranks, bucket by bucket, while the
 * backward pass goes on.
 *
 * Buckets are PyTorch's: filled from the last parameter to the first, closed once they hold at
 * least their cap, no parameter split. As the arena is flat, a bucket is a slice of it and nothing
 * is copied. Gradients are multiplied by 1 / world_size on the way in and then summed.
 */
#ifndef MNIST_DDP_DIST_DDP_H
#define MNIST_DDP_DIST_DDP_H

#include "base/status.h"
#include "dist/comm_hook.h"
#include "dist/process_group/process_group.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ddp ddp;

typedef struct ddp_options {
    size_t first_bucket_bytes; /* 1 MiB; PyTorch: bucket_cap if that was given */
    size_t bucket_cap_bytes;   /* 25 MiB */
    bool overlap;              /* false: all buckets leave after the backward pass */
    comm_hook *hook;           /* what is sent of them; borrowed; NULL: all */
} ddp_options;

/* How the gradients are cut into parameters. */
typedef struct ddp_parameters {
    size_t count;          /* gradients */
    const size_t *offsets; /* (n), ascending, first 0: where each parameter's slice begins */
    size_t n;
} ddp_parameters;

/* Borrows `group` and `gradients` (parameters->count floats, in the memory of the device that
 * reports them). STATUS_INVALID if the offsets do not ascend from 0. */
status ddp_create(process_group *group, float *gradients, const ddp_parameters *parameters,
                  const ddp_options *options, ddp **out);
void ddp_destroy(ddp *reducer);

/* From now on the `floats` after the gradients, gradients[count] and on, travel with the first
 * bucket: ddp_wait leaves their mean over all ranks, too. Write them before the backward pass.
 */
void ddp_carry(ddp *reducer, size_t floats);

/* Names the parameters, as many as ddp_create got, in the labels of the buckets' collectives. */
status ddp_name_parameters(ddp *reducer, const char *const *names);

size_t ddp_buckets(const ddp *reducer);
void ddp_bucket(const ddp *reducer, size_t index, size_t *offset, size_t *count);

/* A grad_ready_fn (kernels/device.h): `reducer` is the ddp. Launches every bucket that is complete
 * now, after the work on `stream`. Slices come in descending order, all with the same stream. */
status ddp_on_grad_ready(void *reducer, size_t offset, size_t count, device_stream *stream);

/* Returns when all gradients are the mean over all ranks; with a stream, what is enqueued there
 * from now on finds them so. Call once per optimizer step. */
status ddp_wait(ddp *reducer);

/* Nanoseconds so far: of each bucket's all-reduce, process_group_wait's elapsed_ns, and those
 * spent in ddp_wait. A staged bucket is launched when its data has reached the host. */
typedef struct ddp_times {
    int64_t comm_ns, exposed_ns;
} ddp_times;
ddp_times ddp_elapsed(const ddp *reducer);

#endif
