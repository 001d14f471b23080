#include "app/train/run_identity.h"

#include "app/common/run_files.h"
#include "app/options/options_table.h"
#include "app/train/agreement.h"
#include "base/digest.h"
#include "base/file.h"
#include "base/log.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEPT_BYTES = 640, HASHED_BYTES = 512 };

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
        add(text, " %s %d", how->name, s->replicas);
    snprintf(out, CHECKPOINT_HASH_BYTES, "%016" PRIx64, fnv1a(FNV1A_START, text, strlen(text)));
}

/* shm and gloo add in rank order, and so does hierarchical on one host; the others in an order of
 * the hosts, or of a library. */
void run_identity_continue_sums(rank_context *rank, const char *began)
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
    bool differ = began[0] != '\0' && strcmp(began, now) != 0;
    if (differ && rank->place.rank == 0)
        LOG_I("the run began with sums over %s, and goes on with sums over %s: its bits are not "
              "those of a run without that change",
              began, now);
    snprintf(rank->sums, sizeof rank->sums, "%.*s%s", (int)sizeof now, differ ? began : now,
             differ && strstr(began, LATER) == NULL ? LATER : "");
}

checkpoint_state run_identity_at(rank_context *rank, const position *at)
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
    char kept[KEPT_BYTES];
    list_kept(kept);
    if (strcmp(was->config_hash, is->config_hash) != 0)
        return FAIL(STATUS_INVALID, "cannot resume %s: %sone of %s was another", path,
                    has_config(path) ? "" : "it has no config.json, so which is not known: ", kept);
    return STATUS_OK;
}

status run_identity_check(rank_context *rank, const char *path, const checkpoint_state *was)
{
    checkpoint_state is = run_identity_at(rank, &(position){0});
    is.lr = rank_settings_lr(rank->opts, rank->settings.lr, was->world_size);
    if (rank->place.round > 0)
        accept_elastic(was, &is);
    TRY(check_data(rank, path, was->data));
    return check_same(path, was, &is);
}

bool run_identity_is_launch(const rank_context *rank, const checkpoint_state *was)
{
    char ours[CHECKPOINT_LAUNCH_BYTES];
    name_launch(rank, ours);
    return ours[0] == '\0' || strcmp(was->launch, ours) == 0;
}
