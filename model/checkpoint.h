/* Checkpoints: a run's parameters, optimizer state and place in training, whole or absent.
 *
 *   <run_dir>/checkpoints/00000938/model.safetensors      PyTorch's state_dict
 *                                  optimizer.safetensors  "<state>.<parameter>"
 *                                  state.json             with the hashes of both and its own
 *                         best                            a link (best_checkpoint_link)
 *   <run_dir>/model.safetensors                           a copy of the newest checkpoint's
 *
 * A checkpoint is written to "00000938.tmp", synced and renamed once: that is the commit. The copy
 * follows, and a resume makes it again. Only rank 0 saves. No other process may change the folder
 * meanwhile.
 */
#ifndef MNIST_DDP_MODEL_CHECKPOINT_H
#define MNIST_DDP_MODEL_CHECKPOINT_H

#include "base/file.h"
#include "base/status.h"
#include "model/network.h"
#include "model/optimizer.h"
#include "model/schedule.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CHECKPOINT_HASH_BYTES = 65, CHECKPOINT_LAUNCH_BYTES = 160, CHECKPOINT_KEEP = 2 };
enum { CHECKPOINT_SUMS_BYTES = 192 };

/* A test of a run's weights. */
typedef struct checkpoint_test {
    int64_t images, correct; /* images is 0: none was made */
    double loss;             /* mean over the images */
} checkpoint_test;

/* Where training stands. */
typedef struct position {
    int64_t epoch;         /* completed epochs */
    int64_t step_in_epoch; /* optimizer steps after those */
    int64_t step;          /* optimizer steps of the whole run; names the checkpoint */
    double epoch_loss;     /* the sum over the samples after those epochs, all ranks' */
    int64_t epoch_samples; /* how many those are; both 0 if the file has neither */
    int64_t epoch_first;   /* where in the epoch's order this world size began: others used those
                              before it, and step_in_epoch counts from here; 0 or absent: at the
                              beginning */
    int64_t world_changes; /* how often the run has gone on with another world size; likewise */
    /* Not in the file: */
    double epoch_s;      /* what the epoch took in earlier rounds of this job */
    int64_t epoch_timed; /* how many of its samples those rounds did in that time */
} position;

/* The ranks that have come to a position. */
typedef struct run_world {
    int64_t size;
    int64_t batch_size, accum; /* each rank's */
    double lr;
} run_world;

/* Where a run stands, and what it was started with. Counts are >= 0, the sizes >= 1. All numbers
 * are finite, but for the loss of a run that has diverged. */
typedef struct checkpoint_state {
    model_kind model;
    optimizer_kind optimizer;
    position at;
    run_world world;
    uint64_t seed;
    double gamma, momentum, weight_decay;
    schedule_kind schedule; /* SCHEDULE_STEP if the file has none */
    int64_t total_steps;    /* what the schedule was made for; 0: it depends on none (step) */
    char config_hash[CHECKPOINT_HASH_BYTES]; /* hex digits; "" if there is none */
    int64_t optimizer_steps;                 /* checkpoint_save takes it from the optimizer */
    double loss_scale; /* kernels/step.h; 0 and absent in the file: not scaled */
    int64_t loss_good_steps, loss_skipped_steps, loss_overflow;
    checkpoint_test test;                 /* these weights'; all 0 and absent: not tested */
    uint64_t model_hash, optimizer_hash;  /* its two files'; checkpoint_save sets them */
    bool has_hashes;                      /* the file has the hashes; false: format 1 */
    char launch[CHECKPOINT_LAUNCH_BYTES]; /* the launch that wrote it; "" and absent: not known */
    char data[CHECKPOINT_HASH_BYTES]; /* digest of what it trains on; "" and absent: not known */
    char sums[CHECKPOINT_SUMS_BYTES]; /* the order in which the run began to add; likewise */
    /* Not in the file: */
    int64_t saved_step; /* the last save's, or the resume's; 0: none */
    int64_t keep;       /* checkpoints that stay, with the one that is saved; 0: CHECKPOINT_KEEP */
    int64_t best_step;  /* the best one's, which stays too; 0: none */
} checkpoint_state;

/* How a checkpoint's arenas are read and written whose parts several ranks have: arena 0 is the
 * parameters, 1 and more are the optimizer's states, as optimizer_states counts them. `host`:
 * network_model_count() floats in PyTorch's order. NULL in its place: this process has
 * all of them. */
typedef struct checkpoint_access {
    status (*read)(void *ctx, size_t arena, float *host);
    status (*write)(void *ctx, size_t arena, const float *host);
    void *ctx;
} checkpoint_access;

/* This process's memory of an arena; NULL if the optimizer has fewer states. */
float *checkpoint_arena(network *net, optimizer *opt, size_t arena);

/* Saves, then deletes older checkpoints until state->keep are left, and replaces
 * <run_dir>/model.safetensors. Kept are the newest; if more than one is, that of state->saved_step,
 * which is known to be good, is among them. That of state->best_step stays beside them; if it is
 * the one that is saved, checkpoints/best is made to name it (a failure of that is only logged).
 * Folders with other names than ours stay. An earlier checkpoint of the same step is replaced.
 * Makes the run folder. STATUS_IO (a full disk, say) names the path; the checkpoints that were
 * there stay, and no other appears, unless the failure came after the commit. */
status checkpoint_save(const char *run_dir, const checkpoint_state *state, network *net,
                       optimizer *opt, const checkpoint_access *access);

/* Makes <run_dir>/model.safetensors a copy of the model in the checkpoint folder `path`.
 * checkpoint_save does so after its commit. A resume does it again if they differ: the saving
 * process may have been killed in between. */
status checkpoint_publish(const char *run_dir, const char *path);

/* Sets *out to whether it is one; a file that cannot be read is none. */
status checkpoint_is_published(const char *run_dir, const char *path, bool *out);

/* STATUS_INVALID unless the checkpoint of `step` is there, whole and published. */
status checkpoint_check_published(const char *run_dir, int64_t step);

/* The newest checkpoint of a step below `before` whose files are whole and belong together: its
 * folder into `path`, its state into `state`. Broken ones are logged and skipped. *found = false if
 * there is none at all. STATUS_INVALID if there are only broken ones. */
#define CHECKPOINT_NEWEST INT64_MAX
status checkpoint_find(const char *run_dir, int64_t before, bool *found, checkpoint_state *state,
                       char path[FILE_PATH_BYTES]);

/* Restores parameters, optimizer state and its step count from a checkpoint's folder.
 * STATUS_INVALID if it is broken or of another model or optimizer, naming the first difference;
 * then nothing is changed. */
status checkpoint_load(const char *path, network *net, optimizer *opt,
                       const checkpoint_access *access);

/* Only the parameters, from a model.safetensors (ours or of PyTorch's state_dict, also of a model
 * in DistributedDataParallel, also in half precision), a run folder or a checkpoint's folder. Fails
 * like checkpoint_load, and with `access` if a weight is not finite. */
status checkpoint_load_model(const char *path, network *net, const checkpoint_access *access);

/* Which model such a file or folder holds, by the names of its tensors. */
status checkpoint_model_kind(const char *path, model_kind *out);

/* state.json of a checkpoint. Its last line is the hash of all bytes before it, so that every
 * flipped bit is detected; "model_hash" and "optimizer_hash" are safetensors_hash of the other two
 * files. Format 1 has no hashes. */

/* STATUS_INVALID names the file and the key that is missing or out of range, or says that the file
 * is damaged. */
status checkpoint_state_read(const char *path, checkpoint_state *out);

/* The folder <run_dir>/checkpoints: listing, adding and deleting checkpoints. */

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

/* The best of a run's checkpoints, by the tests that they were saved after. It is one as the others
 * are: <run_dir>/checkpoints/best is a symbolic link to its folder. The link may be missing or old
 * if a run was killed; the checkpoints themselves say which is the best. */

/* Whether `a` is better: more of the images right; of equals the smaller loss. False if `a` was not
 * taken or has a loss that is not finite; any is better than one that was not taken. */
bool best_checkpoint_is_better(const checkpoint_test *a, const checkpoint_test *b);

/* The best of the whole checkpoints up to `step`, of equals the earliest. *found is false, and *out
 * left alone, if none was saved after a test. STATUS_IO if the folder cannot be read. */
status best_checkpoint_find(const char *run_dir, int64_t step, bool *found, checkpoint_state *out);

/* Makes checkpoints/best the checkpoint of this step, in one rename. STATUS_IO: a file system
 * without links, or somebody's folder has that name. */
status best_checkpoint_link(const char *run_dir, int64_t step);

#endif
