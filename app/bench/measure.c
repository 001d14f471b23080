#include "app/bench/measure.h"

#include "app/common/terminal.h"
#include "base/clock.h"
#include "base/log.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_stats_quantile(const double *sorted, int n, double p)
{
    double at = p * (n - 1);
    int below = (int)floor(at);
    if (below >= n - 1)
        return sorted[n - 1];
    return sorted[below] + (at - below) * (sorted[below + 1] - sorted[below]);
}

double bench_stats_median(double *values, int n)
{
    if (n == 0)
        return (double)NAN;
    qsort(values, (size_t)n, sizeof *values, compare);
    return bench_stats_quantile(values, n, 0.5);
}

/* The probability that fewer than k of n samples lie below the true median, each with 1/2. */
static double chance_below(int n, int k)
{
    double sum = 0;
    for (int i = 0; i < k; i++)
        sum += exp(lgamma(n + 1.0) - lgamma(i + 1.0) - lgamma(n - i + 1.0) - n * log(2.0));
    return sum;
}

/* The k-th smallest and the k-th largest sample miss the true median on either side with the
 * probability that fewer than k samples lie there. The largest k whose interval holds 95 %. */
static void set_interval(const double *sorted, bench_summary *out)
{
    int k = 0;
    while (2 * (k + 1) <= out->n && 1 - 2 * chance_below(out->n, k + 1) >= 0.95)
        k++;
    out->low = out->high = out->coverage = (double)NAN;
    if (k == 0)
        return;
    out->low = sorted[k - 1];
    out->high = sorted[out->n - k];
    out->coverage = 1 - 2 * chance_below(out->n, k);
}

bool bench_stats_is_outlier(const bench_summary *summary, double value)
{
    return value < summary->low_fence || value > summary->high_fence;
}

bench_summary bench_stats_summary(double *values, int n)
{
    bench_summary s = {.n = n, .median = bench_stats_median(values, n)};
    s.low_fence = -HUGE_VAL;
    s.high_fence = HUGE_VAL;
    set_interval(values, &s);
    if (n < 4) /* quartiles of fewer are the samples themselves */
        return s;
    double q1 = bench_stats_quantile(values, n, 0.25), q3 = bench_stats_quantile(values, n, 0.75);
    s.low_fence = q1 - 1.5 * (q3 - q1);
    s.high_fence = q3 + 1.5 * (q3 - q1);
    for (int i = 0; i < n; i++)
        s.outliers += bench_stats_is_outlier(&s, values[i]);
    return s;
}

enum { GIVE_UP = 2 }; /* failures in a row: as often as a case is tried in vain */

/* A missing number is not known, and never 0. */
static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

static void read_peaks(const json_t *list, bench_sample *out)
{
    const json_t *value;
    size_t i;
    json_array_foreach(list, i, value) if (i < BENCH_MAX_DEVICES && json_is_number(value))
        out->peak_mib[out->peak_mib_count++] = json_number_value(value);
}

status bench_sample_read(const json_t *line, int warmup, int global_batch, bench_sample *out)
{
    const json_t *train_s = json_object_get(line, "train_s"), *value;
    size_t epochs = json_array_size(train_s), i;
    double images = number(line, "images_per_epoch"), all_s = 0, timed_s = 0;
    if (epochs <= (size_t)warmup || !(images > 0))
        return FAIL(STATUS_PEER, "its JSON line tells of %zu epochs, want more than %d", epochs,
                    warmup);
    json_array_foreach(train_s, i, value)
    {
        all_s += json_number_value(value);
        timed_s += i >= (size_t)warmup ? json_number_value(value) : 0;
    }
    if (!(timed_s > 0))
        return FAIL(STATUS_PEER, "its JSON line has an epoch that took no time");
    double steps = number(line, "steps"), timed = (double)(epochs - (size_t)warmup);
    double epoch_steps = ceil(images / global_batch);
    steps = steps > 0 ? steps : epoch_steps * (double)epochs;
    const json_t *phases = json_object_get(line, "phases"), *bytes = json_object_get(line, "bytes");
    bench_sample s = {
        .images_per_s = images * timed / timed_s,
        .step_s = timed_s / (epoch_steps * timed),
        .whole_step_s = all_s / steps,
        .comm_total_s = number(line, "comm_total") / steps,
        .comm_exposed_s = number(line, "comm_exposed") / steps,
        .sent_bytes = number(bytes, "sent"),
        .received_bytes = number(bytes, "received"),
        .sent_busiest_bytes = number(bytes, "sent_busiest"),
        .received_busiest_bytes = number(bytes, "received_busiest"),
        .test_acc = number(line, "test_acc"),
        .last_loss = number(line, "last_loss"),
    };
    for (int p = 0; p < N_PHASES; p++)
        s.phase_s[p] = number(phases, moment_about((moment)p)->name) / steps;
    read_peaks(json_object_get(line, "peak_mib"), &s);
    *out = s;
    return STATUS_OK;
}

/* How far the measuring is. */
typedef struct run_counter {
    int64_t started_ns;
    status_line line; /* whose lock what follows has */
    int done, all;
    char name[BENCH_CASE_BYTES]; /* of the run under way */
} run_counter;

/* What is left takes as long as what was done, run by run. */
static double left_s(const run_counter *p, int64_t now_ns)
{
    return clock_seconds(now_ns - p->started_ns) / p->done * (p->all - p->done);
}

enum { PASSED_PRIORITY = 1, BAR_PRIORITY, LEFT_PRIORITY, NAME_PRIORITY, RUN_PRIORITY };

static void tell(void *ctx, status_parts *out)
{
    run_counter *p = ctx;
    int64_t now_ns = clock_now_ns();
    status_parts_add(out, RUN_PRIORITY, "run %d/%d", p->done + 1, p->all);
    status_parts_add(out, NAME_PRIORITY, "%s", p->name);
    status_parts_add_time(out, PASSED_PRIORITY, clock_seconds(now_ns - p->started_ns), "passed");
    if (p->done > 0)
        status_parts_add_time(out, LEFT_PRIORITY, left_s(p, now_ns), "left");
    out->bar_priority = BAR_PRIORITY;
    out->done = (double)p->done / p->all;
}

static void counter_set(run_counter *p, int done, int all, const char *name)
{
    pthread_mutex_lock(&p->line.lock);
    p->done = done;
    p->all = all;
    snprintf(p->name, sizeof p->name, "%s", name);
    pthread_mutex_unlock(&p->line.lock);
}

status bench_measure(const bench_measurement *m, bench_child *place)
{
    char name[BENCH_CASE_BYTES], figure[BENCH_FIGURE_BYTES];
    int done = 0, all = m->cases * m->repeats, *failures = calloc((size_t)m->cases, sizeof(int));
    run_counter shown = {.started_ns = clock_now_ns(), .all = all};
    bool draws = m->shows && terminal_of(STDERR_FILENO).erases;
    bench_words words;
    if (failures == NULL)
        return FAIL(STATUS_NO_MEMORY, "%d cases", m->cases);
    status_line_open(draws ? STDERR_FILENO : -1, tell, &shown, &shown.line);
    for (int repeat = 0; repeat < m->repeats; repeat++)
        for (int i = 0; i < m->cases && !bench_child_stopped(place); i++) {
            if (failures[i] >= GIVE_UP)
                continue;
            json_t *line = NULL;
            m->command(m->ctx, i, name, &words);
            counter_set(&shown, done, all, name);
            status st = bench_child_run(place, &words, &line);
            if (st == STATUS_OK)
                st = m->take(m->ctx, i, repeat, line, figure);
            json_decref(line);
            if (bench_child_stopped(place))
                break;
            if (st != STATUS_OK) {
                bool gives_up = ++failures[i] >= GIVE_UP;
                all -= gives_up ? m->repeats - repeat : 1;
                LOG_W("%s: %s%s", name, status_text(), gives_up ? "; it is not tried again" : "");
                m->failed(m->ctx, i, name);
                continue;
            }
            failures[i] = 0;
            done++;
            counter_set(&shown, done, all, name);
            LOG_I("repeat %d of %d, run %d of %d: %s: %s; about %.0f s left", repeat + 1,
                  m->repeats, done, all, name, figure, left_s(&shown, clock_now_ns()));
        }
    status_line_close(&shown.line);
    free(failures);
    return STATUS_OK;
}
