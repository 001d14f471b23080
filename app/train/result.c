#include "app/train/result.h"

#include "app/common/json_value.h"
#include "app/common/machine.h"
#include "app/common/run_files.h"
#include "app/common/version.h"
#include "base/clock.h"
#include "base/json_text.h"
#include "base/memory.h"
#include "base/status.h"
#include "kernels/ops.h"

#include <errno.h>
#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { HOST_BYTES = 64 };

double evaluation_accuracy(const evaluation *e)
{
    return (double)e->correct / (double)e->images;
}

/* What a run is: what came of its settings. config.json and result.json have it under the same
 * names. */
static void add_facts(json_t *object, const rank_context *rank)
{
    const rank_settings *s = &rank->settings;
    const struct {
        const char *key;
        json_t *value;
    } all[] = {
        {"system", json_string("mnist_ddp " MNIST_DDP_VERSION)},
        {"mode", json_string(strategy_of(rank->opts)->name)},
        {"world", json_integer(rank->place.world_size)},
        {"replicas", json_integer(s->replicas)},
        {"model", json_string(model_kind_name(s->model))},
        {"parameters", json_integer((json_int_t)network_model_count(rank->net))},
        {"backend", json_string(strategy_backend(rank->strategy))},
        {"device", json_string(rank->dev->ops->name)},
        {"threads", json_integer(s->threads)},
        {"precision", json_string(precision_name(rank->dev->precision))},
        {"optimizer_name", json_string(optimizer_kind_name(s->optimizer.kind))},
        {"lr", json_value_rounded(s->schedule.lr, 9)},
        {"weight_decay", json_value_rounded(s->weight_decay, 9)},
        {"schedule", json_string(schedule_kind_name(rank->schedule.options.kind))},
        {"seed", json_integer(rank->opts->seed)},
        {"batch", json_integer(s->batch_size)},
        {"global_batch", json_integer(rank_context_global_batch(rank))},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        json_object_set_new(object, all[i].key, all[i].value);
    if (rank->place.round > 0)
        json_object_set_new(object, "elastic_batch",
                            json_string(rank_settings_elastic_batch(rank->opts)));
    if (strcmp(rank->opts->comm_hook, "none") != 0)
        json_object_set_new(object, "comm_hook", json_string(rank->opts->comm_hook));
    if (rank->opts->sync_every > 1) {
        json_object_set_new(object, "sync_every", json_integer(rank->opts->sync_every));
        json_object_set_new(object, "outer_lr", json_real(rank->opts->outer_lr));
        json_object_set_new(object, "outer_momentum", json_real(rank->opts->outer_momentum));
    }
    if (rank->dev->stream != NULL)
        json_object_set_new(object, "gpu", json_value_text(rank->dev->description));
}

/* What config.json has beside them: its data, and the machine of this rank. */
static void add_place(json_t *object, const rank_context *rank)
{
    machine m;
    machine_read(&m);
    const char *data = rank->location.embedded ? "generated digits" : rank->location.folder;
    json_object_set_new(object, "data_folder", json_value_text(data));
    json_object_set_new(object, "data_digest",
                        json_sprintf("%016llx", (unsigned long long)rank->data_digest));
    json_object_set_new(object, "train_images", json_integer(rank->train_set.count));
    json_object_set_new(object, "val_images", json_integer(rank->val_set.count));
    json_object_set_new(object, "test_images", json_integer(rank->test_set.count));
    json_object_set_new(object, "operating_system", json_value_text(m.system));
    json_object_set_new(object, "kernel", json_value_text(m.kernel));
    json_object_set_new(object, "processor", json_value_text(m.processor));
    json_object_set_new(object, "cores", json_integer(sysconf(_SC_NPROCESSORS_ONLN)));
    json_object_set_new(object, "memory_bytes", json_integer(m.memory_bytes));
}

/* Adds a name that is not yet in the list. */
static void add_host(json_t *list, const char *name)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (strcmp(json_string_value(json_array_get(list, i)), name) == 0)
            return;
    json_array_append_new(list, json_value_text(name));
}

/* Every rank's name, in the order of the ranks: each fills its own place of `all`, which is zeroed.
 */
static status gather_names(const rank_context *rank, const char own[HOST_BYTES], char *all)
{
    size_t size_bytes = (size_t)HOST_BYTES * (size_t)rank->place.world_size;
    memcpy(all + (size_t)HOST_BYTES * (size_t)rank->place.rank, own, HOST_BYTES);
    return process_group_all_reduce(rank->group, all, size_bytes / sizeof(int64_t), DTYPE_I64,
                                    REDUCE_SUM, NULL);
}

/* The name of each host once, the lowest rank's first. */
static status add_hosts(json_t *object, const rank_context *rank)
{
    char own[HOST_BYTES] = "", *all = NULL;
    const rendezvous_place *place = &rank->place;
    if (gethostname(own, sizeof own - 1) != 0)
        strcpy(own, "?");
    json_t *list = json_array();
    status st = STATUS_OK;
    if (rank_context_is_one_host(rank)) {
        add_host(list, own);
    } else {
        st = memory_alloc((size_t)HOST_BYTES * (size_t)place->world_size, (void **)&all);
        if (st == STATUS_OK)
            st = gather_names(rank, own, all);
        for (int i = 0; i < place->world_size && st == STATUS_OK; i++)
            add_host(list, all + (size_t)HOST_BYTES * (size_t)i);
    }
    free(all);
    json_object_set_new(object, "hosts", list);
    return st;
}

status result_describe(json_t *object, const rank_context *rank)
{
    add_facts(object, rank);
    add_place(object, rank);
    return add_hosts(object, rank);
}

/* MiB: the largest resident set so far, and what is this process's alone now (Private_Clean +
 * Private_Dirty of /proc/self/smaps_rollup). */
static status memory_use(int64_t *rss_mib, int64_t *private_mib)
{
    static const char path[] = "/proc/self/smaps_rollup";
    struct rusage usage;
    char line[256];
    long long kib = 0, sum_kib = 0;
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return FAIL(STATUS_IO, "open %s: %s", path, strerror(errno));
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "Private_Clean: %lld kB", &kib) == 1 ||
            sscanf(line, "Private_Dirty: %lld kB", &kib) == 1)
            sum_kib += kib;
    fclose(file);
    getrusage(RUSAGE_SELF, &usage);
    *rss_mib = usage.ru_maxrss / 1024;
    *private_mib = sum_kib / 1024;
    return STATUS_OK;
}

#define MIB (1024.0 * 1024.0)

void result_close(result *r)
{
    free(r->train_s);
    free(r->peaks);
    json_decref(r->changes);
    *r = (result){0};
}

static void raise_to(int64_t *most, int64_t value)
{
    *most = value > *most ? value : *most;
}

/* Who moved most, and how much memory each device held. */
static status compare_devices(result *r, const rank_context *rank)
{
    int own = rank->settings.replicas, first = rank->place.rank * own;
    r->n_peaks = rank->place.world_size * own;
    TRY(memory_alloc(sizeof *r->peaks * (size_t)r->n_peaks, (void **)&r->peaks));
    int64_t most[] = {r->moved.sent_bytes, r->moved.received_bytes};
    for (int i = 0; i < own; i++) {
        device_use use = strategy_use(rank->strategy, i);
        r->peaks[first + i] = use.memory_peak;
        if (i > 0) { /* this thread's is r->moved: between steps it moves other things */
            raise_to(&most[0], use.sent_bytes);
            raise_to(&most[1], use.received_bytes);
        }
    }
    TRY(process_group_all_reduce(rank->group, most, 2, DTYPE_I64, REDUCE_MAX, NULL));
    r->busiest = (device_use){.sent_bytes = most[0], .received_bytes = most[1]};
    return process_group_all_reduce(rank->group, r->peaks, (size_t)r->n_peaks, DTYPE_I64,
                                    REDUCE_SUM, NULL);
}

/* What an accelerator does inside a graph, or hides behind its arithmetic, is not known. */
static void note_what_is_known(result *r, const rank_context *rank)
{
    const timeline *time = &rank->timeline;
    bool on_host = rank->dev->stream == NULL, alone = rank->place.world_size == 1;
    bool none_to_wait_for = alone && rank->settings.replicas == 1;
    r->knows_exposed = !r->graph || none_to_wait_for;
    r->knows_waiting = none_to_wait_for || (on_host && alone) || time->skew.known;
    int64_t exposed_ns = timeline_exposed_ns(time) + time->ns[MOMENT_WAITING];
    r->comm_ns = r->knows_exposed ? strategy_comm_ns(rank->strategy, exposed_ns) : -1;
}

status result_finish(result *r, const rank_context *rank)
{
    note_what_is_known(r, rank);
    TRY(compare_devices(r, rank));
    r->bound_ranks = core_binding_core(&rank->binding) >= 0 ? 1 : 0;
    TRY(process_group_all_reduce(rank->group, &r->bound_ranks, 1, DTYPE_I64, REDUCE_SUM, NULL));
    TRY(memory_use(&r->rss_mib, &r->private_mib));
    return process_group_all_reduce(rank->group, &r->private_mib, 1, DTYPE_I64, REDUCE_MAX, NULL);
}

static json_t *seconds(int64_t ns)
{
    return json_value_rounded(clock_seconds(ns), 6);
}

static void add_phases(json_t *object, const timeline *time, const result *r)
{
    static const moment also_outside[] = {MOMENT_LOAD, MOMENT_FORWARD, MOMENT_BACKWARD,
                                          MOMENT_OPTIMIZER, MOMENT_ACCELERATOR};
    json_t *all = json_object();
    for (int i = 0; i < N_PHASES; i++)
        if (i != MOMENT_WAITING || r->knows_waiting || time->ns[i] > 0)
            json_object_set_new(all, moment_about((moment)i)->name, seconds(time->ns[i]));
    json_object_set_new(object, "phases", all);
    for (size_t i = 0; i < sizeof also_outside / sizeof also_outside[0]; i++)
        json_object_set_new(object, moment_about(also_outside[i])->name,
                            seconds(time->ns[also_outside[i]]));
    if (r->knows_exposed)
        json_object_set_new(object, "comm_exposed", seconds(timeline_exposed_ns(time)));
    if (r->comm_ns >= 0) {
        json_object_set_new(object, "comm_total", seconds(r->comm_ns));
        json_object_set_new(object, "comm", seconds(r->comm_ns));
    }
}

/* Per optimizer step. */
static void add_bytes(json_t *object, const result *r)
{
    const struct {
        const char *name;
        int64_t total;
    } all[] = {{"sent", r->moved.sent_bytes},
               {"received", r->moved.received_bytes},
               {"sent_busiest", r->busiest.sent_bytes},
               {"received_busiest", r->busiest.received_bytes}};
    json_t *bytes = json_object();
    int64_t steps = r->steps > 0 ? r->steps : 1;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        json_object_set_new(bytes, all[i].name, json_integer((all[i].total + steps / 2) / steps));
    json_object_set_new(object, "bytes", bytes);
    json_t *peaks = json_array();
    for (int i = 0; i < r->n_peaks; i++)
        json_array_append_new(peaks, json_value_rounded((double)r->peaks[i] / MIB, 3));
    json_object_set_new(object, "peak_mib", peaks);
}

/* What the device's libraries chose, or would not do: an array per library. */
static json_t *libraries_of(const device *dev)
{
    json_t *all = json_object();
    device_choice c;
    for (int i = 0; dev->ops->choice != NULL && dev->ops->choice(dev, i, &c); i++) {
        if (json_object_get(all, c.library) == NULL)
            json_object_set_new(all, c.library, json_array());
        json_t *one = json_object();
        json_object_set_new(one, "subject", json_string(c.subject));
        json_object_set_new(one, "pass", json_string(c.pass));
        json_object_set_new(one, "batch", json_integer(c.batch));
        json_object_set_new(one, "piece", json_integer(c.piece));
        json_object_set_new(one, "engine", json_integer(c.engine));
        json_object_set_new(one, "workspace_bytes", json_integer(c.workspace_bytes));
        json_object_set_new(one, "notes", json_string(c.notes));
        json_array_append_new(json_object_get(all, c.library), one);
    }
    return all;
}

/* "test_acc" and "test_loss", if `prefix` is "test"; null if there was none. */
static void add_evaluation(json_t *object, const char *prefix, const evaluation *e)
{
    char key[32];
    bool made = e->images > 0;
    snprintf(key, sizeof key, "%s_acc", prefix);
    json_object_set_new(object, key, made ? json_real(evaluation_accuracy(e)) : json_null());
    snprintf(key, sizeof key, "%s_loss", prefix);
    json_object_set_new(object, key, made ? json_value_rounded(e->loss, 6) : json_null());
}

/* The best test: null if there was none. */
static json_t *best_of(const result *r, const rank_context *rank)
{
    const test_found *best = &r->best;
    const char *prefix = rank->val_set.count > 0 ? "val" : "test";
    const evaluation found = {
        .images = best->test.images, .correct = best->test.correct, .loss = best->test.loss};
    if (found.images == 0)
        return json_null();
    json_t *object = json_object();
    json_object_set_new(object, "epoch", json_integer(best->epoch));
    json_object_set_new(object, "step", json_integer(best->step));
    add_evaluation(object, prefix, &found);
    return object;
}

status result_print(const result *r, const rank_context *rank, char **out)
{
    json_t *object = json_object(), *train_s = json_array();
    for (int i = 0; i < r->epochs; i++)
        json_array_append_new(train_s, json_value_rounded(r->train_s[i], 6));
    add_facts(object, rank);
    json_object_set_new(object, "date", json_string(r->date));
    json_object_set_new(object, "command", run_config_command(rank->opts));
    json_object_set_new(object, "metrics", json_string(RUN_FILE_METRICS));
    if (strcmp(strategy_backend(rank->strategy), "nccl") == 0)
        json_object_set_new(object, "nccl", nccl_record());
    if (rank->dev->stream != NULL) {
        json_object_set_new(object, "graph", json_boolean(r->graph));
        json_object_set_new(object, "emulated", json_boolean(rank->dev->emulation != NULL));
        json_object_set_new(object, "libraries", libraries_of(rank->dev));
    }
    json_object_set_new(object, "images_per_epoch", json_integer(r->images_per_epoch));
    json_object_set_new(object, "train_s", train_s);
    json_object_set_new(object, "images_per_s", json_integer((json_int_t)r->images_per_s));
    json_object_set_new(object, "setup_s", json_value_rounded(r->setup_s, 6));
    bool tested = r->test.images > 0;
    json_object_set_new(object, "eval_s",
                        tested ? json_value_rounded(r->test.elapsed_s, 6) : json_null());
    add_evaluation(object, "test", &r->test);
    if (rank->val_set.count > 0)
        add_evaluation(object, "val", &r->validation);
    json_object_set_new(object, "best", best_of(r, rank));
    json_object_set_new(object, "last_loss", json_value_rounded(r->last_loss, 4));
    json_object_set_new(object, "rss_mib", json_integer(r->rss_mib));
    json_object_set_new(object, "private_mib", json_integer(r->private_mib));
    json_object_set_new(object, "steps", json_integer(r->steps));
    json_object_set_new(object, "failed_checkpoints", json_integer(r->failed_checkpoints));
    if (r->changes != NULL)
        json_object_set(object, "world_changes", r->changes);
    json_t *outcome = strategy_outcome(rank->strategy);
    if (outcome != NULL)
        json_object_set_new(object, "staleness", outcome);
    add_phases(object, &rank->timeline, r);
    add_bytes(object, r);
    json_object_set_new(object, "bound_ranks", json_integer(r->bound_ranks));
    json_object_set_new(object, "bind_note", json_string(rank->binding.note));
    status st = json_text_print(object, JSON_COMPACT | JSON_REAL_PRECISION(10), out);
    json_decref(object);
    return st;
}
