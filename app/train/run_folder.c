#include "app/train/run_folder.h"

#include "app/common/run_files.h"
#include "app/options/options_table.h"
#include "app/train/agent_link.h"
#include "app/train/agreement.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/file.h"
#include "base/json_text.h"
#include "base/log.h"
#include "model/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Which run a checkpoint is of: what a run that resumes must share with the one that it continues,
 * and what each checkpoint says of that. */

enum { KEPT_BYTES = 640, HASHED_BYTES = 512 };

/* The launch that this worker belongs to, the same however often it starts its workers again; ""
 * if another launcher did it. */
static void name_launch(const rank_context *rank, char out[CHECKPOINT_LAUNCH_BYTES])
{
    const char *launched = getenv("MNIST_DDP_LAUNCHED");
    if (rank->place.round > 0) /* an elastic job has several launchers */
        snprintf(out, CHECKPOINT_LAUNCH_BYTES, "%s/elastic", rank->place.run_id);
    else if (launched == NULL)
        out[0] = '\0';
    else
        snprintf(out, CHECKPOINT_LAUNCH_BYTES, "%s/%.24s", rank->place.run_id, launched);
    for (char *c = out; *c != '\0'; c++) /* it is to be text in a JSON file */
        *c = *c > ' ' && *c <= '~' ? *c : '?';
}

/* Adds to what is hashed. The order and the form are those of the first checkpoints, which would
 * not be resumed with another; what was not there then is added only if it is not the default. */
static __attribute__((format(printf, 2, 3))) void add(char text[HASHED_BYTES], const char *format,
                                                      ...)
{
    size_t used = strlen(text);
    va_list values;
    va_start(values, format);
    vsnprintf(text + used, HASHED_BYTES - used, format, values);
    va_end(values);
}

static double number_of(const option_row *row, const options *o)
{
    const void *field = (const char *)o + row->offset;
    return row->kind == OPTION_REAL      ? *(const double *)field
           : row->kind == OPTION_INTEGER ? (double)*(const int64_t *)field
                                         : *(const bool *)field;
}

/* Those whose row alone says that they are a run's. */
static void add_rows(char text[HASHED_BYTES], const options *o)
{
    for (size_t i = 0; i < options_table_count; i++) {
        const option_row *row = &options_table[i];
        double usual = row->initial != NULL         ? strtod(row->initial, NULL)
                       : row->kind == OPTION_SWITCH ? 0
                                                    : -1;
        double value = row->class == RUN ? number_of(row, o) : usual;
        if (value < usual || value > usual)
            add(text, " %s %.17g", row->name, value);
    }
}

/* Settings that have no field of their own in a checkpoint. */
static void hash_other_settings(const rank_context *rank, char out[CHECKPOINT_HASH_BYTES])
{
    char text[HASHED_BYTES] = "";
    const options *o = rank->opts;
    const rank_settings *s = &rank->settings;
    const schedule_options *plan = &rank->schedule.options;
    add(text, "nesterov %d shuffle %d drop-last %d training images %u %s", o->nesterov, o->shuffle,
        o->drop_last, rank->train_set.count, precision_name(rank->dev->precision));
    bool usual = s->betas.first == 0.9 && s->betas.second == 0.999;
    if (optimizer_kind_is_adam(s->optimizer.kind) && !usual)
        add(text, " adam-betas %.17g,%.17g", s->betas.first, s->betas.second);
    if (strcmp(o->dataset, "mnist") != 0)
        add(text, " dataset %s", o->dataset);
    if (o->scale_lr)
        add(text, " scale-lr");
    if (rank->val_set.count > 0)
        add(text, " validation images %u", rank->val_set.count);
    if (o->dense)
        add(text, " dense");
    if (plan->kind == SCHEDULE_ONECYCLE)
        add(text, " pct-start %.17g", plan->pct_start);
    else if (plan->warmup_steps > 0)
        add(text, " warmup %" PRId64 " %.17g", plan->warmup_steps, plan->warmup_factor);
    add_rows(text, o);
    if (s->augment.shift > 0 || s->augment.rotate > 0 || s->augment.scale > 0)
        add(text, " augment %.9g,%.9g,%.9g", s->augment.shift, s->augment.rotate, s->augment.scale);
    const strategy_facts *how = strategy_of(o);
    if (how->is_central && rank->place.world_size * s->replicas > 1)
        add(text, " %s%s %d", how->name, how->has_server ? " async" : "", s->replicas);
    snprintf(out, CHECKPOINT_HASH_BYTES, "%016" PRIx64, fnv1a(FNV1A_START, text, strlen(text)));
}

/* shm and gloo add in rank order, and so does hierarchical on one host; the others in an order of
 * the hosts, or of a library. */
void run_folder_continue_sums(rank_context *rank, const char *began)
{
    static const char LATER[] = ", then others";
    const char *backend = process_group_backend(rank->group);
    uint64_t hosts = process_group_hosts(rank->group);
    bool by_hosts = hosts != 0 && strcmp(backend, "hierarchical") == 0;
    char now[CHECKPOINT_SUMS_BYTES - sizeof LATER];
    int n = snprintf(now, sizeof now, "%d x %.80s", rank->place.world_size, rank->device);
    if (by_hosts || strcmp(backend, "mpi") == 0 || strcmp(backend, "nccl") == 0)
        n += snprintf(now + n, sizeof now - (size_t)n, " by %s on hosts %08" PRIx32, backend,
                      (uint32_t)hosts);
    if (strcmp(rank->opts->comm_hook, "none") != 0)
        snprintf(now + n, sizeof now - (size_t)n, " with --comm-hook=%s", rank->opts->comm_hook);
    if (strategy_of(rank->opts)->cuts_model)
        snprintf(now + n, sizeof now - (size_t)n, " with --mode=%s", rank->opts->mode);
    bool differ = began[0] != '\0' && strcmp(began, now) != 0;
    if (differ && rank->place.rank == 0)
        LOG_I("the run began with sums over %s, and goes on with sums over %s: its bits are not "
              "those of a run without that change",
              began, now);
    snprintf(rank->sums, sizeof rank->sums, "%.*s%s", (int)sizeof now, differ ? began : now,
             differ && strstr(began, LATER) == NULL ? LATER : "");
}

/* What a checkpoint of this run at this position says; without tests, the best one and loss
 * scaling. */
static checkpoint_state state_at(rank_context *rank, const position *at)
{
    const schedule_options *plan = &rank->schedule.options;
    checkpoint_state state = {.model = rank->settings.model,
                              .optimizer = rank->settings.optimizer.kind,
                              .at = *at,
                              .world = rank_context_world(rank),
                              .seed = (uint64_t)rank->opts->seed,
                              .gamma = rank->opts->gamma,
                              .momentum = rank->opts->momentum,
                              .weight_decay = rank->settings.weight_decay,
                              .schedule = plan->kind};
    if (schedule_kind_has_end(plan->kind))
        state.total_steps = plan->total_steps;
    hash_other_settings(rank, state.config_hash);
    name_launch(rank, state.launch);
    memcpy(state.sums, rank->sums, sizeof state.sums);
    snprintf(state.data, sizeof state.data, "%016" PRIx64, rank->data_digest);
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
    return was->world.size != is->world.size &&
           was->world.size * was->world.batch_size == is->world.size * is->world.batch_size;
}

/* A round of an elastic job goes on with the batch and the schedule of its own number of ranks. */
static void accept_elastic(const checkpoint_state *was, checkpoint_state *is)
{
    if (was->world.size == is->world.size)
        return;
    is->world.batch_size = was->world.batch_size;
    is->total_steps = was->total_steps;
}

/* Without it, what differs cannot be named. */
static bool has_config(const char *path)
{
    char config[FILE_PATH_BYTES];
    return file_join(path, RUN_FILE_CONFIG, config) == STATUS_OK && file_exists(config);
}

static status check_data(const rank_context *rank, const char *path, const char *was)
{
    char here[AGREEMENT_DATA_BYTES];
    agreement_name_data(rank, here);
    if (was[0] == '\0')
        LOG_W("%s: its checkpoint does not say on which data it was trained: they may be others",
              path);
    else if (strncmp(here + strlen("data "), was, strlen(was)) != 0)
        return FAIL(STATUS_INVALID,
                    "cannot resume %s: it was trained on data %s (config.json has the folder), "
                    "here are %s: give its --data-dir, or begin another run: --init %s",
                    path, was, here, path);
    return STATUS_OK;
}

/* "--model, --lr, ...": what a run has from its first step to its last. */
static void list_kept(char out[KEPT_BYTES])
{
    size_t used = 0;
    for (size_t i = 0; i < options_table_count && used < KEPT_BYTES; i++)
        if (setting_why(options_table[i].class) != NULL && options_table[i].class != JOB_LENGTH)
            used += (size_t)snprintf(out + used, KEPT_BYTES - used, "%s--%s", used > 0 ? ", " : "",
                                     options_table[i].name);
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
    if (was->world.size != is->world.size && was->total_steps != is->total_steps)
        return FAIL(STATUS_INVALID,
                    "cannot resume %s: world size %" PRId64 " -> %" PRId64
                    ": the steps of --schedule=%s are those of the former",
                    path, was->world.size, is->world.size, schedule_kind_name(was->schedule));
    const struct {
        const char *what;
        double was, is;
    } pairs[] = {
        {"--seed", (double)was->seed, (double)is->seed},
        {"--batch-size", (double)was->world.batch_size,
         keeps_global_batch(was, is) ? (double)was->world.batch_size
                                     : (double)is->world.batch_size},
        {"--accum", (double)was->world.accum, (double)is->world.accum},
        {"--lr", was->world.lr, is->world.lr},
        {"--gamma", was->gamma, is->gamma},
        {"--momentum", was->momentum, is->momentum},
        {"--weight-decay", was->weight_decay, is->weight_decay},
        {"a schedule whose steps (by --epochs) are", (double)was->total_steps,
         (double)is->total_steps},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        if (pairs[i].was < pairs[i].is || pairs[i].was > pairs[i].is)
            return differs(path, pairs[i].what, pairs[i].was, pairs[i].is);
    char kept[KEPT_BYTES];
    list_kept(kept);
    if (strcmp(was->config_hash, is->config_hash) != 0)
        return FAIL(STATUS_INVALID, "cannot resume %s: %sone of %s was another", path,
                    has_config(path) ? "" : "it has no config.json, so which is not known: ", kept);
    return STATUS_OK;
}

/* Whether this run may continue the one in folder `path` that has written `was`. STATUS_INVALID,
 * with the first setting that differs, or the data; a warning if those are not known. */
static status check_identity(rank_context *rank, const char *path, const checkpoint_state *was)
{
    checkpoint_state is = state_at(rank, &(position){0});
    is.world.lr = rank_settings_lr(rank->opts, rank->settings.lr, was->world.size);
    if (rank->place.round > 0)
        accept_elastic(was, &is);
    TRY(check_data(rank, path, was->data));
    return check_same(path, was, &is);
}

/* Whether this launch has written it, before its workers were started again; true if no launcher of
 * ours has started this one. */
static bool is_launch(const rank_context *rank, const checkpoint_state *was)
{
    char ours[CHECKPOINT_LAUNCH_BYTES];
    name_launch(rank, ours);
    return ours[0] == '\0' || strcmp(was->launch, ours) == 0;
}

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
    TRY(agent_link_check(rank->link));
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
 * two. A failure is logged; the next checkpoint mends it, and the end of the run looks. */
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
    if (was->at.epoch_first > (int64_t)rank->train_set.count)
        return FAIL(STATUS_INVALID, "%s: \"epoch_first\" is %" PRId64 ", of %u images", path,
                    was->at.epoch_first, rank->train_set.count);
    if (was->at.world_changes > 0 || was->world.size != rank->sharing.world_size)
        return STATUS_OK;
    int64_t missing = was->at.epoch * steps + was->at.step_in_epoch - was->at.step;
    bool dry = steps > 1 && missing % (steps - 1) == 0 && missing / (steps - 1) <= was->at.epoch;
    if (was->at.step_in_epoch <= steps && (missing == 0 || (missing > 0 && dry)))
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "%s: step %" PRId64 " is not step %" PRId64 " after %" PRId64 " epochs of %" PRId64,
                path, was->at.step, was->at.step_in_epoch, was->at.epoch, steps);
}

/* Loads the newest checkpoint that is whole and fits; *found = false if there is none at all. */
static status load_newest(const char *path, rank_context *rank, bool *found, checkpoint_state *was,
                          char *checkpoint)
{
    status st = STATUS_OK;
    for (int64_t before = CHECKPOINT_NEWEST;; before = was->at.step) {
        bool another = false;
        TRY(checkpoint_find(path, before, &another, was, checkpoint));
        *found = another || before != CHECKPOINT_NEWEST;
        if (!another)
            break;
        /* What was there before the launch is continued only if --resume says so. */
        if (rank->opts->resume == NULL && !is_launch(rank, was))
            return refuse_existing_run(path);
        TRY(check_identity(rank, path, was));
        st = check_place(checkpoint, rank, was);
        if (st == STATUS_OK)
            st = checkpoint_load(checkpoint, rank->net, strategy_optimizer(rank->strategy),
                                 strategy_access(rank->strategy));
        if (st != STATUS_INVALID)
            return st;
        LOG_W("passing over a checkpoint that does not fit: %s", status_text());
    }
    if (st == STATUS_OK)
        return STATUS_OK;
    return status_context(st,
                          "%s has no checkpoint that fits (delete them to start anew), the "
                          "oldest so",
                          path);
}

/* Of the checkpoints up to the one that is restored: those after it belong to steps that are taken
 * again. The link is made again if a kill has left an older one. */
static status find_best(run_folder *folder, const rank_context *rank, checkpoint_state *best)
{
    bool found = false;
    *best = (checkpoint_state){0};
    TRY(best_checkpoint_find(folder->path, folder->saved_step, &found, best));
    folder->best_step = best->at.step;
    if (found && run_folder_takes_checkpoints(rank->opts) &&
        best_checkpoint_link(folder->path, best->at.step) != STATUS_OK)
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
    folder->saved_step = found ? was.at.step : 0;
    return find_best(folder, rank, &best);
}

status run_folder_resume(run_folder *folder, rank_context *rank, checkpoint_state *was,
                         checkpoint_state *best)
{
    char checkpoint[FILE_PATH_BYTES];
    bool found = false;
    TRY(load_newest(folder->path, rank, &found, was, checkpoint));
    if (!found)
        return run_folder_resume_mode(rank) == RESUME_AUTO ? STATUS_OK
                                                           : refuse_no_checkpoint(folder->path);
    loss_scaling scaling = {(float)was->loss_scale, (int32_t)was->loss_good_steps,
                            was->loss_skipped_steps, (uint32_t)was->loss_overflow};
    TRY(rank_context_set_loss_scaling(rank, &scaling));
    if (run_folder_takes_checkpoints(rank->opts))
        publish_again(folder->path, checkpoint);
    folder->saved_step = was->at.step;
    return find_best(folder, rank, best);
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
    checkpoint_state state = state_at(rank, at);
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
    status st = checkpoint_save(folder->path, &state, rank->net, strategy_optimizer(rank->strategy),
                                strategy_access(rank->strategy));
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

status run_folder_write_result(const run_folder *folder, const char *line)
{
    if (folder->is_dry)
        return STATUS_OK;
    char path[FILE_PATH_BYTES];
    const file_part parts[] = {{line, strlen(line)}, {"\n", 1}};
    TRY(file_join(folder->path, RUN_FILE_RESULT, path));
    return file_replace(path, parts, 2);
}
