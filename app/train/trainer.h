/* One rank's training: the loop over epochs and steps. */
#ifndef MNIST_DDP_APP_TRAIN_TRAINER_H
#define MNIST_DDP_APP_TRAIN_TRAINER_H

#include "app/options/training_values.h"
#include "app/train/fault.h"
#include "app/train/preempt.h"
#include "app/train/run_folder.h"
#include "app/train/run_records.h"

typedef struct trainer {
    rank_context *rank;
    rank_signals *signals;
    run_folder *folder; /* rank 0's */
    result *result;
    run_records records;
    interval save_every;
    inject fault;
    step_graphs graphs;
    int64_t epochs; /* the whole run's */
    position at;
    position began;       /* where this process began the epoch, in this round of an elastic job */
    int epoch_steps;      /* in the epoch, in this world */
    score so_far;         /* for this rank's epoch since the last test, as last read */
    uint32_t own_samples; /* in the epoch, trained on by this rank */
    double lr;            /* for the step that was enqueued last */
    double loss_before;   /* over the own_samples before the last test inside the epoch */
    int64_t tested_ns;    /* what tests inside the epoch took */
    int64_t epoch_began_ns; /* earlier by what earlier rounds took of it */
    evaluation *monitored;  /* the result's that decides about the run: validation or test */
    float *logits;          /* (test images, NETWORK_CLASSES), zeroed: of the last test, this rank's
                               part; NULL: nobody wants them */
    test_found found;       /* what is in *monitored, and after which step */
    bool reached;           /* the target accuracy */
    const char *not_finite; /* what is not, if the run has diverged; NULL: it has not */
    int64_t diverged_step;  /* the step of the run after which it was seen, from 1 */
} trainer;

/* Borrows `rank`, which is open, and the parts to which `out` points already. `save_every`,
 * `fault`, records.metrics and `at` are set afterwards, before trainer_run. trainer_close accepts a
 * zeroed one. */
status trainer_open(rank_context *rank, trainer *out);
void trainer_close(trainer *t);

/* Trains from t->at to the last epoch, the target accuracy, or the step at which all ranks stop
 * (t->rank->stop.agreed), with tests, progress and checkpoints. With validation images, these tests
 * are on them, and one on the test images follows at the end. A run whose loss is not finite, on
 * any rank, or whose test loss or weights are not, stops too (t->rank->stop.diverged). */
status trainer_run(trainer *t);

/* Whether no step is left to train. */
bool trainer_is_done(const trainer *t);

#endif
