/* What a run leaves and says at its end. */
#ifndef MNIST_DDP_APP_TRAIN_RUN_END_H
#define MNIST_DDP_APP_TRAIN_RUN_END_H

#include "app/train/training.h"

/* Rank 0's: the JSON line, on stdout if it was asked for and always in the run's folder, and what
 * was saved. */
status run_end_print(training *t);

/* eval.json: what the run's last test says of each class. All ranks call it. A run without it is
 * still a run. */
status run_end_write_eval(training *t);

/* Rank 0's: the page of what the run's folder holds; a run without it is still a run. */
void run_end_write_report(training *t);

/* Of the rank that has written the trace: FILE.html beside it, and a picture of some steps for the
 * run's report. A run without them is still a run. */
void run_end_draw_trace(training *t);

/* After a stop that a signal has asked for. */
void run_end_say_stopped(training *t);

/* Every rank leaves an error file; rank 0 speaks for all. */
void run_end_say_diverged(training *t);

#endif
