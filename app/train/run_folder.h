/* The folder that takes everything a run leaves, and a run's place in it. Only rank 0 uses it. */
#ifndef MNIST_DDP_APP_TRAIN_RUN_FOLDER_H
#define MNIST_DDP_APP_TRAIN_RUN_FOLDER_H

#include "app/train/rank_context.h"
#include "base/file.h"
#include "model/checkpoint.h"

#include <stdbool.h>

typedef struct run_folder {
    char path[FILE_PATH_BYTES];
    int lock_fd;        /* held while this process writes there; -1: it does not, or has
                    taken the folder from one that holds it */
    bool is_dry;        /* a dry run's: nothing is written, and without --resume it has no folder */
    int64_t saved_step; /* the step of the checkpoint last written or restored; 0: none */
    int64_t best_step;  /* the step of the best one there; 0: none */
} run_folder;

/* Whether a run continues one that its folder holds. */
typedef enum resume_mode {
    RESUME_NEVER, /* the folder must hold none */
    RESUME_MUST,  /* it must hold one */
    RESUME_AUTO,  /* if it holds one: --resume=auto, and workers that were started again */
} resume_mode;

resume_mode run_folder_resume_mode(const rank_context *rank);

/* Whether the run leaves checkpoints: neither with --no-save-model nor with --dry-run. */
bool run_folder_takes_checkpoints(const options *opts);

/* Sets `path` (FILE_PATH_BYTES) to the folder that a run with these settings uses: --run-dir, else
 * runs/<local time>-<model>, a new one, made now; if that cannot be made and the model is not to be
 * saved, a temporary one. STATUS_INVALID if it is too long, STATUS_IO. */
status run_folder_choose(const options *opts, char *path);

/* Before a rank starts: is --run-dir a folder that such a run may begin or continue in? Makes
 * nothing. STATUS_INVALID if it holds a run already that is not to be continued, if --resume finds
 * no folder or none with checkpoints, or if --resume was given without --run-dir. */
status run_folder_check(const options *opts);

/* Chooses the folder, makes it if missing, takes it for this process until the close, and removes
 * the half-written files that killed runs have left there.
 * STATUS_INVALID if another process has it, if it holds a run already that is not to be continued,
 * or if --resume was given without --run-dir; STATUS_IO if checkpoints are to be saved in a folder
 * that cannot be written. A dry run that resumes nothing only looks whether
 * there is such a run, and has no folder: `path` is "". */
status run_folder_open(const rank_context *rank, run_folder *out);

/* The same for another rank that is rank 0 from now on, or again: of a run that goes on at `at`, in
 * the folder whose path is set. */
status run_folder_continue(const rank_context *rank, const position *at, run_folder *folder);

/* Before something is committed there. STATUS_PEER: the round is over, the node's lease has ended,
 * or a later round has the folder. Takes the lock if it was another's, and is free now. */
status run_folder_check_own(run_folder *folder, const rank_context *rank);
void run_folder_close(run_folder *folder); /* accepts one with lock_fd -1 */

/* Restores the newest checkpoint that is whole and fits into network and optimizer, sets *was to
 * it, and makes sure that its model is the one beside it; leaves *was alone if there is none and
 * need be none. *best is the one with the best test, .test.images 0 if there is none.
 * STATUS_INVALID if the run was started with another seed, batch, model or optimizer, if a
 * checkpoint is asked for and there is none, if none fits, and if workers started again find what
 * another launch has left. */
status run_folder_resume(run_folder *folder, rank_context *rank, checkpoint_state *was,
                         checkpoint_state *best);

/* Sets rank->sums. `began`: those of the checkpoint or round that the run goes on from; "": it
 * begins. Rank 0 says so if it adds in another order now. */
void run_folder_continue_sums(rank_context *rank, const char *began);

/* Writes a checkpoint, if the folder is still this rank's. `test`: of these weights; NULL: there
 * was none. If it is the best so far, checkpoints/best becomes this one. With --keep=2 or more, the
 * one before it, or the one that was restored, stays beside it. */
status run_folder_save(run_folder *folder, rank_context *rank, const position *at,
                       const checkpoint_test *test, bool is_best);

/* Writes result.json: `line` and a newline. */
status run_folder_write_result(const run_folder *folder, const char *line);

#endif
