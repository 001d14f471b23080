/* The folder that takes everything a run leaves, and a run's place in it. Rank 0's business. */
#ifndef MNIST_DDP_APP_TRAIN_RUN_FOLDER_H
#define MNIST_DDP_APP_TRAIN_RUN_FOLDER_H

#include "app/train/job.h"
#include "base/file.h"

#include <stdbool.h>

/* The run's JSON line, in its folder. */
#define RUN_FOLDER_RESULT "result.json"

/* Where training stands. */
typedef struct progress {
    int64_t epoch;         /* completed epochs */
    int64_t step_in_epoch; /* optimizer steps behind those */
    int64_t step;          /* optimizer steps of the whole run */
    double epoch_loss;     /* of those behind the completed epochs, all ranks: sum over samples, */
    int64_t epoch_samples; /* and how many they are */
} progress;

/* Whether a run continues one that its folder holds. */
typedef enum resume_mode {
    RESUME_NEVER, /* the folder must hold none */
    RESUME_MUST,  /* it must hold one */
    RESUME_AUTO,  /* where it holds one: --resume=auto, and workers that were started again */
} resume_mode;

resume_mode run_folder_resume_mode(const job *j);

/* Sets `path` (FILE_PATH_BYTES) to the folder that a run with these settings uses: --run-dir, else
 * runs/<local time>-<model>, a new one, made now. STATUS_INVALID where it is too long. */
status run_folder_choose(const options *opts, char *path);

/* Chooses the folder, makes it if missing, takes it for this process until *lock_fd is closed, and
 * removes the half-written files that killed runs have left there.
 * STATUS_INVALID where another process has it, where it holds a run already that is not to be
 * continued, or where --resume was given without --run-dir. */
status run_folder_open(const job *j, char *path, int *lock_fd);

/* Restores the newest checkpoint that is whole and fits into network and optimizer, and where it
 * stood into *at, and makes sure that its model is the one beside it; leaves *at alone where there
 * is none and need be none. STATUS_INVALID where the run was started with another seed, batch,
 * model, optimizer or world size, where a checkpoint is asked for and there is none, where none
 * fits, and where workers started again find what another launch has left. */
status run_folder_resume(const char *path, job *j, progress *at);

/* Writes a checkpoint. saved_step: that of the one before it, or of the one that was restored; 0 if
 * there is none. It stays beside the new one. */
status run_folder_save(const char *path, job *j, const progress *at, int64_t saved_step);

/* Looks at the folder: STATUS_INVALID unless it holds this place's checkpoint, whole, and its model
 * beside it. */
status run_folder_check_saved(const char *path, const progress *at);

#endif
