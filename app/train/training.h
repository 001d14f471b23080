/* All parts of one rank's run, for the files that begin, continue and end it. */
#ifndef MNIST_DDP_APP_TRAIN_TRAINING_H
#define MNIST_DDP_APP_TRAIN_TRAINING_H

#include "app/train/elastic.h"
#include "app/train/kept_state.h"
#include "app/train/trainer.h"

typedef struct training {
    rank_signals signals;
    elastic *link;   /* NULL: the job is not elastic */
    kept_state kept; /* of its latest round */
    rank_context rank;
    run_folder folder; /* rank 0's; of an elastic job all ranks know its path */
    progress progress;
    result result;
    trainer trainer;
    rendezvous_place place;                /* of the round */
    bool runs;                             /* the round's ranks have begun, or gone on */
    bool survives;                         /* the round is over, and the process goes on */
    bool is_done;                          /* the run is, and rank 0 has said what it came to */
    int64_t failed_ns, left_ns, joined_ns; /* of the latest change of rounds; 0: there was none */
    int init_code;                         /* --init has failed so; 0: it has not */
    bool output_failed;                    /* something is not on disk that was asked for */
    bool refused;                          /* rank 0 has said why the run does not start */
} training;

#endif
