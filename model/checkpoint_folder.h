/* The folder <run_dir>/checkpoints: listing, adding and deleting checkpoints. */
#ifndef MNIST_DDP_MODEL_CHECKPOINT_FOLDER_H
#define MNIST_DDP_MODEL_CHECKPOINT_FOLDER_H

#include "base/file.h"
#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* Of a run folder: one folder a checkpoint is in it. */
#define CHECKPOINT_FOLDER "checkpoints"

/* The files of a checkpoint. */
#define CHECKPOINT_MODEL "model.safetensors"
#define CHECKPOINT_OPTIMIZER "optimizer.safetensors"
#define CHECKPOINT_STATE "state.json"

/* The link to the best checkpoint, and its name while it is made. */
#define CHECKPOINT_BEST "best"
#define CHECKPOINT_BEST_DRAFT "best.tmp"

/* "<folder>/00000938" into `out` (FILE_PATH_BYTES). */
status checkpoint_folder_path(const char *folder, int64_t step, char *out);

/* The steps of the checkpoints in `folder`, newest first, in memory that the caller frees; n = 0 if
 * there is no such folder. */
status checkpoint_folder_list(const char *folder, int64_t **steps, size_t *n);

/* Makes a new folder for the checkpoint of this step, "00000938.tmp" or one beside it if that name
 * is taken; its path into `temporary` (FILE_PATH_BYTES). */
status checkpoint_folder_begin(const char *folder, int64_t step, char *temporary);

/* Turns such a folder into the checkpoint, atomically, and makes that durable. An earlier one of
 * the same step is replaced. */
status checkpoint_folder_commit(const char *folder, int64_t step, const char *temporary);

/* Deletes the leftovers of interrupted saves and deletions. What cannot be deleted is logged and
 * does no harm. */
void checkpoint_folder_clean(const char *folder);

/* Deletes a checkpoint: it is gone at once or not at all. */
status checkpoint_folder_delete(const char *folder, int64_t step);

/* Deletes a folder of plain files. */
status checkpoint_folder_remove(const char *path);

#endif
