/* The status line of a training: how far it is, how fast it goes, and what rank 0 does when it does
 * not train: it tests, saves, or waits for a rank. */
#ifndef MNIST_DDP_APP_TRAIN_PROGRESS_BAR_H
#define MNIST_DDP_APP_TRAIN_PROGRESS_BAR_H

#include "app/common/status_line.h"
#include "app/train/pace.h"

#include <stdatomic.h>

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
