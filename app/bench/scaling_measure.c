/* The measurements of bench scaling: children, repeated in turn. */
#include "app/bench/scaling.h"

#include "app/bench/commands.h"
#include "app/bench/measure.h"
#include "app/report/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* From latency alone to more than the gradients of both models. */
static const char *const ALL_REDUCE[] = {"/proc/self/exe",
                                         "bench",
                                         "all-reduce",
                                         "--json",
                                         "--quiet",
                                         "-b",
                                         "256",
                                         "-e",
                                         "8M",
                                         "-f",
                                         "4",
                                         "-n",
                                         "15",
                                         "-w",
                                         "3"};

static bool is_same(const cost_sample *a, const cost_sample *b)
{
    return a->kind == b->kind && a->model == b->model && a->ranks == b->ranks &&
           fabs(a->images - b->images) < 0.5 && fabs(a->bytes - b->bytes) < 0.5;
}

static status find_series(scaling_measurements *m, const cost_sample *sample, scaling_series **out)
{
    for (size_t i = 0; i < m->n; i++)
        if (is_same(&m->series[i].sample, sample)) {
            *out = &m->series[i];
            return STATUS_OK;
        }
    if (m->n == m->room) {
        size_t room = m->room > 0 ? 2 * m->room : 64;
        scaling_series *more = realloc(m->series, room * sizeof *more);
        if (more == NULL)
            return FAIL(STATUS_NO_MEMORY, "%zu series of measurements", room);
        m->series = more;
        m->room = room;
    }
    *out = &m->series[m->n++];
    **out = (scaling_series){.sample = *sample};
    return STATUS_OK;
}

status scaling_add(scaling_measurements *m, const cost_sample *sample, double seconds)
{
    scaling_series *series = NULL;
    TRY(find_series(m, sample, &series));
    if (series->n == series->room) {
        int room = series->room > 0 ? 2 * series->room : 8;
        double *more = realloc(series->values, (size_t)room * sizeof *more);
        if (more == NULL)
            return FAIL(STATUS_NO_MEMORY, "%d measurements", room);
        series->values = more;
        series->room = room;
    }
    series->values[series->n++] = seconds;
    series->summary = bench_stats_summary(series->values, series->n);
    series->sample.seconds = series->summary.median;
    return STATUS_OK;
}

void scaling_measurements_free(scaling_measurements *m)
{
    for (size_t i = 0; i < m->n; i++)
        free(m->series[i].values);
    free(m->series);
    *m = (scaling_measurements){.series = NULL};
}

status scaling_samples(const scaling_measurements *m, cost_sample **out)
{
    cost_sample *samples = calloc(m->n > 0 ? m->n : 1, sizeof *samples);
    if (samples == NULL)
        return FAIL(STATUS_NO_MEMORY, "%zu samples", m->n);
    for (size_t i = 0; i < m->n; i++)
        samples[i] = m->series[i].sample;
    *out = samples;
    return STATUS_OK;
}

static void make_all_reduce(const options *opts, const scaling_run *run, bench_words *out)
{
    *out = (bench_words){.n = 0};
    for (size_t i = 0; i < sizeof ALL_REDUCE / sizeof ALL_REDUCE[0]; i++)
        bench_words_add(out, "%s", ALL_REDUCE[i]);
    bench_words_add(out, "--nproc-per-node=%d", run->ranks);
    bench_words_add(out, "--device=%s", opts->device);
    bench_words_add(out, "--backend=%s", opts->backend);
    if (opts->nccl_nvls)
        bench_words_add(out, "--nccl-nvls");
    bench_words_add(out, "--timeout=%lld", (long long)opts->timeout);
}

static void make_step(const bench_commands *commands, const scaling_run *run, bench_words *out)
{
    bench_case step = {.mode = scaling_kind_mode(run->kind),
                       .world = run->ranks,
                       .model = model_kind_name(run->model),
                       .global_batch = run->batch * run->ranks};
    bench_commands_make(commands, &step, out);
}

/* What is measured, and where figures go. */
typedef struct target {
    const options *opts;
    const scaling_plan *plan;
    bench_commands commands;
    scaling_measurements *out;
    json_t *document;
} target;

/* In place: training's gradients lie in the group's memory, too. */
static status take_all_reduce(target *t, const scaling_run *run, const json_t *line, char *figure)
{
    const json_t *rows = json_object_get(line, "rows"), *row;
    size_t i;
    if (json_array_size(rows) == 0)
        return FAIL(STATUS_PEER, "its JSON line has no rows");
    json_array_foreach(rows, i, row)
    {
        const json_t *time = json_object_get(row, "in_place");
        const json_t *us = json_object_get(time, "median_us");
        cost_sample sample = scaling_plan_sample(t->plan, run);
        sample.bytes = json_number_value(json_object_get(row, "bytes"));
        double seconds =
            json_number_value(us != NULL ? us : json_object_get(time, "time_us")) * 1e-6;
        if (!(seconds > 0) || !(sample.bytes > 0))
            return FAIL(STATUS_PEER, "its JSON line has a row without bytes or a time");
        TRY(scaling_add(t->out, &sample, seconds));
    }
    snprintf(figure, BENCH_FIGURE_BYTES, "%zu sizes", json_array_size(rows));
    return STATUS_OK;
}

static status take_step(target *t, const scaling_run *run, const json_t *line, char *figure)
{
    bench_sample got;
    cost_sample sample = scaling_plan_sample(t->plan, run);
    TRY(bench_sample_read(line, (int)t->opts->warmup, run->batch * run->ranks, &got));
    double forward = got.phase_s[MOMENT_FORWARD], backward = got.phase_s[MOMENT_BACKWARD];
    if (run->ranks == 1 && forward + backward > 0) {
        t->out->forward_s[run->model] += forward;
        t->out->backward_s[run->model] += backward;
    }
    snprintf(figure, BENCH_FIGURE_BYTES, "%.3f ms a step", got.step_s * 1e3);
    return scaling_add(t->out, &sample, got.step_s);
}

static void name_run(const scaling_run *run, char out[BENCH_CASE_BYTES])
{
    if (run->kind == COST_SAMPLE_ALL_REDUCE)
        snprintf(out, BENCH_CASE_BYTES, "all-reduce, %d ranks", run->ranks);
    else
        snprintf(out, BENCH_CASE_BYTES, "%s, %s, %d %s%s of %d images",
                 scaling_kind_name(run->kind), model_kind_name(run->model), run->ranks,
                 strategy_about(scaling_kind_mode(run->kind))->unit, run->ranks == 1 ? "" : "s",
                 run->batch);
}

static void make_command(void *ctx, int i, char name[BENCH_CASE_BYTES], bench_words *out)
{
    target *t = ctx;
    const scaling_run *run = &t->plan->runs[i];
    name_run(run, name);
    if (run->kind == COST_SAMPLE_ALL_REDUCE)
        make_all_reduce(t->opts, run, out);
    else
        make_step(&t->commands, run, out);
}

static status take_line(void *ctx, int i, int repeat, const json_t *line,
                        char figure[BENCH_FIGURE_BYTES])
{
    target *t = ctx;
    const scaling_run *run = &t->plan->runs[i];
    (void)repeat;
    return run->kind == COST_SAMPLE_ALL_REDUCE ? take_all_reduce(t, run, line, figure)
                                               : take_step(t, run, line, figure);
}

static void say_failed(void *ctx, int i, const char *name)
{
    (void)i;
    report_say(((target *)ctx)->document, REPORT_NOTES, "left out: %s: %s", name, status_text());
}

status scaling_measure(const options *opts, const scaling_plan *plan, bench_child *place,
                       json_t *document, scaling_measurements *out)
{
    target t = {.opts = opts, .plan = plan, .out = out, .document = document};
    TRY(bench_commands_init(opts, plan->gpus > 0, place->folder, &t.commands));
    t.commands.steps = plan->steps;
    return bench_measure(&(bench_measurement){plan->n_runs, (int)plan->repeats, &t, make_command,
                                              take_line, say_failed, !opts->quiet},
                         place);
}
