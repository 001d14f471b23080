/* How long an operation between ranks takes, by size: measured as nccl-tests measures it. */
#ifndef MNIST_DDP_APP_BENCH_COLLECTIVE_BENCH_H
#define MNIST_DDP_APP_BENCH_COLLECTIVE_BENCH_H

#include "base/status.h"
#include "dist/process_group/process_group.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct device;

/* What is measured; of "send-recv", which is one of each, COLLECTIVE_SEND: every rank sends to the
 * next and receives from the one before. */
typedef struct collective_case {
    collective_kind kind;
    dtype type;
    reduce_op op;
    int root;
} collective_case;

typedef struct collective_plan {
    collective_case what;
    size_t min_bytes, max_bytes; /* a message's; rounded down to whole elements of all ranks */
    double factor;               /* > 1: from one size to the next */
    int iterations;              /* timed, >= 1 */
    int warmup;                  /* before them */
    bool check;                  /* whether the result is right */
    bool graph;                  /* the timed ones are recorded, where that can be */
} collective_plan;

/* Means over ranks. */
typedef struct collective_time {
    bool exists;              /* the operation can be done this way */
    double mean_s;            /* an iteration's: the time of all of them, divided by their number */
    double median_s, least_s; /* single iterations'; < 0: the host does not see them end */
    int64_t wrong;            /* elements, over all ranks; -1: not looked at */
} collective_time;

typedef struct collective_row {
    size_t size_bytes; /* a rank's in or out, whichever is larger */
    size_t count;      /* elements that one rank sends to, or gets from, one other */
    collective_time out_of_place, in_place;
} collective_row;

typedef struct collective_bench collective_bench;

/* "all-reduce", "send-recv"; NULL: the kind is measured by no benchmark. */
const char *collective_bench_name(collective_kind kind);

/* The kind that a benchmark measures; false: it is none of these. */
bool collective_bench_find(const char *benchmark, collective_kind *out);

/* Takes memory for the plan's largest message. On a host device, or with dev NULL, the result lies
 * in the group's own memory, as training's gradients do; process_group_options.shared_bytes must
 * have room for collective_bench_bytes. Borrows group and device until destroy. */
status collective_bench_create(process_group *group, struct device *dev,
                               const collective_plan *plan, collective_bench **out);
void collective_bench_destroy(collective_bench *bench); /* accepts NULL; before the group */

/* The largest message of `world_size` ranks. */
size_t collective_bench_bytes(const collective_plan *plan, int world_size);

/* The size after `size_bytes`; 0 for the first. 0: that was the last. */
size_t collective_next_size(const collective_plan *plan, int world_size, size_t size_bytes);

/* Whether the timed iterations are one CUDA graph, so that the host has no share in their time. */
bool collective_bench_captures(const collective_bench *bench);

/* Measures out of place and in place. All ranks call it with the same size and get the same row. */
status collective_measure(collective_bench *bench, size_t size_bytes, collective_row *out);

/* GB/s, by nccl-tests' doc/PERFORMANCE.md: bytes by time, and what that says of the busiest link,
 * which compares with the hardware's bandwidth whatever the number of ranks. */
double collective_algbw(size_t size_bytes, double elapsed_s);
double collective_busbw(collective_kind kind, size_t size_bytes, double elapsed_s, int world_size);

#endif
