/* All that one rank has open while it trains: opened and closed in one place. */
#ifndef MNIST_DDP_APP_TRAIN_RANK_CONTEXT_H
#define MNIST_DDP_APP_TRAIN_RANK_CONTEXT_H

#include "app/common/core_binding.h"
#include "app/options/options.h"
#include "app/trace/run_trace.h"
#include "app/train/preempt.h"
#include "app/train/rank_settings.h"
#include "app/train/strategy.h"
#include "app/train/timeline.h"
#include "base/host.h"
#include "data/dataset.h"
#include "data/loader.h"
#include "dist/health/rank_status.h"
#include "dist/mesh.h"
#include "dist/process_group/process_group.h"
#include "dist/rendezvous.h"
#include "kernels/ops.h"
#include "model/checkpoint.h"
#include "model/network.h"
#include "model/optimizer.h"

#include <stdatomic.h>
#include <string.h>

struct agent_link; /* app/train/agent_link.h */

typedef struct rank_context {
    const options *opts;
    rendezvous_place place;
    mesh mesh;               /* from the rendezvous on; its groups as long as `group` */
    data_sharing sharing;    /* from the rendezvous on */
    struct agent_link *link; /* with the agent of an elastic job; borrowed; NULL: it is none */
    rank_settings settings;

    dataset_location location;
    dataset train_set; /* after --limit, without those of val_set */
    dataset val_set;   /* --val-split's: the last ones of train_set; .count is 0: there are none */
    dataset test_set;
    uint64_t data_digest;                      /* over all images, whatever --limit says */
    loader *loader, *val_loader, *test_loader; /* for this rank's parts; NULL: it has none */

    rendezvous *rendezvous;
    process_group *group;

    run_trace trace;
    rank_status *page; /* where this rank is; never NULL while training */
    timeline timeline;

    char device[DEVICE_TEXT_BYTES]; /* kernels/device_kind.h, before dev is opened */
    int device_number;              /* among those that --device and --devices give */
    device *dev;
    cores_peers peers;    /* ranks of this job that may use this rank's cores */
    core_binding binding; /* for this rank's threads; none with several replicas */
    network *net;
    schedule schedule;
    float *gradients;       /* the network's, and PREEMPT_FLOATS after them */
    float *parameters;      /* the network's, and what travels after them; NULL: its own */
    step_state *step_state; /* device memory: of the step under way */
    uint32_t *aborted;      /* of an elastic job on an accelerator: process_group_options.h */
    strategy *strategy;
    char sums[CHECKPOINT_SUMS_BYTES]; /* as the run began (run_folder.h); "": it begins here */
    preempt stop;
    _Atomic(const dataset *) evaluated; /* val_set or test_set: which is under way, or was last */
    atomic_uint tested; /* images of it that are done, if all ranks are as far as this one */
} rank_context;

/* The world that this rank is one of, in a checkpoint's words. */
static inline run_world rank_context_world(const rank_context *rank)
{
    return (run_world){rank->sharing.world_size, rank->settings.batch_size, rank->opts->accum,
                       rank->settings.schedule.lr};
}

/* Images of all ranks in one optimizer step. */
static inline int64_t rank_context_global_batch(const rank_context *rank)
{
    return (int64_t)rank->sharing.world_size * rank->settings.batch_size * rank->opts->accum;
}

/* The first image of that rank's part of val_set or test_set: it ends at that of the next one. */
static inline uint32_t rank_context_first_tested(const rank_context *rank, const dataset *set,
                                                 int number)
{
    uint64_t count = set->count, world = (uint64_t)rank->sharing.world_size;
    return (uint32_t)(count * (uint64_t)number / world);
}

/* Whether the ranks of such a run, if it is elastic, go on in their processes when a rank is lost:
 * each must have the whole state, and the backend must take another number of them (mpi has all its
 * ranks started together). Else they end, and are started again from the newest checkpoint. */
static inline bool rank_context_outlives_rounds(const options *opts)
{
    return strategy_can_commit(opts) && strcmp(opts->backend, "mpi") != 0;
}

/* Whether all ranks are of this host, as the launcher says; the same on all of them. */
static inline bool rank_context_is_one_host(const rank_context *rank)
{
    return rank->place.local_world_size == rank->place.world_size;
}

/* Where this process stands: from --init-method, --rank and the environment, or the only rank of a
 * job of its own. */
status rank_context_place(const options *opts, rendezvous_place *out, bool *is_worker);

/* $MNIST_DDP_DUMP_DIR: where ranks of this host keep their status (dist/health/rank_status.h), and
 * write their last collectives; NULL if it is not set. */
static inline const char *rank_context_dump_folder(void)
{
    return environment_text("MNIST_DDP_DUMP_DIR");
}

/* Of each network of the rank, without its memory and max_batch. */
network_options rank_context_network_options(const rank_context *rank);

/* What nodes compare before they start ranks (app/train/agreement.h): the same as ranks if elastic,
 * else the data. `out`: AGREEMENT_BYTES. */
status rank_context_agreement_of_node(const options *opts, bool is_elastic, char *out);

/* Batches in the longest of the ranks' parts of val_set or test_set. */
int rank_context_test_steps(const rank_context *rank, const dataset *set);

/* Opens all that training needs: data, rendezvous, process group, device, network, loader and
 * strategy; blocks until all ranks have joined. Parameters are rank 0's on all ranks. `link`: NULL
 * if the job is not elastic. All that is given is borrowed. On failure *exit_code says what kind
 * (app/common/exit_codes.h), and what is open is to be closed. `out` stays where it is. It is
 * zeroed, or as rank_context_close_round has left it. */
status rank_context_open(const options *opts, const rendezvous_place *place,
                         struct agent_link *link, rank_context *out, int *exit_code);

/* After a run that went well: waits for the other ranks, as a collective does, and leaves the
 * rendezvous. */
status rank_context_leave(rank_context *rank);

/* Ends what goes on between ranks: nothing that is enqueued on the device waits for another rank
 * then. Accepts what rank_context_close does, which does it too. */
void rank_context_close_group(rank_context *rank);

/* Accepts a zeroed one, and one that failed to open. Keeps this thread's message. */
void rank_context_close(rank_context *rank);

/* The same between two rounds: an accelerator stays open, with its libraries, the network and its
 * plans. What is enqueued there has come to its end. rank_context_close is still to follow. */
void rank_context_close_round(rank_context *rank);

/* The state of dynamic loss scaling, from and to the device. */
static inline status rank_context_loss_scaling(rank_context *rank, loss_scaling *out)
{
    step_state state;
    TRY(rank->dev->ops->download(rank->dev, &state, rank->step_state, sizeof state));
    *out = state.scaling;
    return STATUS_OK;
}

static inline status rank_context_set_loss_scaling(rank_context *rank, const loss_scaling *scaling)
{
    step_state state = {.scaling = *scaling};
    return rank->dev->ops->upload(rank->dev, rank->step_state, &state, sizeof state);
}

#endif
