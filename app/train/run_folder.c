#include "app/train/run_folder.h"

#include "app/common/run_files.h"
#include "app/common/runs_folder.h"
#include "app/train/folder_owner.h"
#include "base/file_draft.h"
#include "base/fnv1a.h"
#include "base/log.h"
#include "model/best_checkpoint.h"
#include "model/checkpoint.h"
#include "model/checkpoint_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
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
        return FAIL(STATUS_INVALID, "--resume needs --run-dir: the folder of the run to continue");
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

/* The launch that this worker belongs to, the same however often it starts its workers again; ""
 * if another launcher did it. */
static void name_launch(const rank_context *rank, char out[CHECKPOINT_LAUNCH_BYTES])
{
    const char *launched = getenv("MNIST_DDP_LAUNCHED");
    if (rank->place.round > 0) /* of several launchers, which come and go */
        snprintf(out, CHECKPOINT_LAUNCH_BYTES, "%s/elastic", rank->place.run_id);
    else if (launched == NULL)
        out[0] = '\0';
    else
        snprintf(out, CHECKPOINT_LAUNCH_BYTES, "%s/%.24s", rank->place.run_id, launched);
    for (char *c = out; *c != '\0'; c++) /* it is to be text in a JSON file */
        *c = *c > ' ' && *c <= '~' ? *c : '?';
}

/* What a schedule has beside its kind and length. */
static void hash_schedule(const schedule_options *o, char *out, size_t size_bytes)
{
    if (o->kind == SCHEDULE_ONECYCLE)
        snprintf(out, size_bytes, " pct-start %.17g", o->pct_start);
    else if (o->warmup_steps > 0)
        snprintf(out, size_bytes, " warmup %" PRId64 " %.17g", o->warmup_steps, o->warmup_factor);
}

/* What changes the gradients of a step. */
static void hash_gradients(const options *o, const rank_settings *s, char *out, size_t size_bytes)
{
    if (s->clip_grad_norm > 0)
        snprintf(out, size_bytes, " clip-grad-norm %.17g", s->clip_grad_norm);
    if (o->label_smoothing > 0)
        snprintf(out + strlen(out), size_bytes - strlen(out), " label-smoothing %.17g",
                 o->label_smoothing);
    if (s->augment.shift > 0 || s->augment.rotate > 0 || s->augment.scale > 0)
        snprintf(out + strlen(out), size_bytes - strlen(out), " augment %.9g,%.9g,%.9g",
                 s->augment.shift, s->augment.rotate, s->augment.scale);
}

/* Settings that have no field of their own in a checkpoint. */
static void hash_other_settings(const rank_context *rank, char out[CHECKPOINT_HASH_BYTES])
{
    char text[512];
    const adam_betas *betas = &rank->settings.betas;
    snprintf(text, sizeof text, "nesterov %d shuffle %d drop-last %d training images %u %s",
             rank->opts->nesterov, rank->opts->shuffle, rank->opts->drop_last,
             rank->train_set.count, precision_name(rank->dev->precision));
    bool usual = betas->first == 0.9 && betas->second == 0.999;
    if (optimizer_kind_is_adam(rank->settings.optimizer.kind) && !usual)
        snprintf(text + strlen(text), sizeof text - strlen(text), " adam-betas %.17g,%.17g",
                 betas->first, betas->second);
    if (strcmp(rank->opts->dataset, "mnist") != 0)
        snprintf(text + strlen(text), sizeof text - strlen(text), " dataset %s",
                 rank->opts->dataset);
    if (rank->opts->scale_lr)
        snprintf(text + strlen(text), sizeof text - strlen(text), " scale-lr");
    if (rank->val_set.count > 0)
        snprintf(text + strlen(text), sizeof text - strlen(text), " validation images %u",
                 rank->val_set.count);
    hash_schedule(&rank->schedule.options, text + strlen(text), sizeof text - strlen(text));
    hash_gradients(rank->opts, &rank->settings, text + strlen(text), sizeof text - strlen(text));
    int devices = rank->place.world_size * rank->settings.replicas;
    const strategy_facts *how = strategy_of(rank->opts);
    if (how->is_central && devices > 1)
        snprintf(text + strlen(text), sizeof text - strlen(text), " %s %d", how->name,
                 rank->settings.replicas);
    snprintf(out, CHECKPOINT_HASH_BYTES, "%016" PRIx64, fnv1a(FNV1A_START, text, strlen(text)));
}

/* What a resumed run must share with the one that it continues. */
static checkpoint_state state_of(rank_context *rank, const position *at)
{
    const schedule_options *plan = &rank->schedule.options;
    checkpoint_state state = {.model = rank->settings.model,
                              .optimizer = rank->settings.optimizer.kind,
                              .epoch = at->epoch,
                              .step_in_epoch = at->step_in_epoch,
                              .step = at->step,
                              .epoch_loss = at->epoch_loss,
                              .epoch_samples = at->epoch_samples,
                              .epoch_first = at->epoch_first,
                              .world_changes = at->world_changes,
                              .seed = (uint64_t)rank->opts->seed,
                              .world_size = rank->place.world_size,
                              .batch_size = rank->settings.batch_size,
                              .accum = rank->opts->accum,
                              .lr = rank->settings.schedule.lr,
                              .gamma = rank->opts->gamma,
                              .momentum = rank->opts->momentum,
                              .weight_decay = rank->settings.weight_decay,
                              .schedule = plan->kind};
    if (schedule_kind_has_end(plan->kind))
        state.total_steps = plan->total_steps;
    hash_other_settings(rank, state.config_hash);
    name_launch(rank, state.launch);
    return state;
}

static status differs(const char *path, const char *what, double was, double is)
{
    return FAIL(STATUS_INVALID,
                "cannot resume %s: it was started with %s %.10g, this command says %.10g", path,
                what, was, is);
}

/* Another number of ranks may keep the batch of all of them in place of that of each. */
static bool keeps_global_batch(const checkpoint_state *was, const checkpoint_state *is)
{
    return was->world_size != is->world_size &&
           was->world_size * was->batch_size == is->world_size * is->batch_size;
}

/* A round of an elastic job goes on with the batch and the schedule of its own number of ranks. */
static void accept_elastic(const checkpoint_state *was, checkpoint_state *is)
{
    if (was->world_size == is->world_size)
        return;
    is->batch_size = was->batch_size;
    is->total_steps = was->total_steps;
}

/* Without it, what differs cannot be told by name. */
static bool has_config(const char *path)
{
    char config[FILE_PATH_BYTES];
    return file_join(path, RUN_FILE_CONFIG, config) == STATUS_OK && file_exists(config);
}

static status check_same(const char *path, const checkpoint_state *was, const checkpoint_state *is)
{
    if (was->model != is->model || was->optimizer != is->optimizer)
        return FAIL(STATUS_INVALID,
                    "cannot resume %s: it trains %s with %s, this command says %s with %s", path,
                    model_kind_name(was->model), optimizer_kind_name(was->optimizer),
                    model_kind_name(is->model), optimizer_kind_name(is->optimizer));
    if (was->schedule != is->schedule)
        return FAIL(STATUS_INVALID,
                    "cannot resume %s: it was started with --schedule=%s, this command says %s",
                    path, schedule_kind_name(was->schedule), schedule_kind_name(is->schedule));
    if (was->world_size != is->world_size && was->total_steps != is->total_steps)
        return FAIL(STATUS_INVALID,
                    "cannot resume %s: world size %" PRId64 " -> %" PRId64
                    ": the steps of --schedule=%s are those of the former",
                    path, was->world_size, is->world_size, schedule_kind_name(was->schedule));
    const struct {
        const char *what;
        double was, is;
    } pairs[] = {
        {"--seed", (double)was->seed, (double)is->seed},
        {"--batch-size", (double)was->batch_size,
         keeps_global_batch(was, is) ? (double)was->batch_size : (double)is->batch_size},
        {"--accum", (double)was->accum, (double)is->accum},
        {"--lr", was->lr, is->lr},
        {"--gamma", was->gamma, is->gamma},
        {"--momentum", was->momentum, is->momentum},
        {"--weight-decay", was->weight_decay, is->weight_decay},
        {"a schedule whose steps (by --epochs) are", (double)was->total_steps,
         (double)is->total_steps},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        if (pairs[i].was < pairs[i].is || pairs[i].was > pairs[i].is)
            return differs(path, pairs[i].what, pairs[i].was, pairs[i].is);
    if (strcmp(was->config_hash, is->config_hash) != 0)
        return FAIL(
            STATUS_INVALID,
            "cannot resume %s: %s--mode, --replicas, --nesterov, --adam-betas, --clip-grad-norm, "
            "--label-smoothing, --augment, --scale-lr, --pct-start, --warmup-steps, "
            "--warmup-factor, --shuffle, --drop-last, --dataset, --amp, --tf32 or the number of "
            "training images (--limit, --val-split) was another",
            path, has_config(path) ? "" : "it has no config.json, so which is not known: ");
    return STATUS_OK;
}

/* Workers that are started again continue what their own launch has written; what was there before
 * it only if --resume says so. */
static status check_launch(const char *path, const rank_context *rank, const checkpoint_state *was)
{
    char ours[CHECKPOINT_LAUNCH_BYTES];
    name_launch(rank, ours);
    bool other = ours[0] != '\0' && strcmp(was->launch, ours) != 0;
    return other && rank->opts->resume == NULL ? refuse_existing_run(path) : STATUS_OK;
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
        checkpoint_state is = state_of(rank, &(position){0});
        is.lr = rank_settings_lr(rank->opts, rank->settings.lr, was->world_size);
        if (rank->place.round > 0)
            accept_elastic(was, &is);
        TRY(check_launch(path, rank, was));
        TRY(check_same(path, was, &is));
        st = check_place(checkpoint, rank, was);
        if (st == STATUS_OK)
            st = checkpoint_load(checkpoint, rank->net, rank->opt);
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
    *at = (position){was.epoch,         was.step_in_epoch, was.step,         was.epoch_loss,
                     was.epoch_samples, was.epoch_first,   was.world_changes};
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
    checkpoint_state state = state_of(rank, at);
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
    status st = checkpoint_save(folder->path, &state, rank->net, rank->opt);
    if (st == STATUS_OK || is_committed(folder, at->step)) {
        folder->saved_step = at->step;
        folder->best_step = state.best_step;
    }
    return st;
}
