#include "app/bench/scaling_plan.h"

#include "app/device_list.h"
#include "app/options/options_table.h"
#include "base/team.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FLOAT_BYTES ((double)sizeof(float))

enum { MAX_WORDS = 8, WORD_BYTES = 32, PIXELS = 28 * 28, MAX_RANKS = 1024, MAX_IMAGES = 1 << 20 };

static const char DEFAULT_MODES[] = "ddp,dp,ps";
static const char DEFAULT_WORLD_SIZES[] = "1,2,3,4,5,6,8";
static const char DEFAULT_BATCH_SIZES[] = "16,64";
enum { DEFAULT_REPEATS = 3, DEFAULT_STEPS = 20 };

static const char *const KIND_NAMES[COST_SAMPLE_KINDS] = {
    [COST_SAMPLE_ALL_REDUCE] = "all-reduce",
    [COST_SAMPLE_DDP] = "ddp",
    [COST_SAMPLE_SERVER] = "ps",
    [COST_SAMPLE_MASTER] = "dp",
};

const char *scaling_kind_name(cost_sample_kind kind)
{
    return KIND_NAMES[kind];
}

/* "1,2,4": each from 1 to most, and counted once. */
static status read_numbers(const char *flag, const char *text, int most, int out[SCALING_MAX_SIZES],
                           int *n)
{
    *n = 0;
    for (const char *at = text; *at != '\0';) {
        char *end = NULL;
        long number = *at >= '0' && *at <= '9' ? strtol(at, &end, 10) : 0;
        if (number < 1 || number > most || (*end != ',' && *end != '\0'))
            return FAIL(STATUS_INVALID, "--%s: '%.80s': give numbers from 1 to %d, as in 1,2,4",
                        flag, text, most);
        bool again = false;
        for (int i = 0; i < *n; i++)
            again = again || out[i] == number;
        if (*n == SCALING_MAX_SIZES && !again)
            return FAIL(STATUS_INVALID, "--%s: more than %d numbers", flag, SCALING_MAX_SIZES);
        if (!again)
            out[(*n)++] = (int)number;
        at = end + (*end == ',');
    }
    return STATUS_OK;
}

static status read_words(const char *flag, const char *text, char out[MAX_WORDS][WORD_BYTES],
                         int *n)
{
    *n = 0;
    for (const char *at = text; *at != '\0'; at += *at == ',') {
        size_t length = strcspn(at, ",");
        if (length == 0 || length >= WORD_BYTES || *n == MAX_WORDS)
            return FAIL(STATUS_INVALID, "--%s: '%.80s' is no list of names", flag, text);
        snprintf(out[(*n)++], WORD_BYTES, "%.*s", (int)length, at);
        at += length;
    }
    return *n > 0 ? STATUS_OK : FAIL(STATUS_INVALID, "--%s: the list is empty", flag);
}

static const char *chosen(const options *opts, const char *name, const char *given,
                          const char *otherwise)
{
    return options_given(opts, name) ? given : otherwise;
}

/* "single" is DDP of one rank, which is always measured. */
static status read_modes(const options *opts, bool wanted[COST_SAMPLE_KINDS])
{
    char words[MAX_WORDS][WORD_BYTES];
    int n;
    TRY(read_words("modes", chosen(opts, "modes", opts->modes, DEFAULT_MODES), words, &n));
    for (int i = 0; i < n; i++) {
        bool known = strcmp(words[i], "single") == 0;
        for (int kind = COST_SAMPLE_DDP; kind < COST_SAMPLE_KINDS; kind++)
            if (strcmp(words[i], KIND_NAMES[kind]) == 0)
                known = wanted[kind] = true;
        if (!known)
            return FAIL(STATUS_INVALID, "--modes: '%s' is not one of single, ddp, dp, ps",
                        words[i]);
    }
    return STATUS_OK;
}

static status read_models(const options *opts, scaling_plan *plan)
{
    char words[MAX_WORDS][WORD_BYTES];
    int n;
    TRY(read_words("models", opts->models, words, &n));
    for (int i = 0; i < n; i++) {
        model_kind kind;
        bool known = false;
        TRY(model_kind_parse(words[i], &kind));
        for (int j = 0; j < plan->n_models; j++)
            known = known || plan->models[j] == (int)kind;
        if (!known)
            plan->models[plan->n_models++] = (int)kind;
    }
    return STATUS_OK;
}

static status read_device(const options *opts, scaling_plan *plan)
{
    TRY(device_list_count(opts, &plan->gpus));
    plan->threads = opts->threads > 0 ? (int)opts->threads : 1;
    int cores = team_cores() / plan->threads;
    plan->cores = plan->gpus > 0 ? plan->gpus : cores > 1 ? cores : 1;
    return STATUS_OK;
}

/* Does this program's `train` know other modes than DDP? */
static bool has_modes(void)
{
    option_match match;
    return options_table_find("mode", FOR_TRAIN, &match);
}

static status add_run(scaling_plan *plan, scaling_run run)
{
    if (plan->n_runs == SCALING_MAX_RUNS)
        return FAIL(STATUS_INVALID, "more than %d cases: give fewer --world-sizes or --batch-sizes",
                    SCALING_MAX_RUNS);
    plan->runs[plan->n_runs++] = run;
    return STATUS_OK;
}

static status add_steps(scaling_plan *plan, const bool wanted[COST_SAMPLE_KINDS], int ranks,
                        int images)
{
    for (int model = 0; model < plan->n_models; model++)
        for (int kind = COST_SAMPLE_DDP; kind < COST_SAMPLE_KINDS; kind++) {
            scaling_run run = {(cost_sample_kind)kind, (model_kind)plan->models[model], ranks,
                               images};
            /* One rank alone is the same in all modes, and what the others are compared with. */
            if (ranks == 1 ? kind == COST_SAMPLE_DDP : wanted[kind])
                TRY(add_run(plan, run));
        }
    return STATUS_OK;
}

static status add_runs(const options *opts, scaling_plan *plan, const bool wanted[])
{
    int worlds[SCALING_MAX_SIZES], batches[SCALING_MAX_SIZES], n_worlds, n_batches;
    bool alone = false;
    TRY(read_numbers("world-sizes",
                     chosen(opts, "world_sizes", opts->world_sizes, DEFAULT_WORLD_SIZES), MAX_RANKS,
                     worlds, &n_worlds));
    TRY(read_numbers("batch-sizes",
                     chosen(opts, "batch_sizes", opts->batch_sizes, DEFAULT_BATCH_SIZES),
                     MAX_IMAGES, batches, &n_batches));
    for (int i = 0; i < n_worlds; i++) {
        alone = alone || worlds[i] == 1;
        if (worlds[i] > 1 && wanted[COST_SAMPLE_DDP])
            TRY(add_run(plan, (scaling_run){COST_SAMPLE_ALL_REDUCE, MODEL_MLP, worlds[i], 0}));
        for (int j = 0; j < n_batches; j++)
            TRY(add_steps(plan, wanted, worlds[i], batches[j]));
    }
    if (!alone || n_batches == 0)
        return FAIL(STATUS_INVALID, "--world-sizes needs 1, which all others are compared with, "
                                    "and --batch-sizes a number");
    return STATUS_OK;
}

static status check_held_out(const scaling_plan *plan)
{
    bool fitted = false;
    for (int i = 0; i < plan->n_runs; i++)
        fitted = fitted ||
                 (plan->runs[i].ranks > 1 && !scaling_plan_holds_out(plan, plan->runs[i].ranks));
    if (scaling_plan_holds_out(plan, 1))
        return FAIL(STATUS_INVALID, "--hold-out: one rank is what the fit starts from");
    if (!fitted)
        return FAIL(STATUS_INVALID, "--hold-out leaves no world size above 1 to fit");
    return STATUS_OK;
}

static double s_per_byte(double gbps)
{
    return 8e-9 / gbps;
}

static void read_cluster(const options *opts, scaling_plan *plan)
{
    plan->cluster = (cost_cluster){
        .between = {opts->link_latency_us * 1e-6, s_per_byte(opts->link_bandwidth_gbps)},
        .inside = {opts->node_latency_us * 1e-6, s_per_byte(opts->node_bandwidth_gbps)},
        .ranks_per_node = opts->ranks_per_node};
    plan->images_per_s = opts->images_per_s;
    plan->most_ranks = opts->project_ranks;
    plan->rank_batch = opts->project_batch;
    plan->global_batch = opts->project_global_batch;
}

status scaling_plan_make(const options *opts, scaling_plan *out)
{
    bool wanted[COST_SAMPLE_KINDS] = {false};
    memset(out, 0, sizeof *out);
    TRY(read_modes(opts, wanted));
    TRY(read_models(opts, out));
    TRY(read_device(opts, out));
    if (!has_modes()) {
        out->no_modes = wanted[COST_SAMPLE_SERVER] || wanted[COST_SAMPLE_MASTER];
        wanted[COST_SAMPLE_SERVER] = wanted[COST_SAMPLE_MASTER] = false;
    }
    TRY(add_runs(opts, out, wanted));
    if (strcmp(opts->hold_out, "none") != 0)
        TRY(read_numbers("hold-out", opts->hold_out, MAX_RANKS, out->held_out, &out->n_held_out));
    TRY(check_held_out(out));
    out->repeats = options_given(opts, "repeats") ? opts->repeats : DEFAULT_REPEATS;
    out->steps = options_given(opts, "steps") ? opts->steps : DEFAULT_STEPS;
    read_cluster(opts, out);
    return STATUS_OK;
}

bool scaling_plan_holds_out(const scaling_plan *plan, int ranks)
{
    for (int i = 0; i < plan->n_held_out; i++)
        if (plan->held_out[i] == ranks)
            return true;
    return false;
}

/* DDP's buckets by default close at 1 MiB, then 25: the second and last one holds the first layers'
 * parameters. */
cost_work scaling_work(model_kind model)
{
    enum {
        MLP_LAST = 784 * 512 + 512,                /* fc1 */
        CNN_LAST = 32 * 9 + 32 + 64 * 32 * 9 + 64, /* conv1, conv2 */
    };
    return (cost_work){.gradient_bytes = FLOAT_BYTES * (double)model_kind_count(model),
                       .last_bytes = FLOAT_BYTES * (model == MODEL_MLP ? MLP_LAST : CNN_LAST),
                       .image_bytes = FLOAT_BYTES * PIXELS,
                       .logit_bytes = FLOAT_BYTES * NETWORK_CLASSES,
                       .backward_share = 2.0 / 3,
                       .overlap = 1};
}

cost_sample scaling_plan_sample(const scaling_plan *plan, const scaling_run *run)
{
    cost_work work = scaling_work(run->model);
    cost_sample sample = {.kind = run->kind,
                          .model = (int)run->model,
                          .ranks = run->ranks,
                          .images = run->batch,
                          .bytes = work.gradient_bytes,
                          .held_out = scaling_plan_holds_out(plan, run->ranks)};
    if (run->kind == COST_SAMPLE_SERVER || run->kind == COST_SAMPLE_MASTER)
        sample.bytes *= 2; /* and the parameters */
    if (run->kind == COST_SAMPLE_MASTER)
        sample.bytes += run->batch * (work.image_bytes + 2 * work.logit_bytes);
    return sample;
}
