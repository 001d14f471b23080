/* How fast a training goes, and when it ends if it goes on so. */
#ifndef MNIST_DDP_APP_TRAIN_PACE_H
#define MNIST_DDP_APP_TRAIN_PACE_H

#include "app/train/rank_context.h"

/* A step that has been taken: what a line about it says, beside its loss. */
typedef struct step_line {
    int64_t epoch, now_ns;
    int step, steps;  /* step: of the epoch's `steps`, from 0 */
    uint32_t samples; /* of this rank's epoch that are done */
    int batch_n;      /* of the last batch */
} step_line;

/* Begins zeroed. */
typedef struct pace {
    double images_per_s, steps_per_s; /* of all ranks, of the epoch so far */
    int64_t end_ns;                   /* when the last epoch ends; 0: not known yet */

    int64_t epoch_started_ns;     /* later by each test since then */
    int64_t first_step, first_ns; /* of the run: the first step that was noted, */
    bool is_under_way;            /* if one was */
} pace;

void pace_begin_epoch(pace *p, int64_t now_ns);

/* So much of the epoch's time was no training. */
void pace_leave_out(pace *p, int64_t ns);

void pace_note(pace *p, const rank_context *rank, const step_line *line);

#endif
