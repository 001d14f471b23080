/* The folder that takes everything a run leaves, and a run's place in it. Rank 0's business. */
#ifndef MNIST_DDP_APP_RUN_FOLDER_H
#define MNIST_DDP_APP_RUN_FOLDER_H

#include "app/job.h"
#include "base/file.h"

#include <stdbool.h>

/* Where training stands. */
typedef struct progress {
    int64_t epoch;         /* completed epochs */
    int64_t step_in_epoch; /* optimizer steps behind those */
    int64_t step;          /* optimizer steps of the whole run */
} progress;

/* The folder of this run: --run-dir, else runs/<local time>-<model>, made if missing.
 * STATUS_INVALID where it holds a run already and --resume was not given, or the other way round.
 */
status run_folder_open(const job *j, char *path);

/* Restores the newest checkpoint into network and optimizer, and where it stood into *at.
 * STATUS_INVALID where the run was started with another seed, batch, model, optimizer or world
 * size. */
status run_folder_resume(const char *path, job *j, progress *at);

/* Writes a checkpoint. */
status run_folder_save(const char *path, job *j, const progress *at);

#endif
