/* A training step's work, recorded once per batch size as a graph of the device and then replayed:
 * the host enqueues one graph instead of a few dozen kernels. */
#ifndef MNIST_DDP_APP_TRAIN_STEP_GRAPHS_H
#define MNIST_DDP_APP_TRAIN_STEP_GRAPHS_H

#include "app/train/timeline.h"
#include "kernels/ops.h"

/* An epoch has full steps and at most one shorter one at its end. */
enum { STEP_GRAPHS_MAX = 2 };

typedef struct step_graph {
    int samples;         /* of the steps that it is for: they decide the shape of the work */
    device_graph *graph; /* NULL: such a step has run once, not recorded */
} step_graph;

typedef struct step_graphs {
    timeline *timeline; /* and its device */
    bool enabled;       /* false: every step is enqueued kernel by kernel */
    step_graph known[STEP_GRAPHS_MAX];
    int n;
} step_graphs;

/* Enqueues step `step`, or has done it if the device is the host. */
typedef status (*enqueue_step_fn)(void *ctx, int step);

/* The first step of a size is run as it is: libraries choose their kernels and take their memory
 * then. The second is recorded, and replayed from then on. */
status step_graphs_run(step_graphs *graphs, int samples, int step, enqueue_step_fn enqueue,
                       void *ctx);

/* Before anything that the graphs use is closed. */
void step_graphs_close(step_graphs *graphs);

#endif
