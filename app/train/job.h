/* Everything that one rank has open while it trains or evaluates. */
#ifndef MNIST_DDP_APP_TRAIN_JOB_H
#define MNIST_DDP_APP_TRAIN_JOB_H

#include "app/modes/mode.h"
#include "app/modes/step.h"
#include "app/options/options.h"
#include "app/trace/run_trace.h"
#include "app/train/preempt.h"
#include "app/train/timeline.h"
#include "data/dataset.h"
#include "data/loader.h"
#include "dist/ddp.h"
#include "dist/param_server.h"
#include "dist/process_group.h"
#include "dist/rank_page.h"
#include "dist/rendezvous.h"
#include "kernels/device.h"
#include "model/network.h"
#include "model/optimizer.h"

enum { JOB_PS_FLOATS = 2 }; /* what travels with ps's parameters: stop, overflow */

typedef struct job {
    const options *opts;
    rendezvous_place place;
    run_trace trace;
    rank_page *page; /* where this rank is; never NULL while training */
    timeline timeline;
    rendezvous *rdzv;
    process_group *group;
    device *dev;
    network *net;
    optimizer *opt;
    float *gradients;     /* the network's, and PREEMPT_FLOATS behind them */
    float *parameters;    /* of ps: the network's, and JOB_PS_FLOATS behind them; NULL: its own */
    ddp *reducer;         /* of ddp, */
    param_server *server; /* of ps, */
    struct replicas *others; /* and of dp; NULL in the other modes */
    preempt stop;
    dataset_location location;
    dataset train_set, test_set; /* train_set after --limit */
    loader *load, *test_load;    /* of this rank's parts; test_load NULL: it has none */
    step_numbers *numbers;       /* device memory: of the step under way */

    /* settings in their final form */
    const step_ops *mode;
    int replicas; /* of dp; else 1 */
    model_kind model;
    optimizer_options optimizer;
    double lr;      /* of epoch 0 */
    int batch_size; /* of one batch, per rank */
    int threads;    /* that compute, per rank or replica */
    device_options device;
} job;

/* What a rank, or dp's replica `index`, has sent and received so far. */
typedef struct rank_bytes {
    int64_t sent, received;
} rank_bytes;
rank_bytes job_bytes(const job *j, int index);

/* Images of all ranks in one optimizer step. */
int64_t job_global_batch(const job *j);

/* Where this process stands: from the environment, or the only rank of a job of its own. */
status job_place(rendezvous_place *out, bool *is_worker);

/* Opens all that training needs: data, rendezvous, process group, device, network, optimizer, DDP
 * and loader; blocks until all ranks have joined. Parameters are rank 0's on all ranks.
 * On failure *exit_code says what kind (app/exit_codes.h), and nothing stays open. */
status job_open(const options *opts, const rendezvous_place *place, job *out, int *exit_code);

/* Only data, device and network: what evaluation in one process needs. The model is of `kind`. */
status job_open_eval(const options *opts, model_kind kind, job *out, int *exit_code);

/* Says goodbye to the other ranks: after a run that went well. */
status job_leave(job *j);
void job_close(job *j);

/* Copies rank 0's parameters and optimizer state to all ranks. */
status job_broadcast_state(job *j);

/* The state of dynamic loss scaling, from and to the device. */
status job_loss_scaling(job *j, loss_scaling *out);
status job_set_loss_scaling(job *j, const loss_scaling *scaling);

#endif
