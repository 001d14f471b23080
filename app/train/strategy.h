/* How the work of a step is spread over devices: --mode.
 *
 *   ddp     processes, each with a part of the batch; gradients are all-reduced while backward goes
 *           on (DistributedDataParallel); with --sync-every parameters are averaged, now and then
 *   dp      one process, a thread per replica; the master sends parameters and inputs out and adds
 *           gradients up (DataParallel)
 *   ps      processes; rank 0 adds gradients up and sends parameters back (a parameter server);
 *           with --async rank 0 only serves, and the others do not wait for each other
 *   zero1   as ddp, but each rank steps a slice of the parameters, and has the optimizer's state of
 *           that slice alone
 *   fsdp    as zero1, but of parameters and gradients, too, each rank has a slice alone: a layer's
 *           are gathered when it computes (fully_shard)
 *   pipeline  processes; each has some of the layers, and pieces of the batch go through them
 *   model   one process; each device has some of the layers, and the whole batch goes through them
 *   tp      processes; each has a part of two linear layers, and they add up its outputs
 *   single  one process, the whole batch
 *
 * A strategy is a file that fills in the table of strategy_ops.h. Others use it through these
 * functions. CONTRIBUTING.md lists what a new one takes.
 */
#ifndef MNIST_DDP_APP_TRAIN_STRATEGY_H
#define MNIST_DDP_APP_TRAIN_STRATEGY_H

#include "app/options/options.h"
#include "app/train/timeline.h"
#include "base/status.h"
#include "dist/mesh.h"
#include "kernels/batch.h"
#include "kernels/ops.h"
#include "kernels/step.h"
#include "model/checkpoint.h"
#include "model/network.h"
#include "model/optimizer.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct rank_context;
typedef struct strategy strategy;

/* What is known of a strategy before it is open. */
typedef struct strategy_facts {
    const char *name;    /* as --mode spells it */
    const char *title;   /* in a run's header: "mode ps, ranks" */
    const char *unit;    /* what has threads and a part of the batch: "rank", "replica" */
    bool is_one_process; /* it does all of the work: its --batch-size is the whole batch */
    bool has_replicas;   /* devices of one process: --replicas, and --backend is theirs */
    bool is_central;     /* gradients are added up in one place, in an order of its own: other
                                  numbers of devices give other bits */
    const char *alone;   /* why one rank makes no sense; NULL: it does */
    const char *axis; /* of --mesh, along which devices have a part of the network each, or of its
                         state, and none has all gradients; NULL: each has them all */
    bool cuts_model;  /* these have parts of the network: --batch-size is all of theirs */
    int (*most)(model_kind kind); /* of them; NULL: any number */
    bool has_server;      /* rank 0 has no samples, and no rank may come or go: not elastic */
    bool can_be_captured; /* one thread enqueues all of a step: a graph can record it */
    bool has_peer;        /* bench/peers/torch_ddp_mnist.py trains this way, too */
    const char *advice;   /* which user should take it, and what for: one sentence */
} strategy_facts;

/* A row is STRATEGY_<first>, and a table of functions, strategy_<second>. */
#define STRATEGIES(ROW) \
    ROW(SINGLE, single) \
    ROW(DP, dp) \
    ROW(DDP, ddp) \
    ROW(PS, ps) \
    ROW(ZERO1, zero1) ROW(FSDP, fsdp) ROW(PIPELINE, pipeline) ROW(TP, tp) ROW(MODEL, model)

#define STRATEGY_KIND(kind, table) STRATEGY_##kind,
typedef enum strategy_kind { STRATEGIES(STRATEGY_KIND) STRATEGY_COUNT } strategy_kind;

/* Lives as long as the program. */
const strategy_facts *strategy_about(strategy_kind kind);

/* The ranks that share an epoch's samples: DistributedSampler's rank and num_replicas. */
typedef struct data_sharing {
    int rank, world_size;
    bool scores; /* losses and hits of its samples count as this rank's; else they are another's */
} data_sharing;

/* What a rank has of the network. A rank's wish to stop stands after the gradients; what all ranks
 * wish comes back there, or after the parameters if they have an array. */
typedef struct network_share {
    network_cut cut; /* these three: network_options */
    network_sum sum;
    size_t shard;
    size_t gradients;  /* floats: its parameters', and PREEMPT_FLOATS or more after them */
    size_t parameters; /* likewise, if they travel; 0: the network makes its own */
    int pieces;        /* of a batch, each with a forward of its own */
} network_share;

/* NULL: there is no such mode. */
const strategy_facts *strategy_named(const char *name);

/* Of --mode, which the option table has checked. */
const strategy_facts *strategy_of(const options *opts);

/* STATUS_INVALID, with what to type, for settings that do not go with the mode or with a job of
 * `world_size` ranks. */
status strategy_check(const options *opts, int world_size);

/* Devices of one process: as many as --replicas says, else one per GPU, else 2 on the CPU; 1 but
 * with --mode=dp and model. STATUS_INVALID if there would be too many. */
status strategy_replicas(const options *opts, int *out);

/* Whether each of its ranks has all state, and its step is train_step's (strategy.c): then a run
 * may go on without a rank that is lost (strategy_commit_open). */
bool strategy_can_commit(const options *opts);

/* Where a rank lies, by --mesh and --mode. STATUS_INVALID, with what to type. */
status strategy_place(const options *opts, int rank, int world_size, mesh *out);

/* Of a rank that lies there. */
data_sharing strategy_data_sharing(const options *opts, const mesh *m);

/* Before network, loader and strategy of the rank are opened. */
network_share strategy_network(const struct rank_context *rank);

/* Network and loader of the rank are open, and stay so until the close. Its process group is open
 * too, and is destroyed before the close. Blocks until all replicas, if it has any, are ready. */
status strategy_open(const options *opts, struct rank_context *rank, strategy **out);
void strategy_close(strategy *s); /* accepts NULL */

/* The step with this plan begins: sets the optimizer's part of it, before the rank's own device
 * begins it. */
void strategy_plan_step(strategy *s, float lr, step_plan *plan);

/* Step `step` of the epoch, whole; `s` is a strategy. On an accelerator it is only enqueued here,
 * and where steps are replayed as graphs (step_graphs_run) it is called only to record one. */
status strategy_run_step(void *s, int step);

/* After a step, of --sync-every or before a test or a save: all ranks have the same parameters and
 * optimizer state then. Nothing to do where ranks share every step. */
status strategy_meet(strategy *s);

/* One batch of a step. `first`: gradients are set; those of the step's further batches are added to
 * them. `last`: after its backward the rank's gradients of the step are complete. */
typedef struct step_batch {
    batch in;
    bool first, last;
} step_batch;

/* The rank's optimizer, of the part of the network that it steps; the other is NULL unless each
 * rank steps all of it, and so has all of the optimizer's state. */
optimizer *strategy_optimizer(const strategy *s);
optimizer *strategy_shared_optimizer(const strategy *s);

/* For what rank 0 saves and loads, between two steps; NULL: it has all of it. Meanwhile the others
 * call strategy_serve_state, which returns when rank 0 has called strategy_end_state. */
const checkpoint_access *strategy_access(const strategy *s);
status strategy_serve_state(strategy *s);
status strategy_end_state(strategy *s);

/* Rank `root` has all that the mode gives one rank of parameters, optimizer state and loss scaling:
 * each rank gets what is its own of them. All ranks call it. */
status strategy_share_state(strategy *s, int root);

/* Of a test: forward of a batch, and its score to the network's totals. NULL: other ranks have one
 * more, and may need this one for it. */
status strategy_evaluate(strategy *s, const batch *in);

/* Whether all parameters of all ranks are finite. Waits for the device. All ranks call it. */
status strategy_is_finite(strategy *s, bool *out);

/* In an elastic run no rank begins a step's optimizer before it knows that the gradients of all
 * ranks have come. So whoever loses another rank has parameters that are those after a whole step,
 * and all ranks lose one step at most. They also learn each step's loss of all ranks: a rank that
 * is lost later takes nothing of the epoch's mean with it. An accelerator does all that by itself
 * (step_commit in kernels/step.h), and the host may be many steps ahead of it. */
typedef struct step_commits {
    int64_t steps;   /* since the beginning */
    double loss;     /* the sum over all ranks' images since then */
    int64_t images;  /* how many those are, with the sampler's padding */
    int64_t updates; /* the optimizer's at the beginning */
} step_commits;

/* From now on steps commit. For a strategy that can. */
status strategy_commit_open(strategy *s);

/* Between two steps: all is counted from here on; the network's totals begin anew. */
void strategy_commit_begin(strategy *s);
void strategy_commit_reset_score(strategy *s);
status strategy_committed(const strategy *s, step_commits *out); /* after all that is enqueued */

/* All ranks call it, before they believe what collectives on the host's memory have said, or save
 * what they have: STATUS_PEER unless all have taken `steps` steps since the beginning. When a rank
 * aborts a collective, the others may get garbage from it; that rank does not come here. Nothing to
 * do where the host is in each step. */
status strategy_commit_confirm(strategy *s, int64_t steps);

/* After a failure, also of later work on the device: returns `st`, or the status of a replica that
 * knows more, with its message. */
status strategy_explain(strategy *s, status st);

/* What a step moves between its devices, and how, in lines of text. */
void strategy_describe(const strategy *s, FILE *out);

/* What of a run only the mode knows, for result.json, on rank 0: an object that is given away;
 * NULL: nothing. It is named "staleness". */
json_t *strategy_outcome(const strategy *s);

/* Of its transfers: "shm", "nccl", ...; "none" if there are none. */
const char *strategy_backend(const strategy *s);

/* What one of its devices, by the index of the replica, has moved and held so far. */
typedef struct device_use {
    int64_t sent_bytes, received_bytes; /* to and from other ranks or replicas */
    int64_t memory_peak;                /* bytes of device memory */
} device_use;
device_use strategy_use(const strategy *s, int index);

/* Nanoseconds of collectives so far, from launch to end; -1: not known. `exposed_ns`: what the
 * timeline has of them. */
int64_t strategy_comm_ns(const strategy *s, int64_t exposed_ns);

/* A step's work, recorded once per number of samples as a graph of the device and then replayed:
 * the host enqueues one graph instead of a few dozen kernels. */

/* An epoch has full steps and at most one shorter one at its end. */
enum { STEP_GRAPHS_MAX = 2 };

typedef struct step_graph {
    int samples;         /* in a step that it is for: they decide the shape of the work */
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
