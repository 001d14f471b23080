/* mnist_ddp bench scaling: measures steps and all-reduces in children, repeated in turn. */
#include "app/bench/bench.h"

#include "app/common/device_list.h"
#include "app/common/exit_codes.h"
#include "app/report/report.h"
#include "base/thread.h"
#include "data/dataset.h"
#include "model/layers.h"
#include "model/network.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FLOAT_BYTES ((double)sizeof(float))

enum {
    MIB = 1 << 20,
    MAX_RANKS = 1024,
    MAX_IMAGES = 1 << 20,
    CHILD_TIMEOUT_MS = 900000,
    DIGITS = 6,
};

static const strategy_kind MODES[] = {STRATEGY_DDP, STRATEGY_PS, STRATEGY_DP};
enum { N_MODES = sizeof MODES / sizeof MODES[0] };

static status add_run(scaling_plan *plan, bench_case run)
{
    if (plan->n_runs == SCALING_MAX_RUNS)
        return FAIL(STATUS_INVALID, "more than %d cases: give fewer --world-sizes or --batch-sizes",
                    SCALING_MAX_RUNS);
    plan->runs[plan->n_runs++] = run;
    return STATUS_OK;
}

static status add_steps(scaling_plan *plan, const bench_list *models, const bool *wanted, int ranks,
                        int images)
{
    for (int model = 0; model < models->n; model++)
        for (int i = 0; i < N_MODES; i++)
            /* One rank alone is the same in all modes, and what the others are compared with. */
            if (ranks == 1 ? MODES[i] == STRATEGY_DDP : wanted[MODES[i]])
                TRY(add_run(plan, (bench_case){.mode = MODES[i],
                                               .model = (model_kind)models->values[model],
                                               .world = ranks,
                                               .batch = images,
                                               .global_batch = images * ranks}));
    return STATUS_OK;
}

status scaling_plan_make(const options *opts, scaling_plan *out)
{
    bench_list modes, models, worlds, batches;
    bool wanted[STRATEGY_COUNT] = {false}, alone = false;
    memset(out, 0, sizeof *out);
    TRY(bench_list_modes(opts->bench.modes, &modes));
    TRY(bench_list_models(opts->bench.models, &models));
    TRY(device_list_count(opts, &out->gpus));
    TRY(bench_list_numbers("--world-sizes", opts->bench.world_sizes, MAX_RANKS, &worlds));
    TRY(bench_list_numbers("--batch-sizes", opts->bench.batch_sizes, MAX_IMAGES, &batches));
    int most = cores_count() / (int)opts->threads;
    out->cores = out->gpus > 0 ? out->gpus : most > 1 ? most : 1;
    for (int i = 0; i < modes.n; i++)
        if (modes.values[i] < STRATEGY_COUNT)
            wanted[modes.values[i]] = true;
    for (int i = 0; i < worlds.n; i++) {
        int ranks = worlds.values[i];
        alone = alone || ranks == 1;
        if (ranks > 1)
            TRY(add_run(out, (bench_case){.is_all_reduce = true, .world = ranks}));
        for (int j = 0; j < batches.n; j++)
            TRY(add_steps(out, &models, wanted, ranks, batches.values[j]));
    }
    return alone
               ? STATUS_OK
               : FAIL(STATUS_INVALID, "--world-sizes needs 1, which all others are compared with");
}

/* From the last layer on, the first bucket is closed at 1 MiB, the others at 25. */
double scaling_last_bucket_bytes(model_kind model)
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

double scaling_bytes(const bench_case *run)
{
    double gradients = FLOAT_BYTES * (double)model_kind_count(run->model);
    if (run->mode == STRATEGY_DDP)
        return gradients;
    double images = run->mode == STRATEGY_DP ? run->batch : 0; /* logits: there and back */
    return 2 * gradients + images * FLOAT_BYTES * (DATASET_PIXELS + 2 * NETWORK_CLASSES);
}

/* What stays open from start to end. */
typedef struct study {
    const options *opts;
    json_t *document; /* bench_study's */
    scaling_plan plan;
    bench_commands commands;
    json_t *cases; /* by run: a list of one case, or of an all-reduce's sizes; empty if it failed */
    double backward_s[MODEL_COUNT], forward_s[MODEL_COUNT]; /* all steps of one rank */
    bool has_steps;
} study;

static const char *name_of(const bench_case *run)
{
    return run->is_all_reduce ? "all-reduce" : strategy_about(run->mode)->name;
}

static json_t *case_create(const bench_case *run, double bytes)
{
    json_t *object = json_pack("{s:s, s:i, s:f, s:[]}", "what", name_of(run), "ranks", run->world,
                               "bytes", bytes, "values_s");
    if (run->is_all_reduce)
        return object;
    json_object_set_new(object, "model", json_string(model_kind_name(run->model)));
    json_object_set_new(object, "images_per_rank", json_real(run->batch));
    if (run->mode == STRATEGY_DDP)
        json_object_set_new(object, "last_bucket_bytes",
                            json_real(scaling_last_bucket_bytes(run->model)));
    return object;
}

/* One more measurement of case `nth` of a run. */
static void add_value(study *s, int run, size_t nth, double bytes, double seconds)
{
    json_t *cases = json_array_get(s->cases, (size_t)run);
    if (nth == json_array_size(cases))
        json_array_append_new(cases, case_create(&s->plan.runs[run], bytes));
    json_array_append_new(json_object_get(json_array_get(cases, nth), "values_s"),
                          report_number(seconds, DIGITS));
}

/* In place: training's gradients lie in the group's memory, too. */
static status take_all_reduce(study *s, int run, const json_t *line, char *figure)
{
    const json_t *rows = json_object_get(line, "rows"), *row;
    size_t i;
    if (json_array_size(rows) == 0)
        return FAIL(STATUS_PEER, "its JSON line has no rows");
    json_array_foreach(rows, i, row)
    {
        const json_t *time = json_object_get(row, "in_place");
        const json_t *us = json_object_get(time, "median_us");
        double bytes = json_number_value(json_object_get(row, "bytes"));
        double seconds =
            json_number_value(us != NULL ? us : json_object_get(time, "time_us")) * 1e-6;
        if (!(seconds > 0) || !(bytes > 0))
            return FAIL(STATUS_PEER, "its JSON line has a row without bytes or a time");
        add_value(s, run, i, bytes, seconds);
    }
    snprintf(figure, BENCH_FIGURE_BYTES, "%zu sizes", json_array_size(rows));
    return STATUS_OK;
}

static status take_step(study *s, int i, const json_t *line, char *figure)
{
    bench_sample got;
    const bench_case *run = &s->plan.runs[i];
    TRY(bench_sample_read(line, (int)s->opts->bench.warmup, run->global_batch, &got));
    double forward = got.phase_s[MOMENT_FORWARD], backward = got.phase_s[MOMENT_BACKWARD];
    if (run->world == 1 && forward + backward > 0) {
        s->forward_s[run->model] += forward;
        s->backward_s[run->model] += backward;
    }
    snprintf(figure, BENCH_FIGURE_BYTES, "%.3f ms a step", got.step_s * 1e3);
    add_value(s, i, 0, scaling_bytes(run), got.step_s);
    return STATUS_OK;
}

static status take_line(void *ctx, int i, int repeat, const json_t *line,
                        char figure[BENCH_FIGURE_BYTES])
{
    study *s = ctx;
    (void)repeat;
    return s->plan.runs[i].is_all_reduce ? take_all_reduce(s, i, line, figure)
                                         : take_step(s, i, line, figure);
}

static void make_all_reduce(const options *opts, const bench_case *run, bench_words *out)
{
    /* from latency alone to more than the gradients of both models */
    *out = (bench_words){.n = 0};
    bench_words_split(out,
                      "/proc/self/exe bench all-reduce --json --quiet -b 256 -e 8M -f 4 -n 15 -w 3 "
                      "--nproc-per-node=%d --device=%s --backend=%s --timeout=%lld",
                      run->world, opts->device, opts->backend, (long long)opts->timeout);
    if (opts->nccl_nvls)
        bench_words_add(out, "--nccl-nvls");
}

static void make_command(void *ctx, int i, char name[BENCH_CASE_BYTES], bench_words *out)
{
    study *s = ctx;
    const bench_case *run = &s->plan.runs[i];
    if (run->is_all_reduce) {
        snprintf(name, BENCH_CASE_BYTES, "all-reduce, %d ranks", run->world);
        make_all_reduce(s->opts, run, out);
        return;
    }
    snprintf(name, BENCH_CASE_BYTES, "%s, %s, %d %s%s of %d images", name_of(run),
             model_kind_name(run->model), run->world, strategy_about(run->mode)->unit,
             run->world == 1 ? "" : "s", run->batch);
    bench_commands_make(&s->commands, run, out);
}

static void say_failed(void *ctx, int i, const char *name)
{
    (void)i;
    report_say(((study *)ctx)->document, REPORT_NOTES, "left out: %s: %s", name, status_text());
}

/* The case's median and its interval, in its JSON and in its table's last row. */
static status summarise(json_t *one, json_t *table, bool is_step)
{
    const json_t *values = json_object_get(one, "values_s"), *value;
    size_t i, n = json_array_size(values);
    double *seconds = calloc(n, sizeof *seconds);
    if (seconds == NULL)
        return FAIL(STATUS_NO_MEMORY, "%zu measurements", n);
    json_array_foreach(values, i, value) seconds[i] = json_number_value(value);
    bench_summary found = bench_stats_summary(seconds, (int)n);
    report_set_number(one, "median_s", found.median, DIGITS);
    report_set_number(one, "low_s", found.low, DIGITS);
    report_set_number(one, "high_s", found.high, DIGITS);
    table_cell(table, "%zu", n);
    table_number(table, found.median * (is_step ? 1e3 : 1e6));
    if (is_step)
        table_interval(table, found.low * 1e3, found.high * 1e3);
    free(seconds);
    return STATUS_OK;
}

/* What the times depend on, and is not of one case. */
static json_t *settings_json(const study *s)
{
    json_t *share = json_object();
    for (int i = 0; i < MODEL_COUNT; i++)
        if (s->forward_s[i] + s->backward_s[i] > 0)
            report_set_number(share, model_kind_name((model_kind)i),
                              s->backward_s[i] / (s->forward_s[i] + s->backward_s[i]), 4);
    return json_pack("{s:i, s:I, s:s, s:b, s:o}", "cores", s->plan.cores, "threads",
                     (json_int_t)s->opts->threads, "backend", s->opts->backend, "overlap",
                     (int)s->opts->overlap, "backward_share", share);
}

/* Adds the tables and the cases to the document. */
static status tell(study *s)
{
    static const char *const step_columns[] = {"mode", "model", "ranks",         "images per rank",
                                               "n",    "ms",    "95 % interval", NULL};
    static const char *const sum_columns[] = {"ranks", "bytes", "n", "us", NULL};
    json_t *cases = json_array(), *one;
    json_t *steps = report_table(s->document, "Steps", step_columns);
    json_t *sums = report_table(s->document, "All-reduces", sum_columns);
    json_object_set_new(s->document, "settings", settings_json(s));
    json_object_set_new(s->document, "cases", cases);
    for (int run = 0; run < s->plan.n_runs; run++) {
        const bench_case *r = &s->plan.runs[run];
        json_t *table = r->is_all_reduce ? sums : steps;
        size_t i;
        json_array_foreach(json_array_get(s->cases, (size_t)run), i, one)
        {
            s->has_steps = s->has_steps || !r->is_all_reduce;
            json_array_append(cases, one);
            table_row(table);
            if (!r->is_all_reduce) {
                table_cell(table, "%s", name_of(r));
                table_cell(table, "%s", model_kind_name(r->model));
            }
            table_cell(table, "%d", r->world);
            table_cell(table, "%.0f",
                       r->is_all_reduce ? json_number_value(json_object_get(one, "bytes"))
                                        : r->batch);
            TRY(summarise(one, table, !r->is_all_reduce));
        }
    }
    return STATUS_OK;
}

static status prepare(bench_study *all, void *self)
{
    study *s = self;
    s->document = all->document;
    TRY(scaling_plan_make(s->opts, &s->plan));
    return bench_commands_init(s->opts, s->plan.gpus > 0, all->place.folder, &s->commands);
}

static status measure(bench_study *all, void *self)
{
    study *s = self;
    report_say(s->document, REPORT_LIMITS, "Above %d ranks, ranks share cores.", s->plan.cores);
    s->cases = json_array();
    for (int i = 0; i < s->plan.n_runs; i++)
        json_array_append_new(s->cases, json_array());
    TRY(bench_measure(&(bench_measurement){s->plan.n_runs, (int)s->opts->bench.repeats, s,
                                           make_command, take_line, say_failed, !s->opts->quiet},
                      &all->place));
    if (bench_child_stopped(&all->place))
        report_say(s->document, REPORT_NOTES, "stopped: this is what was measured so far");
    TRY(tell(s));
    report_say(s->document, s->has_steps ? REPORT_SUMMARY : REPORT_NOTES,
               s->has_steps ? "bench/scaling.py of the sources fits a cost model to the figures, "
                              "and projects it"
                            : "no steps of training were measured");
    return STATUS_OK;
}

int scaling_command(const options *opts, int argc, char **argv)
{
    static const bench_plan plan = {
        "What scaling costs", CHILD_TIMEOUT_MS, EXIT_CODE_CHECKPOINT, false, prepare, measure};
    study s = {.opts = opts};
    int exit_code = bench_study_run(&plan, &s, opts, argc, argv);
    json_decref(s.cases);
    return exit_code == EXIT_SUCCESS && !s.has_steps ? EXIT_CODE_INTERNAL : exit_code;
}
