/* mnist_ddp bench scaling: measures, fits, predicts what was held out, projects. */
#include "app/bench/scaling.h"

#include "app/bench/bench.h"
#include "app/common/device_list.h"
#include "app/common/exit_codes.h"
#include "app/report/report.h"
#include "base/log.h"
#include "base/thread.h"
#include "data/dataset.h"
#include "model/layers.h"

#include <stdlib.h>
#include <string.h>

#define FLOAT_BYTES ((double)sizeof(float))

enum { MIB = 1 << 20, MAX_RANKS = 1024, MAX_IMAGES = 1 << 20 };

static const strategy_kind KIND_MODES[COST_SAMPLE_KINDS] = {
    [COST_SAMPLE_DDP] = STRATEGY_DDP,
    [COST_SAMPLE_SERVER] = STRATEGY_PS,
    [COST_SAMPLE_MASTER] = STRATEGY_DP,
};

strategy_kind scaling_kind_mode(cost_sample_kind kind)
{
    return KIND_MODES[kind];
}

const char *scaling_kind_name(cost_sample_kind kind)
{
    return kind == COST_SAMPLE_ALL_REDUCE ? "all-reduce" : strategy_about(KIND_MODES[kind])->name;
}

/* "single" is DDP of one rank, which is always measured. */
static status read_modes(const options *opts, bool wanted[COST_SAMPLE_KINDS])
{
    bench_list modes;
    TRY(bench_list_modes(opts->modes, &modes));
    for (int i = 0; i < modes.n; i++)
        for (int kind = COST_SAMPLE_DDP; kind < COST_SAMPLE_KINDS; kind++)
            wanted[kind] |= modes.values[i] == (int)KIND_MODES[kind];
    return STATUS_OK;
}

static status read_device(const options *opts, scaling_plan *plan)
{
    TRY(device_list_count(opts, &plan->gpus));
    plan->threads = (int)opts->threads;
    int most = cores_count() / plan->threads;
    plan->cores = plan->gpus > 0 ? plan->gpus : most > 1 ? most : 1;
    return STATUS_OK;
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
    for (int model = 0; model < plan->models.n; model++)
        for (int kind = COST_SAMPLE_DDP; kind < COST_SAMPLE_KINDS; kind++) {
            scaling_run run = {(cost_sample_kind)kind, (model_kind)plan->models.values[model],
                               ranks, images};
            /* One rank alone is the same in all modes, and what the others are compared with. */
            if (ranks == 1 ? kind == COST_SAMPLE_DDP : wanted[kind])
                TRY(add_run(plan, run));
        }
    return STATUS_OK;
}

static status add_runs(const options *opts, scaling_plan *plan, const bool wanted[])
{
    bench_list worlds, batches;
    bool alone = false;
    TRY(bench_list_numbers("--world-sizes", opts->world_sizes, MAX_RANKS, &worlds));
    TRY(bench_list_numbers("--batch-sizes", opts->batch_sizes, MAX_IMAGES, &batches));
    for (int i = 0; i < worlds.n; i++) {
        alone = alone || worlds.values[i] == 1;
        if (worlds.values[i] > 1) /* the bandwidth of every mode comes from here */
            TRY(add_run(plan,
                        (scaling_run){COST_SAMPLE_ALL_REDUCE, MODEL_MLP, worlds.values[i], 0}));
        for (int j = 0; j < batches.n; j++)
            TRY(add_steps(plan, wanted, worlds.values[i], batches.values[j]));
    }
    return alone
               ? STATUS_OK
               : FAIL(STATUS_INVALID, "--world-sizes needs 1, which all others are compared with");
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
    TRY(bench_list_models(opts->models, &out->models));
    TRY(read_device(opts, out));
    TRY(add_runs(opts, out, wanted));
    if (strcmp(opts->hold_out, "none") != 0)
        TRY(bench_list_numbers("--hold-out", opts->hold_out, MAX_RANKS, &out->held_out));
    TRY(check_held_out(out));
    out->repeats = opts->repeats;
    out->steps = opts->steps;
    read_cluster(opts, out);
    return STATUS_OK;
}

bool scaling_plan_holds_out(const scaling_plan *plan, int ranks)
{
    for (int i = 0; i < plan->held_out.n; i++)
        if (plan->held_out.values[i] == ranks)
            return true;
    return false;
}

/* Bytes of the bucket that DDP fills last, by default: from the last layer on, the first is closed
 * at 1 MiB, the others at 25. */
static double last_bucket_bytes(model_kind model)
{
    size_t n, bytes = 0, cap = 1 * MIB;
    const layer_spec *layers = model_kind_layers(model, &n);
    while (n-- > 0) {
        if (bytes >= cap) {
            bytes = 0;
            cap = 25 * MIB;
        }
        bytes += sizeof(float) * layer_count(&layers[n]);
    }
    return (double)bytes;
}

cost_work scaling_work(model_kind model)
{
    return (cost_work){.gradient_bytes = FLOAT_BYTES * (double)model_kind_count(model),
                       .last_bytes = last_bucket_bytes(model),
                       .image_bytes = FLOAT_BYTES * DATASET_PIXELS,
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
                          .parameter_bytes =
                              run->kind == COST_SAMPLE_ALL_REDUCE ? 0 : work.gradient_bytes,
                          .bytes = work.gradient_bytes,
                          .held_out = scaling_plan_holds_out(plan, run->ranks)};
    if (run->kind == COST_SAMPLE_SERVER || run->kind == COST_SAMPLE_MASTER)
        sample.bytes *= 2; /* and the parameters */
    if (run->kind == COST_SAMPLE_MASTER)
        sample.bytes += run->batch * (work.image_bytes + 2 * work.logit_bytes);
    return sample;
}

enum { CHILD_TIMEOUT_MS = 900000 };

/* What stays open from start to end. */
typedef struct study {
    const options *opts;
    scaling_plan plan;
    bench_child place;
    scaling_measurements measured;
    json_t *document;
    char folder[FILE_PATH_BYTES];
} study;

/* Without a fit, as after an early stop, what was measured is still told. */
static status fit_and_tell(study *s, bool *fitted)
{
    cost_fit fit;
    cost_sample *samples = NULL;
    TRY(scaling_samples(&s->measured, &samples));
    *fitted = cost_fit_make(samples, s->measured.n, s->plan.cores, &fit) == STATUS_OK;
    if (!*fitted) {
        LOG_W("no fit: %s", status_text());
        report_say(s->document, REPORT_NOTES, "no fit: %s", status_text());
    }
    scaling_view view = {&s->plan, *fitted ? &fit : NULL, &s->measured, s->opts->overlap};
    scaling_report(&view, samples, s->folder, s->document);
    if (*fitted)
        scaling_project(&view, s->folder, s->document);
    free(samples);
    return STATUS_OK;
}

static status run(study *s, int *exit_code)
{
    bool fitted = false;
    *exit_code = EXIT_CODE_USAGE;
    TRY(scaling_plan_make(s->opts, &s->plan));
    *exit_code = EXIT_CODE_CHECKPOINT;
    TRY(bench_folder_make(s->opts, s->folder));
    *exit_code = EXIT_CODE_INTERNAL;
    TRY(bench_child_open(CHILD_TIMEOUT_MS, &s->place));
    bench_say_if_busy(s->document);
    report_say(s->document, REPORT_LIMITS,
               "Above %d ranks, ranks share cores: the model counts that as a cost of its own, and "
               "what it says of the machine's own sizes is no projection.",
               s->plan.cores);
    TRY(scaling_measure(s->opts, &s->plan, &s->place, s->document, &s->measured));
    bool stopped = bench_child_stopped(&s->place);
    if (stopped)
        report_say(s->document, REPORT_NOTES, "stopped: this is what was measured so far");
    TRY(fit_and_tell(s, &fitted));
    *exit_code = EXIT_CODE_CHECKPOINT;
    TRY(bench_leave(s->opts, &s->place, s->folder, s->document));
    stopped = bench_child_stopped(&s->place); /* also while plots were drawn */
    *exit_code = stopped  ? 128 + s->place.signals.first
                 : fitted ? EXIT_SUCCESS
                          : EXIT_CODE_INTERNAL;
    return STATUS_OK;
}

int scaling_command(const options *opts, int argc, char **argv)
{
    study s = {.opts = opts};
    int exit_code = EXIT_CODE_INTERNAL;
    s.document = bench_document(opts, "What scaling costs: measured and projected", argc, argv);
    status st = run(&s, &exit_code);
    if (st != STATUS_OK)
        exit_code = exit_code_failed(st, exit_code);
    bench_child_close(&s.place);
    scaling_measurements_free(&s.measured);
    json_decref(s.document);
    return exit_code;
}
