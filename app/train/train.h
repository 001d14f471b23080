/* One rank's training: what it holds, and the loop over epochs. */
#ifndef MNIST_DDP_APP_TRAIN_TRAIN_H
#define MNIST_DDP_APP_TRAIN_TRAIN_H

#include "app/train/inject.h"
#include "app/train/job.h"
#include "app/train/rank_signals.h"
#include "app/train/report.h"
#include "app/train/run_folder.h"
#include "app/train/save_every.h"
#include "app/train/step_graphs.h"
#include "app/train/step_log.h"

typedef struct training {
    job j;
    rank_signals signals;
    report rep;
    step_log log;
    char run_dir[FILE_PATH_BYTES]; /* rank 0's */
    int run_dir_lock;              /* rank 0's; held as long as it writes there */
    int64_t saved_step; /* of the checkpoint last written or restored; 0: none. On rank 0 */
    save_every every;
    inject fault;
    progress at;
    progress began; /* where this process began the epoch */
    score so_far;   /* of this rank's epoch, when it was last read */
    int64_t epochs; /* of the whole run */
    step_graphs graphs;
    run_results results;
    rank_bytes step_bytes;  /* that this rank moves in a step like the last one enqueued */
    uint32_t epoch_samples; /* of the epoch that this rank has trained on */
    int64_t started_ns;
    bool stepped;       /* the first optimizer step is done */
    bool output_failed; /* something is not on disk that was asked for */
} training;

/* Trains from t->at to the last epoch, the target accuracy, or the step at which all ranks stop
 * (t->j.stop.agreed), with tests, reports and checkpoints. */
status train_epochs(training *t);

#endif
