/* What a strategy implements; others include strategy.h.
 *
 * `rank` is the rank that trains, `self` the strategy's state. CONTRIBUTING.md lists what a new
 * strategy takes.
 *
 * A step is run_step, or what is done in its place: for each batch forward_backward, then
 * synchronize (gradients are the mean over all ranks, wherever the optimizer needs them), then
 * optimizer_step (parameters are the next step's, on all ranks). A collective without
 * op and type is a sum of floats.
 *
 * If steps are replayed as graphs (can_be_captured, step_graphs_run), these are called only in the
 * first two steps of a number of samples: to warm up, and to be recorded. A replay repeats what
 * they have enqueued on the device, and nothing else. plan_step is called before every step. */
#ifndef MNIST_DDP_APP_TRAIN_STRATEGY_OPS_H
#define MNIST_DDP_APP_TRAIN_STRATEGY_OPS_H

#include "app/train/rank_context.h"
#include "app/train/strategy.h"

#include <stdio.h>

typedef struct strategy_ops {
    strategy_facts facts;

    /* Of a job with `n` ranks, along the axis if there is one. NULL: the facts say all. */
    status (*check)(const options *opts, int n);

    size_t self_bytes; /* of `self`: zeroed memory; 0: it has no state */
    status (*open)(rank_context *rank, void *self);
    /* After open, also if that failed. The rank's process group is destroyed by then, and with it
     * process_group_alloc's memory, unless open failed. */
    void (*close)(void *self);

    /* What device `i` along the axis has of the model; NULL: all. */
    network_cut (*cut)(const rank_context *rank, int i);
    /* What else this rank has of the network; NULL: no array of parameters. Before open. */
    void (*network)(const rank_context *rank, network_share *out);
    /* What this rank's optimizer steps: *out comes as all of its network; NULL: that stays. */
    void (*part)(const rank_context *rank, void *self, optimizer_part *out);
    /* Rank `root`'s state becomes that of all. NULL: each rank is to have all, parameters and the
     * optimizer's arenas; what is counted follows by itself. */
    status (*share_state)(rank_context *rank, void *self, int root);
    /* Arena `arena` (checkpoint_access) from all ranks to rank 0's `host` (NETWORK_EXPORT), or from
     * there to all that have a part of it; the others' `host` is NULL. All ranks call it. NULL:
     * rank 0 has all. */
    status (*move_state)(rank_context *rank, void *self, size_t arena, network_order way,
                         float *host);

    /* Whether this rank's parameters are finite. NULL: its network has all of them. */
    status (*is_finite)(void *self, bool *out);

    void (*plan_step)(void *self, const step_plan *plan);         /* NULL: nothing */
    status (*run_step)(rank_context *rank, void *self, int step); /* NULL: the three that follow */
    /* NULL: the rank's network does it, with the rank's batch. */
    status (*forward_backward)(rank_context *rank, void *self, const step_batch *b);
    status (*synchronize)(rank_context *rank, void *self);    /* NULL: nothing */
    status (*optimizer_step)(rank_context *rank, void *self); /* NULL: the rank's optimizer's */
    /* After some of the steps (strategy_meet): all ranks get the same state. NULL: they have it. */
    status (*meet)(rank_context *rank, void *self);
    /* Of a test: forward of a batch, and its score; `in` NULL: other ranks have one more. NULL:
     * this rank's network does it. */
    status (*evaluate)(rank_context *rank, void *self, const batch *in);

    status (*explain)(void *self, status st);                          /* NULL: nobody knows more */
    void (*describe)(const rank_context *rank, void *self, FILE *out); /* NULL: the facts say it */
    json_t *(*outcome)(const rank_context *rank, void *self);          /* NULL: nothing */
    /* NULL: these two are of the ranks' process group. */
    const char *(*backend)(void *self);
    device_use (*use)(void *self, int index);
    int64_t (*comm_ns)(const rank_context *rank, void *self,
                       int64_t exposed_ns); /* NULL: the exposed ones are all */
} strategy_ops;

#define STRATEGY_TABLE(kind, table) extern const strategy_ops strategy_##table;
STRATEGIES(STRATEGY_TABLE)
extern const strategy_ops strategy_local_sgd; /* ddp's, with --sync-every */
extern const strategy_ops strategy_ps_async;  /* --mode=ps with --async */

/* What strategies share: entries of their tables, or most of one. */

enum { REPLICAS_MAX = 64 }; /* devices of one process */

/* A model that is cut into stages, by ranks or by devices: how many, and which parts one has. */
int strategy_stages(const rank_context *rank);
network_cut strategy_stage(const rank_context *rank, int i);
void strategy_describe_stages(const rank_context *rank, FILE *out); /* a line each */

/* Of the rank's whole batch. `ready` as network_backward calls it; NULL: it is not called. */
status strategy_ranks_forward_backward(rank_context *rank, const step_batch *b, grad_ready_fn ready,
                                       void *ctx);

/* The step of the three functions, for a run_step of which some ranks do something else. */
status strategy_ranks_step(rank_context *rank, int step);

/* What a parameter server, rank 0, has of the optimizer: all. The others only count its steps. */
void strategy_server_part(const rank_context *rank, void *self, optimizer_part *out);

/* Clips the gradients if --clip-grad-norm says so, then steps the optimizer. */
status strategy_ranks_optimizer_step(rank_context *rank);

/* The mean over ranks with the same part of the network: one all-reduce. The gradients take the
 * wish to stop with them. */
status strategy_ranks_average(rank_context *rank, float *values, size_t count, const char *label);
status strategy_ranks_average_gradients(rank_context *rank);

/* Rank `root`'s parameters become those of all that have the same part of the network. */
status strategy_ranks_share_parameters(rank_context *rank, void *self, int root);

/* The wish to stop, where no gradients travel to take it along: the sum over the ranks
 * of a network. */
status strategy_ranks_sum_wish(rank_context *rank);

/* This rank's memory of an arena (checkpoint_access); NULL: it has nothing of it. */
float *strategy_ranks_arena(const rank_context *rank, size_t arena);

/* A rank's slice of an arena, or of a unit of it (network_sharding). */
typedef struct state_slice {
    float *state; /* device memory; NULL: there is nothing of it */
    size_t count; /* floats that are there */
    size_t room;  /* that the slice of any rank has; behind the last ones is padding */
    int unit;     /* 0, if the network has no units */
} state_slice;

/* move_state, of slices; and of ranks that have a cut of the network each. */
status strategy_ranks_move_slice(rank_context *rank, const state_slice *slice, network_order way,
                                 float *host);
status strategy_ranks_move_cut(rank_context *rank, void *self, size_t arena, network_order way,
                               float *host);

#endif
