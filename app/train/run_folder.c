#include "app/train/run_folder.h"

#include "app/common/run_files.h"
#include "app/train/folder_owner.h"
#include "app/train/run_identity.h"
#include "base/file.h"
#include "base/log.h"
#include "model/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static resume_mode given_mode(const options *opts)
{
    if (opts->resume == NULL)
        return RESUME_NEVER;
    return strcmp(opts->resume, "auto") == 0 ? RESUME_AUTO : RESUME_MUST;
}

resume_mode run_folder_resume_mode(const rank_context *rank)
{
    if ((rank->place.restart_count > 0 || rank->place.round > 1) && !rank->opts->dry_run)
        return RESUME_AUTO;
    return given_mode(rank->opts);
}

bool run_folder_takes_checkpoints(const options *opts)
{
    return opts->save_model && !opts->dry_run;
}

status run_folder_choose(const options *opts, char *path)
{
    if (opts->run_dir != NULL) {
        if (strlen(opts->run_dir) + 64 >= FILE_PATH_BYTES)
            return FAIL(STATUS_INVALID, "--run-dir is too long");
        strcpy(path, opts->run_dir);
        return STATUS_OK;
    }
    if (runs_folder_make(opts->model, path) == STATUS_OK)
        return STATUS_OK;
    if (opts->save_model) {
        status_append("; name a folder that can be written with --run-dir");
        return STATUS_IO;
    }
    /* A run that is to save nothing: its figures do not need a folder that lasts. */
    LOG_W("%s: the figures of this run go to a temporary folder", status_text());
    return file_make_temporary_folder(NULL, "mnist_ddp_run", path);
}

static status refuse_existing_run(const char *path)
{
    return FAIL(STATUS_INVALID,
                "%s holds a run already: give --resume to continue it, or another --run-dir", path);
}

static status refuse_no_checkpoint(const char *path)
{
    return FAIL(STATUS_INVALID,
                file_exists(path) ? "%s has no checkpoint to resume from"
                                  : "%s: no such folder, so no checkpoint to resume from; "
                                    "--resume=auto begins a run if there is none",
                path);
}

/* Removes what runs that were killed while they wrote a file have left beside it. */
static status clean_drafts(const char *path)
{
    static const char *const names[] = {CHECKPOINT_MODEL, RUN_FILE_CONFIG, RUN_FILE_RESULT,
                                        RUN_FILE_ROUND,   RUN_FILE_EVAL,   RUN_FILE_REPORT};
    char file[FILE_PATH_BYTES];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        TRY(file_join(path, names[i], file));
        file_draft_clean(file);
    }
    return STATUS_OK;
}

/* A run that begins finds none in its folder; one that must go on finds one. */
static status check_holds(const char *path, resume_mode mode)
{
    char checkpoints[FILE_PATH_BYTES];
    TRY(file_join(path, CHECKPOINT_FOLDER, checkpoints));
    if (file_exists(checkpoints))
        return mode == RESUME_NEVER ? refuse_existing_run(path) : STATUS_OK;
    return mode == RESUME_MUST ? refuse_no_checkpoint(path) : STATUS_OK;
}

status run_folder_check(const options *opts)
{
    if (opts->resume != NULL && opts->run_dir == NULL)
        return FAIL(STATUS_INVALID, given_mode(opts) == RESUME_MUST
                                        ? "no folder in ./runs has a checkpoint to resume from: "
                                          "name the run, as in mnist_ddp resume RUN"
                                        : "--resume=auto needs --run-dir: the folder of the run");
    return opts->run_dir != NULL ? check_holds(opts->run_dir, given_mode(opts)) : STATUS_OK;
}

/* What cannot be written is known before the first step. */
static status check_writable(const char *path)
{
    char checkpoints[FILE_PATH_BYTES];
    TRY(file_join(path, CHECKPOINT_FOLDER, checkpoints));
    const char *const folders[] = {path, checkpoints};
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++)
        if (faccessat(AT_FDCWD, folders[i], W_OK | X_OK, AT_EACCESS) != 0 &&
            (errno == EACCES || errno == EROFS))
            return FAIL(STATUS_IO,
                        "%s: %s; name a folder that can be written with --run-dir, or give "
                        "--no-save-model",
                        folders[i], strerror(errno));
    return STATUS_OK;
}

static status take_folder(const rank_context *rank, resume_mode mode, run_folder *out)
{
    const options *o = rank->opts;
    TRY(file_make_folders(out->path));
    TRY(folder_owner_take(rank, out->path, &out->lock_fd));
    if (mode == RESUME_NEVER)
        TRY(check_holds(out->path, mode));
    if (run_folder_takes_checkpoints(o))
        TRY(check_writable(out->path));
    TRY(clean_drafts(out->path));
    folder_owner_note(rank, out->path);
    return STATUS_OK;
}

status run_folder_open(const rank_context *rank, run_folder *out)
{
    const options *o = rank->opts;
    resume_mode mode = run_folder_resume_mode(rank);
    out->is_dry = o->dry_run;
    if (mode == RESUME_MUST || o->dry_run || o->run_dir == NULL)
        TRY(run_folder_check(o));
    if (o->dry_run && o->resume == NULL)
        return STATUS_OK;
    TRY(run_folder_choose(o, out->path));
    return take_folder(rank, mode, out);
}

void run_folder_close(run_folder *folder)
{
    if (folder->lock_fd >= 0)
        close(folder->lock_fd);
    folder->lock_fd = -1;
}

/* The model beside the checkpoints may be older than they are, if the run was killed between the
 * two. A failure is told; the next checkpoint mends it, and run_folder_check_saved looks. */
static void publish_again(const char *path, const char *checkpoint)
{
    bool published = false;
    status st = checkpoint_is_published(path, checkpoint, &published);
    if (st == STATUS_OK && published)
        return;
    LOG_W("%s/model.safetensors is not the model of %s: it is written again", path, checkpoint);
    if (checkpoint_publish(path, checkpoint) != STATUS_OK)
        LOG_E("model not written: %s", status_text());
}

/* The run's own numbers: so many epochs have so many steps, of one world size. An epoch of
 * --dry-run has one. */
static status check_place(const char *path, const rank_context *rank, const checkpoint_state *was)
{
    int64_t steps = loader_steps(rank->loader);
    if (was->epoch_first > (int64_t)rank->train_set.count)
        return FAIL(STATUS_INVALID, "%s: \"epoch_first\" is %" PRId64 ", of %u images", path,
                    was->epoch_first, rank->train_set.count);
    if (was->world_changes > 0 || was->world_size != rank->place.world_size)
        return STATUS_OK;
    int64_t missing = was->epoch * steps + was->step_in_epoch - was->step;
    bool dry = steps > 1 && missing % (steps - 1) == 0 && missing / (steps - 1) <= was->epoch;
    if (was->step_in_epoch <= steps && (missing == 0 || (missing > 0 && dry)))
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "%s: step %" PRId64 " is not step %" PRId64 " after %" PRId64 " epochs of %" PRId64,
                path, was->step, was->step_in_epoch, was->epoch, steps);
}

/* Loads the newest checkpoint that is whole and fits; *found = false if there is none at all. */
static status load_newest(const char *path, rank_context *rank, bool *found, checkpoint_state *was,
                          char *checkpoint)
{
    status_kept why;
    status st = STATUS_OK;
    for (int64_t before = CHECKPOINT_NEWEST;; before = was->step) {
        bool another = false;
        TRY(checkpoint_find(path, before, &another, was, checkpoint));
        *found = another || before != CHECKPOINT_NEWEST;
        if (!another)
            break;
        /* What was there before the launch is continued only if --resume says so. */
        if (rank->opts->resume == NULL && !run_identity_is_launch(rank, was))
            return refuse_existing_run(path);
        TRY(run_identity_check(rank, path, was));
        st = check_place(checkpoint, rank, was);
        if (st == STATUS_OK)
            st = checkpoint_load(checkpoint, rank->net, strategy_optimizer(rank->strategy));
        if (st != STATUS_INVALID)
            return st;
        status_keep(&why);
        LOG_W("passing over a checkpoint that does not fit: %s", status_text());
    }
    if (st == STATUS_OK)
        return STATUS_OK;
    status_restore(&why);
    return status_context(st,
                          "%s has no checkpoint that fits (delete them to start anew), the "
                          "oldest so",
                          path);
}

/* Another number of ranks goes on. */
static status redistribute(const rank_context *rank, const checkpoint_state *was, position *at,
                           world_change *change)
{
    const former_world former = {was->world_size, was->batch_size, was->accum, was->lr};
    TRY(world_change_make(rank, &former, at, change));
    world_change_say(rank, change, at);
    return STATUS_OK;
}

/* Of the checkpoints up to the one that is restored: those after it belong to steps that are taken
 * again. The link is made again if a kill has left an older one. */
static status find_best(run_folder *folder, const rank_context *rank, checkpoint_state *best)
{
    bool found = false;
    *best = (checkpoint_state){0};
    TRY(best_checkpoint_find(folder->path, folder->saved_step, &found, best));
    folder->best_step = best->step;
    if (found && run_folder_takes_checkpoints(rank->opts) &&
        best_checkpoint_link(folder->path, best->step) != STATUS_OK)
        LOG_W("the best checkpoint has no name: %s", status_text());
    return STATUS_OK;
}

status run_folder_continue(const rank_context *rank, const position *at, run_folder *folder)
{
    checkpoint_state was, best;
    char checkpoint[FILE_PATH_BYTES];
    bool found = false;
    folder->is_dry = rank->opts->dry_run;
    if (folder->is_dry)
        return STATUS_OK;
    TRY(take_folder(rank, RESUME_AUTO, folder));
    if (!run_folder_takes_checkpoints(rank->opts))
        return STATUS_OK;
    TRY(checkpoint_find(folder->path, at->step + 1, &found, &was, checkpoint));
    folder->saved_step = found ? was.step : 0;
    return find_best(folder, rank, &best);
}

status run_folder_resume(run_folder *folder, rank_context *rank, position *at,
                         checkpoint_state *best, world_change *change)
{
    checkpoint_state was;
    char checkpoint[FILE_PATH_BYTES];
    bool found = false;
    TRY(load_newest(folder->path, rank, &found, &was, checkpoint));
    if (!found && run_folder_resume_mode(rank) == RESUME_AUTO)
        return STATUS_OK;
    if (!found)
        return refuse_no_checkpoint(folder->path);
    loss_scaling scaling = {(float)was.loss_scale, (int32_t)was.loss_good_steps,
                            was.loss_skipped_steps, (uint32_t)was.loss_overflow};
    TRY(rank_context_set_loss_scaling(rank, &scaling));
    if (run_folder_takes_checkpoints(rank->opts))
        publish_again(folder->path, checkpoint);
    *at = (position){was.epoch,
                     was.step_in_epoch,
                     was.step,
                     was.epoch_loss,
                     was.epoch_samples,
                     was.epoch_first,
                     was.world_changes,
                     0,
                     0};
    run_identity_continue_sums(rank, was.sums);
    folder->saved_step = was.step;
    TRY(find_best(folder, rank, best));
    return was.world_size != rank->place.world_size ? redistribute(rank, &was, at, change)
                                                    : STATUS_OK;
}

/* A save fails after its commit if there was no room for the copy of the model. */
static bool is_committed(const run_folder *folder, int64_t step)
{
    char checkpoints[FILE_PATH_BYTES], path[FILE_PATH_BYTES];
    return file_join(folder->path, CHECKPOINT_FOLDER, checkpoints) == STATUS_OK &&
           checkpoint_folder_path(checkpoints, step, path) == STATUS_OK && file_exists(path);
}

status run_folder_save(run_folder *folder, rank_context *rank, const position *at,
                       const checkpoint_test *test, bool is_best)
{
    checkpoint_state state = run_identity_at(rank, at);
    TRY(run_folder_check_own(folder, rank));
    if (test != NULL)
        state.test = *test;
    state.best_step = is_best ? at->step : folder->best_step;
    state.saved_step = folder->saved_step;
    state.keep = rank->opts->keep;
    loss_scaling scaling;
    TRY(rank_context_loss_scaling(rank, &scaling));
    state.loss_scale = (double)scaling.scale;
    state.loss_good_steps = scaling.good_steps;
    state.loss_skipped_steps = scaling.skipped;
    state.loss_overflow = scaling.overflow;
    status st =
        checkpoint_save(folder->path, &state, rank->net, strategy_optimizer(rank->strategy));
    if (st == STATUS_OK || is_committed(folder, at->step)) {
        folder->saved_step = at->step;
        folder->best_step = state.best_step;
    }
    return st;
}
