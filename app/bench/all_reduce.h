/* How long an all-reduce takes, by size: measured as nccl-tests measures it. */
#ifndef MNIST_DDP_APP_BENCH_ALL_REDUCE_H
#define MNIST_DDP_APP_BENCH_ALL_REDUCE_H

#include "base/status.h"
#include "dist/process_group/process_group.h"

#include <stddef.h>
#include <stdint.h>

struct device;

typedef struct all_reduce_plan {
    size_t min_bytes, max_bytes; /* of a message; rounded down to whole floats, at least one */
    double factor;               /* > 1: from one size to the next */
    int iterations;              /* timed, >= 1 */
    int warmup;                  /* before them */
} all_reduce_plan;

/* Means over ranks. */
typedef struct all_reduce_time {
    double mean_s;            /* of an iteration: all of them together by their number */
    double median_s, least_s; /* of single iterations; < 0: the host does not see them end */
    int64_t wrong;            /* elements, over all ranks; -1: not looked at */
} all_reduce_time;

typedef struct all_reduce_row {
    size_t count; /* floats */
    size_t size_bytes;
    all_reduce_time out_of_place, in_place;
} all_reduce_row;

typedef struct all_reduce_bench all_reduce_bench;

/* Takes memory for the plan's largest message. On a host device, or with dev NULL, the result lies
 * in the group's own memory, as training's gradients do; process_group_options.shared_bytes must
 * have room for max_bytes. Borrows group and device until destroy. */
status all_reduce_bench_create(process_group *group, struct device *dev,
                               const all_reduce_plan *plan, all_reduce_bench **out);
void all_reduce_bench_destroy(all_reduce_bench *bench); /* accepts NULL; before the group */

/* The size after `size_bytes`; 0 for the first. 0: that was the last. */
size_t all_reduce_next_size(const all_reduce_plan *plan, size_t size_bytes);

/* Sums floats over all ranks, out of place and in place. All ranks call it with the same size and
 * get the same row. */
status all_reduce_measure(all_reduce_bench *bench, size_t size_bytes, all_reduce_row *out);

/* GB/s: bytes by time, and what a ring moves over every link for that, 2 (W-1)/W of the bytes,
 * which compares with the hardware's bandwidth whatever the number of ranks. */
double all_reduce_algbw(size_t size_bytes, double elapsed_s);
double all_reduce_busbw(size_t size_bytes, double elapsed_s, int world_size);

#endif
