/* The status line of a training: how far it is, how fast it goes, and what rank 0 does when it does
 * not train: it tests, saves, or waits for a rank. */
#ifndef MNIST_DDP_APP_TRAIN_PROGRESS_BAR_H
#define MNIST_DDP_APP_TRAIN_PROGRESS_BAR_H

#include "app/common/status_line.h"
#include "app/train/rank_context.h"

#include <stdatomic.h>

/* A step that has been taken: what a line about it says, beside its loss. */
typedef struct step_line {
    int64_t epoch, now_ns;
    int step, steps;  /* step: of the epoch's `steps`, from 0 */
    uint32_t samples; /* of this rank's epoch that are done */
    int batch_n;      /* of the last batch */
} step_line;

/* How fast a training goes, and when it ends if it goes on so. Begins zeroed. */
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

enum { LATE_RANKS_BYTES = 80 };

/* Begins zeroed, and stays where it is while it is open. */
typedef struct progress_bar {
    status_line line;
    const rank_context *rank;
    int64_t started_ns;   /* of the program */
    atomic_bool is_drawn; /* since a step was noted last: another one is wanted */

    pthread_mutex_t lock; /* of what was noted: */
    step_line step;
    pace pace;
    double loss;

    /* Of the line's thread: the collective that rank 0 waits in, and for whom. */
    uint64_t waits;
    int64_t since_ns, looked_ns;
    char late[LATE_RANKS_BYTES];
} progress_bar;

/* Draws on the terminal `fd`. `rank`, which is open, is borrowed; time passed counts from
 * `started_ns`, and `epoch`, from 0, is the first one.
 * STATUS_NO_MEMORY. */
status progress_bar_open(int fd, const rank_context *rank, int64_t started_ns, int64_t epoch,
                         progress_bar *out);

/* Accepts a zeroed one. */
void progress_bar_close(progress_bar *bar);

/* Whether the line is to show this step: the last one of an epoch, or it has shown what was noted
 * before. Costs a load. */
bool progress_bar_wants_step(const progress_bar *bar, int step, int steps);
void progress_bar_note(progress_bar *bar, const step_line *step, const pace *p, double loss);

#endif
