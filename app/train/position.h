/* Where training stands. */
#ifndef MNIST_DDP_APP_TRAIN_POSITION_H
#define MNIST_DDP_APP_TRAIN_POSITION_H

#include <stdint.h>

typedef struct position {
    int64_t epoch;         /* completed epochs */
    int64_t step_in_epoch; /* optimizer steps after those */
    int64_t step;          /* optimizer steps of the whole run */
    double epoch_loss;     /* of those after the completed epochs, all ranks: sum over samples, */
    int64_t epoch_samples; /* and how many they are */
    int64_t epoch_first;   /* of the epoch's order, where this world size began: others used those
                              before it, and step_in_epoch counts from here; 0: the beginning */
    int64_t world_changes; /* how often the run has gone on with another world size */
    double epoch_s;        /* what the epoch took in earlier rounds of this job, */
    int64_t epoch_timed;   /* and how many of its samples they did in it */
} position;

#endif
