/* Collectives on device memory for backends that take host memory only. What they read is copied to
 * pinned host memory, they work there, and what they set is copied back.
 *
 * The calls marked "group's lock" are made by one thread at a time, the others by the thread that
 * waits for the work.
 */
#ifndef MNIST_DDP_DIST_PROCESS_GROUP_STAGING_H
#define MNIST_DDP_DIST_PROCESS_GROUP_STAGING_H

#include "dist/collective/process_group_ops.h"

#include <stddef.h>

typedef struct staging staging;

/* One collective's stay in host memory. */
typedef struct staged {
    collective host; /* the same collective, there */
    size_t in_bytes, out_bytes;
    struct device_event *copied; /* reached when its data is there */
    struct staging_chunk *chunk; /* whose memory it takes */
    struct staged *next;         /* spare ones */
} staged;

/* Sets *out to *got_bytes of host memory, at least size_bytes, aligned to 64 bytes, which lives
 * until after staging_destroy. Called with the group's lock. */
typedef status (*staging_memory_fn)(void *ctx, size_t size_bytes, void **out, size_t *got_bytes);

/* Borrows dev, an accelerator. */
status staging_create(struct device *dev, staging_memory_fn memory, void *ctx, staging **out);

/* Accepts NULL. What it has staged must no longer be in use, by the device's copies either. */
void staging_destroy(staging *s);

/* Enqueues the copy of `c`, whose arrays are device memory of in_bytes and out_bytes, to the host,
 * after the device's work so far. Group's lock. */
status staging_copy_out(staging *s, const collective *c, size_t in_bytes, size_t out_bytes,
                        staged **out);

/* Returns when copied out: item->host may now be done. Blocks on the device alone. */
status staging_wait(staging *s, staged *item);

/* Enqueues the copy of the result to `out` on the device. */
status staging_copy_in(staging *s, const staged *item, void *out);

/* Its memory is free for the next copy out, which comes after the copy in. Accepts NULL. Group's
 * lock. */
void staging_release(staging *s, staged *item);

#endif
