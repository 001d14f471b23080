#include "app/train/run_folder.h"

#include "app/common/run_files.h"
#include "app/train/elastic.h"
#include "app/train/run_identity.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json_text.h"
#include "base/log.h"
#include "model/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Whose a run's folder is. A lock says so, for as long as the process lives that holds it. In an
 * elastic job that may be too long: a node is stopped, and the others go on without it. So there is
 * also a file, round.json, with the round whose rank 0 has the folder:
 *
 *   {"run_id":"123","round":4}
 *
 * Rank 0 of a later round of the same job takes the folder also from one that holds the lock. That
 * one looks at the file, and at its node's lease, before it commits anything there. */

enum {
    LOCK_MS = 2000, /* for a rank 0 of the round before that lives, and closes the folder */
    OWNER_BYTES = 4096,
};

/* The round of this job that has the folder; 0: none has, as far as can be read. */
static int64_t round_of(const rank_context *rank, const char *path)
{
    char file[FILE_PATH_BYTES];
    json_t *owner = NULL;
    if (file_join(path, RUN_FILE_ROUND, file) != STATUS_OK || !file_exists(file) ||
        json_text_read(file, OWNER_BYTES, &owner) != STATUS_OK)
        return 0;
    const char *run_id = json_string_value(json_object_get(owner, "run_id"));
    bool ours = run_id != NULL && strcmp(run_id, rank->place.run_id) == 0;
    int64_t round = ours ? json_integer_value(json_object_get(owner, "round")) : 0;
    json_decref(owner);
    return round;
}

static status write_round(const rank_context *rank, const char *path)
{
    char file[FILE_PATH_BYTES];
    TRY(file_join(path, RUN_FILE_ROUND, file));
    json_t *owner = json_pack("{s:s, s:I}", "run_id", rank->place.run_id, "round",
                              (json_int_t)rank->place.round);
    if (owner == NULL)
        return FAIL(STATUS_NO_MEMORY, "the round of %s", path);
    status st = json_text_save(owner, JSON_COMPACT, file);
    json_decref(owner);
    return st;
}

/* Another process has the lock. */
static status take_over(const rank_context *rank, const char *path)
{
    int64_t own = rank->place.round, round = own > 1 ? round_of(rank, path) : 0;
    if (round > own)
        return FAIL(STATUS_PEER, "round %" PRId64 " has taken %s", round, path);
    if (round == 0 || round == own)
        return status_context(STATUS_INVALID, "another run writes to this folder; give another "
                                              "--run-dir");
    LOG_W("%s: taken from rank 0 of round %" PRId64 ", which has not closed it: %s", path, round,
          status_text());
    return STATUS_OK;
}

/* Whether the folder can be this rank's. *lock_fd: to be closed by the caller; -1: the lock is
 * still another process's. STATUS_INVALID: another run has it; STATUS_PEER: a later round. */
static status folder_owner_take(const rank_context *rank, const char *path, int *lock_fd)
{
    int64_t deadline_ns = clock_deadline_ns(rank->place.round > 1 ? LOCK_MS : 0);
    status st;
    while ((st = file_lock_folder(path, lock_fd)) == STATUS_INVALID && !clock_passed(deadline_ns))
        clock_sleep_ms(20);
    if (st == STATUS_INVALID)
        st = take_over(rank, path);
    return st;
}

/* It is, and goes on there. If the file cannot be written there is a warning. */
static void folder_owner_note(const rank_context *rank, const char *path)
{
    if (rank->place.round > 0 && write_round(rank, path) != STATUS_OK)
        LOG_W("not written whose the folder is: %s", status_text());
}

/* Before something is committed there. STATUS_PEER: the round is over, the node's lease has ended,
 * or a later round has the folder. Takes the lock if it was another's, and is free now. */
static status folder_owner_check(const rank_context *rank, const char *path, int *lock_fd)
{
    TRY(elastic_check(rank->link));
    if (rank->place.round == 0 || path[0] == '\0')
        return STATUS_OK;
    int64_t round = round_of(rank, path);
    if (round > rank->place.round)
        return FAIL(STATUS_PEER, "round %" PRId64 " has taken %s", round, path);
    if (*lock_fd < 0)
        (void)file_lock_folder(path, lock_fd);
    return STATUS_OK;
}

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

status run_folder_check_own(run_folder *folder, const rank_context *rank)
{
    return folder_owner_check(rank, folder->path, &folder->lock_fd);
}

status run_folder_write_config(const run_folder *folder, const run_start *start)
{
    return folder->is_dry ? STATUS_OK : run_config_write(folder->path, start);
}

status run_folder_write_result(const run_folder *folder, const char *line)
{
    if (folder->is_dry)
        return STATUS_OK;
    char path[FILE_PATH_BYTES];
    const file_part parts[] = {{line, strlen(line)}, {"\n", 1}};
    TRY(file_join(folder->path, RUN_FILE_RESULT, path));
    return file_replace(path, parts, 2);
}

status run_folder_check_saved(const run_folder *folder, const position *at)
{
    return checkpoint_check_published(folder->path, at->step);
}
