/* The demonstrations. */
#ifndef MNIST_DDP_APP_DEMO_DEMO_TABLE_H
#define MNIST_DDP_APP_DEMO_DEMO_TABLE_H

#include "app/demo/demo.h"

/* What one rank does. Each stands in a file of its name, app/demo/<name>.c. */
typedef status demo_fn(demo *d);

demo_fn linear_demo, ring_demo, tree_demo, sampler_demo, buckets_demo, dp_demo, ps_demo;
demo_fn rendezvous_demo, store_demo, p2p_demo, groups_demo, world_size_demo, failure_demo;
demo_fn precision_demo, one_batch_four_ways_demo;

/* Whether it can show something with these flags and so many ranks. STATUS_INVALID: why not. */
typedef status demo_check_fn(const options *opts, int world_size);

demo_check_fn sampler_check_demo, dp_check_demo, failure_check_demo, one_batch_four_ways_check_demo;

typedef struct demo_entry {
    const char *name;
    const char *summary;         /* half a line, no period */
    int ranks;                   /* if --nproc-per-node is not given */
    int least_ranks, most_ranks; /* with fewer it shows nothing, with more it fills no screen */
    demo_fn *show;
    bool reads_data;      /* MNIST */
    demo_check_fn *check; /* NULL: the number of ranks says all */
} demo_entry;

extern const demo_entry demo_table[];
extern const int demo_table_count;

/* STATUS_INVALID if none has this name: the message names the nearest, or all. */
status demo_table_find(const char *name, const demo_entry **out);

#endif
