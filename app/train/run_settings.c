#include "app/train/run_settings.h"

#include "app/common/json_value.h"
#include "app/common/run_files.h"
#include "app/train/strategy.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "model/checkpoint.h"
#include "model/schedule.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBER_BYTES = 32, RANKS_MOST = 65536, TOLD_BYTES = 128 };

/* Settings that stand for each other: if one is given, none is taken. */
static const char *const EITHER[][3] = {{"batch-size", "global-batch-size", NULL},
                                        {"device", "devices", "no-accel"}};

/* A run and the command that continues it. */
typedef struct continuation {
    options *opts;
    run_config config;
    bool refused;
    json_t *changed; /* what is logged if not refused */
} continuation;

static const json_t *fact(const continuation *c, const char *key)
{
    return json_object_get(json_object_get(c->config.document, "run"), key);
}

/* Is another one given that stands for this setting? */
static bool other_is_given(const options *opts, const char *name)
{
    bool given = false, listed = false;
    for (size_t e = 0; e < sizeof EITHER / sizeof EITHER[0] && !listed; e++) {
        given = false;
        for (size_t i = 0; i < 3 && EITHER[e][i] != NULL; i++) {
            bool same = strcmp(EITHER[e][i], name) == 0;
            listed = listed || same;
            given = given || (!same && options_given(opts, EITHER[e][i]));
        }
    }
    return listed && given;
}

/* The number under `key` of what the run is, as text; "default" if there is none. The rate as it
 * was set: with --scale-lr a rank's share of what the run trained with. */
static const char *fact_text(const continuation *c, const char *key, char out[NUMBER_BYTES])
{
    const json_t *value = fact(c, key), *settings = json_object_get(c->config.document, "settings");
    const json_t *scaled = json_object_get(json_object_get(settings, "scale_lr"), "value");
    bool is_scaled = strcmp(key, "lr") == 0 && json_is_true(scaled);
    double ranks = is_scaled ? json_number_value(fact(c, "world")) : 1;
    snprintf(out, NUMBER_BYTES, "%.9g", json_number_value(value) / ranks);
    return json_is_number(value) && ranks > 0 ? out : "default";
}

/* What a setting was in the run: `text` is the file's, NULL if it was not given. */
static const char *former(const continuation *c, const char *name, const char *text,
                          char out[NUMBER_BYTES])
{
    static const char *const facts[][2] = {
        {"batch-size", "batch"}, /* one of these two was given, and made both */
        {"global-batch-size", "global_batch"},
        {"replicas", "replicas"},
        {"lr", "lr"}, /* the optimizer's default */
        {"weight-decay", "weight_decay"},
    };
    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++)
        if (strcmp(name, facts[i][0]) == 0 && (i < 2 || text == NULL))
            return fact_text(c, facts[i][1], out);
    if (text != NULL)
        return text;
    return strcmp(name, "limit") == 0 ? "all" : "default";
}

/* All of the images, however many were asked for. */
static bool means_all(const continuation *c, const char *name, const char *was)
{
    int64_t images =
        json_integer_value(fact(c, "train_images")) + json_integer_value(fact(c, "val_images"));
    return strcmp(name, "limit") == 0 && strcmp(was, "all") == 0 && c->opts->limit >= images;
}

/* A schedule that has an end is made for the steps of the run as it began. */
static bool schedule_has_end(const continuation *c)
{
    schedule_kind kind = SCHEDULE_STEP;
    const char *name = json_string_value(fact(c, "schedule"));
    return name != NULL && schedule_kind_parse(name, &kind) == STATUS_OK &&
           schedule_kind_has_end(kind);
}

/* One device computes the same in every mode, and so do several that have a part of the model each
 * in one process. */
static const char *reason(const continuation *c, setting_class class)
{
    const char *mode = json_string_value(fact(c, "mode"));
    const strategy_facts *was = mode != NULL ? strategy_named(mode) : NULL;
    bool central = was == NULL || was->is_central;
    bool spread = json_integer_value(fact(c, "world")) > 1 ||
                  (central && json_integer_value(fact(c, "replicas")) > 1);
    if ((class == JOB_LENGTH && !schedule_has_end(c)) || (class == JOB_SPREAD && !spread))
        return NULL;
    return setting_why(class);
}

/* Ranks sum in an order of their own, as another number of ranks does. */
static bool sums_alike(const char *name, const char *was, const char *is)
{
    const strategy_facts *a = strategy_named(was), *b = strategy_named(is);
    return strcmp(name, "mode") == 0 && a != NULL && b != NULL && !a->is_central && !b->is_central;
}

static void tell(continuation *c, const char *name, const char *was, const char *is,
                 const char *why)
{
    char change[OPTION_NAME_BYTES + 2 * TOLD_BYTES];
    if (why != NULL)
        LOG_E("cannot resume %s: --%s %s -> %s: %s", c->opts->run_dir, name, was, is, why);
    else if (getenv("MNIST_DDP_LAUNCHED") == NULL) {
        snprintf(change, sizeof change, "--%s %.*s -> %.*s", name, TOLD_BYTES - 4, was,
                 TOLD_BYTES - 4, is);
        json_array_append_new(c->changed, json_value_text(change));
    }
    c->refused = c->refused || why != NULL;
}

static status compare(continuation *c, const option_row *row, const char *text)
{
    char number[NUMBER_BYTES], *given = NULL;
    const char *was = former(c, row->name, text, number);
    TRY(run_config_text(row, c->opts, &given));
    const char *is = given != NULL ? given : "default";
    if (strcmp(was, is) != 0 && !means_all(c, row->name, was))
        tell(c, row->name, was, is, sums_alike(row->name, was, is) ? NULL : reason(c, row->class));
    free(given);
    return STATUS_OK;
}

static status complete_one(continuation *c, const option_row *row)
{
    options *opts = c->opts;
    bool found = false;
    char where[OPTION_NAME_BYTES + 32], *was = NULL;
    option_source origin = SOURCE_DEFAULT;
    TRY(run_config_setting(&c->config, row->name, &found, &was, &origin));
    status st = STATUS_OK;
    snprintf(where, sizeof where, RUN_FILE_CONFIG ": %s", row->name);
    if (found && options_given(opts, row->name))
        st = compare(c, row, was);
    else if (was != NULL && !other_is_given(opts, row->name))
        st = options_value_set(opts, (option_match){row, false}, was, origin, where);
    free(was);
    return st;
}

/* The ranks of one host. */
static status complete_ranks(continuation *c)
{
    options *opts = c->opts;
    int64_t world = json_integer_value(fact(c, "world"));
    int given = 0;
    char text[NUMBER_BYTES];
    if (getenv("RANK") != NULL || json_array_size(fact(c, "hosts")) != 1 || world < 1 ||
        world > RANKS_MOST || options_given(opts, "nnodes") || options_given(opts, "world-size"))
        return STATUS_OK;
    snprintf(text, sizeof text, "%lld", (long long)world);
    const char *is = strategy_of(opts)->is_one_process ? "1" : opts->nproc_per_node;
    if (is != NULL) {
        if (number_parse(is, 1, RANKS_MOST, &given) && given != world)
            tell(c, "nproc-per-node", text, is,
                 schedule_has_end(c) ? "its schedule counts the steps of the former" : NULL);
        return STATUS_OK;
    }
    return world > 1 ? options_value_set_named(opts, "nproc-per-node", text, SOURCE_COMMAND_LINE,
                                               RUN_FILE_CONFIG)
                     : STATUS_OK;
}

static status complete(continuation *c)
{
    for (size_t i = 0; i < options_table_count; i++)
        if (setting_is_kept(options_table[i].class))
            TRY(complete_one(c, &options_table[i]));
    TRY(complete_ranks(c));
    const char *run = c->opts->run_dir;
    const json_t *change;
    size_t k;
    if (!c->refused) {
        json_array_foreach(c->changed, k, change)
            LOG_V("resuming %s with %s", run, json_string_value(change));
        return STATUS_OK;
    }
    return FAIL(STATUS_INVALID,
                "cannot resume %s with these settings: leave them out, or start a new run from its "
                "weights: --init %s --run-dir OTHER",
                run, run);
}

/* --resume without --run-dir. Node 0 says it if there is none: another node need not have one. */
static status choose_run(options *opts)
{
    char run[FILE_PATH_BYTES];
    bool found = false;
    if (opts->resume == NULL || strcmp(opts->resume, "must") != 0 || opts->run_dir != NULL)
        return STATUS_OK;
    TRY(runs_folder_newest(CHECKPOINT_MODEL, run, &found));
    return found ? options_value_set_named(opts, "run-dir", run, SOURCE_DEFAULT, "--run-dir")
                 : STATUS_OK;
}

status run_settings_complete(options *opts)
{
    char checkpoints[FILE_PATH_BYTES];
    continuation c = {.opts = opts};
    TRY(choose_run(opts));
    if (opts->command != COMMAND_TRAIN || opts->resume == NULL || opts->run_dir == NULL ||
        file_join(opts->run_dir, CHECKPOINT_FOLDER, checkpoints) != STATUS_OK ||
        !file_exists(checkpoints))
        return STATUS_OK;
    status st = run_config_read(opts->run_dir, &c.config);
    if (st == STATUS_NO_MEMORY)
        return st;
    if (st != STATUS_OK) {
        LOG_W("settings are not taken from the run: %s", status_text());
        return STATUS_OK;
    }
    c.changed = json_array();
    if (c.config.document != NULL)
        st = complete(&c);
    json_decref(c.changed);
    run_config_close(&c.config);
    return st;
}

static status take(options *opts, const char *name, const char *text)
{
    return options_value_set_named(opts, name, text, SOURCE_COMMAND_LINE, RUN_FILE_CONFIG);
}

/* The run's data set, and its folder if the command then reads that data set. */
static status take_data(options *opts, const data_source *data)
{
    const char *was = data->dataset;
    if (was != NULL && !options_given(opts, "dataset"))
        TRY(take(opts, "dataset", was));
    if (was != NULL && strcmp(was, opts->dataset) != 0)
        LOG_W("%s was trained with --dataset %s, and is evaluated with --dataset %s", data->run,
              was, opts->dataset);
    else if (options_given(opts, "data-dir"))
        return STATUS_OK;
    else if (data->folder != NULL && file_exists(data->folder))
        return take(opts, "data-dir", data->folder);
    else if (data->is_given)
        LOG_W("%s was trained with --data-dir %s, which is not there", data->run, data->folder);
    return STATUS_OK;
}

/* RUN, --checkpoint or the newest in runs/. */
static status choose_checkpoint(options *opts)
{
    char path[FILE_PATH_BYTES];
    TRY(runs_folder_model(opts->n_runs > 0 ? opts->runs[0] : opts->checkpoint, path));
    return take(opts, "checkpoint", path);
}

status run_settings_complete_eval(options *opts)
{
    data_source data;
    if (opts->command != COMMAND_EVAL)
        return STATUS_OK;
    TRY(choose_checkpoint(opts));
    status st = data_source_find(opts->checkpoint, &data), taken = take_data(opts, &data);
    data_source_free(&data);
    st = st == STATUS_OK ? taken : st;
    if (st == STATUS_OK || st == STATUS_NO_MEMORY)
        return st;
    LOG_W("the data set is not taken from the run: %s", status_text());
    return STATUS_OK;
}
