/* mnist_ddp bench dp-vs-ddp: DataParallel beside DistributedDataParallel, and why a run is as fast
 * as it is. And bench modes: what each mode takes and gives beside ddp. */
#include "app/bench/bench.h"

#include "app/common/device_list.h"
#include "app/common/exit_codes.h"
#include "app/common/json_value.h"
#include "app/report/report.h"
#include "base/log.h"
#include "base/thread.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CLAUSE_BYTES = 190, MAX_CAUSES = 12, MAX_CLAUSES = 2 };

/* Shares of the step from which on something is a cause. */
static const double NOTABLE = 0.10; /* for communication, waiting, data and the optimizer */
static const double LISTED = 0.02;  /* for a part in an enumeration */
static const double HIDDEN = 0.80;  /* the share of the all-reduce that backward covers */
static const double SLOWER = 1.25;  /* times as long per image as on one device alone */

/* What explains a share of the step. */
typedef struct cause {
    double share;
    char clause[CLAUSE_BYTES];
} cause;

typedef struct causes {
    cause list[MAX_CAUSES];
    int n;
} causes;

/* Of a share of `least` or more. */
__attribute__((format(printf, 4, 5))) static void add(causes *all, double least, double share,
                                                      const char *fmt, ...)
{
    va_list args;
    if (share < least)
        return;
    cause *c = &all->list[all->n++];
    c->share = share;
    va_start(args, fmt);
    vsnprintf(c->clause, sizeof c->clause, fmt, args);
    va_end(args);
}

/* 0 if it is not known. */
static double share(const bench_facts *f, moment phase)
{
    double value = f->phase_s[phase] / f->step_s;
    return isfinite(value) ? value : 0;
}

static int percent(double part)
{
    return (int)lround(100 * part);
}

/* Of all traffic through a master. */
static const moment MASTER[] = {MOMENT_BROADCAST, MOMENT_SCATTER, MOMENT_GATHER, MOMENT_REDUCE};
enum { N_MASTER = sizeof MASTER / sizeof MASTER[0], LIST_BYTES = 120 };

/* "broadcast 20 %, reduce 12 %": in order of their size. */
static void list_traffic(const bench_facts *f, char out[LIST_BYTES])
{
    bool told[N_PHASES] = {false};
    out[0] = '\0';
    for (int k = 0; k < N_MASTER; k++) {
        int best = -1;
        for (int i = 0; i < N_MASTER; i++)
            if (!told[i] && (best < 0 || share(f, MASTER[i]) > share(f, MASTER[best])))
                best = i;
        told[best] = true;
        double part = share(f, MASTER[best]);
        size_t used = strlen(out);
        if (part >= LISTED)
            snprintf(out + used, LIST_BYTES - used, "%s%s %d %%", used > 0 ? ", " : "",
                     moment_about(MASTER[best])->name, percent(part));
    }
}

/* DP's master and the parameter server: all traffic goes through one, which steps alone. */
static void find_master(const bench_facts *f, causes *all)
{
    char list[LIST_BYTES];
    double traffic = 0, step = share(f, MOMENT_OPTIMIZER);
    for (int i = 0; i < N_MASTER; i++)
        traffic += share(f, MASTER[i]);
    list_traffic(f, list);
    add(all, NOTABLE, traffic,
        "traffic through the master takes %d %% of the step while %ss wait (%s)", percent(traffic),
        strategy_about(f->mode)->unit, list);
    add(all, NOTABLE, step, "the optimizer runs on the master alone, %d %% of the step",
        percent(step));
}

static void find_ddp(const bench_facts *f, causes *all)
{
    double step = share(f, MOMENT_OPTIMIZER), exposed = share(f, MOMENT_REDUCE);
    double waited = f->phase_s[MOMENT_REDUCE] + f->phase_s[MOMENT_WAITING];
    double covered = 1 - waited / f->comm_total_s;
    add(all, NOTABLE, step,
        "every rank does the whole optimizer step, %d %% that more ranks do not shorten",
        percent(step));
    add(all, NOTABLE, exposed, "the all-reduce takes %d %% of the step that backward does not hide",
        percent(exposed));
    if (covered >= HIDDEN && f->comm_total_s / f->step_s >= LISTED) /* said if nothing costs more */
        add(all, 0, 0.5 * NOTABLE, "the all-reduce is hidden by backward (%d %% of its %.2g ms)",
            percent(covered), 1e3 * f->comm_total_s);
}

/* Forward and backward take longer per image than on one device alone. */
static void find_slow_compute(const bench_facts *f, causes *all)
{
    double compute = share(f, MOMENT_FORWARD) + share(f, MOMENT_BACKWARD);
    const strategy_facts *how = strategy_about(f->mode);
    int parts = how->cuts_model ? 1 : f->world;
    int images = (f->global_batch + parts - 1) / parts; /* at rank 0, or the master */
    double own = (f->phase_s[MOMENT_FORWARD] + f->phase_s[MOMENT_BACKWARD]) / images;
    double times = f->world > 1 && f->base_compute_s > 0 ? own / f->base_compute_s : 0;
    double part = (1 - 1 / times) * compute;
    if (!(times >= SLOWER))
        return;
    if (!f->is_cuda && f->world * f->threads > f->cores)
        add(all, 0, part,
            "%d %ss share %d core%s: forward and backward take %.1f times as long per image",
            f->world, how->unit, f->cores, f->cores == 1 ? "" : "s", times);
    else if (images < f->base_batch)
        add(all, 0, part,
            "only %d images at a time: forward and backward take %.1f times as long per image as "
            "%d at once",
            images, times, f->base_batch);
    else
        add(all, 0, part,
            "forward and backward take %.1f times as long per image as on one device alone: "
            "caches and memory are shared",
            times);
}

static void find_causes(const bench_facts *f, causes *all)
{
    double graph = share(f, MOMENT_ACCELERATOR), waiting = share(f, MOMENT_WAITING);
    double data = share(f, MOMENT_LOAD);
    double compute = share(f, MOMENT_FORWARD) + share(f, MOMENT_BACKWARD);
    add(all, 0.5, graph,
        "%d %% of the step is one recorded graph on the GPU, whose parts are not told apart",
        percent(graph));
    if (f->world > 1 && strategy_about(f->mode)->is_central)
        find_master(f, all);
    if (f->world > 1 && f->mode == STRATEGY_DDP)
        find_ddp(f, all);
    add(all, NOTABLE, waiting, "%s waits %d %% of the step for slower %ss",
        f->mode == STRATEGY_DP ? "the master" : "rank 0", percent(waiting),
        strategy_about(f->mode)->unit);
    find_slow_compute(f, all);
    add(all, NOTABLE, data, "the next batch is waited for: %d %% of the step", percent(data));
    if (compute > 0) /* said if there is no other cause */
        add(all, 0, 0.01, "forward and backward are %d %% of the step", percent(compute));
    else
        add(all, 0, 0.01, "nothing that is known of it takes 10 %% of the step");
}

static const char *const RULES[] = {
    "no phase is known: that is said, and nothing else",
    "accelerator >= 50 % of the step: a recorded graph hides the phases",
    "dp, ps: broadcast + scatter + gather + reduce >= 10 % of the step: traffic through the master",
    "dp, ps: optimizer >= 10 %: the master steps alone",
    "ddp: optimizer >= 10 %: every rank does the whole step",
    "ddp: reduce >= 10 %: the all-reduce that backward does not hide",
    "ddp: at least 80 % of the all-reduce hidden, and it is >= 2 % of the step: said after what "
    "costs more",
    "waiting >= 10 %: the others are slower",
    "forward and backward take >= 1.25 times as long per image as on one device alone, and ranks x "
    "threads > cores: cores are shared",
    "as long as that, with enough cores and fewer images at a time: small batches",
    "as long as that, with enough cores and as many images: caches and memory are shared",
    "data >= 10 %: the next batch is waited for",
    "none of these: the share of forward and backward",
};
enum { N_RULES = sizeof RULES / sizeof RULES[0] };

const char *bench_why_rule(int i)
{
    return i >= 0 && i < N_RULES ? RULES[i] : NULL;
}

void bench_why(const bench_facts *facts, char out[BENCH_WHY_BYTES])
{
    causes all = {.n = 0};
    double known = 0;
    for (int p = 0; p < N_PHASES; p++)
        known += share(facts, (moment)p);
    if (known <= 0) {
        snprintf(out, BENCH_WHY_BYTES, "where its time goes is not known: it reports no phases");
        return;
    }
    find_causes(facts, &all);
    out[0] = '\0';
    for (int n = 0; n < MAX_CLAUSES; n++) {
        cause *best = &all.list[0];
        for (int i = 1; i < all.n; i++)
            if (all.list[i].share > best->share)
                best = &all.list[i];
        if (n > 0 && best->share < 0.5 * NOTABLE)
            break;
        size_t used = strlen(out);
        snprintf(out + used, BENCH_WHY_BYTES - used, "%s%s", n > 0 ? "; " : "", best->clause);
        best->share = 0;
    }
}

enum { MAX_VALUES = 4096 }; /* for one median: repeats beyond it are not looked at */

status bench_rows_create(const bench_cases *cases, int repeats, bench_rows *out)
{
    size_t n = (size_t)cases->count, each = (size_t)repeats;
    *out = (bench_rows){.cases = cases, .repeats = repeats, .threads = 1, .cores = cores_count()};
    out->list = calloc(n, sizeof *out->list);
    out->samples = calloc(n * each, sizeof *out->samples);
    if (out->list == NULL || out->samples == NULL) {
        bench_rows_free(out);
        return FAIL(STATUS_NO_MEMORY, "%zu rows of %d samples", n, repeats);
    }
    for (size_t i = 0; i < n; i++)
        out->list[i] = (bench_row){.c = &cases->list[i], .samples = out->samples + i * each};
    return STATUS_OK;
}

void bench_rows_free(bench_rows *rows)
{
    free(rows->samples);
    free(rows->list);
    *rows = (bench_rows){.list = NULL};
}

int bench_row_samples(const bench_rows *rows, int row)
{
    int n = 0;
    for (int r = 0; r < rows->repeats; r++)
        n += rows->list[row].samples[r].counts;
    return n;
}

static double field_of(const bench_sample *sample, size_t field)
{
    double value;
    memcpy(&value, (const char *)sample + field, sizeof value);
    return value;
}

/* Its share of the sample's step. */
static double share_of(const bench_sample *sample, size_t field)
{
    return field_of(sample, field) / sample->whole_step_s;
}

/* What the known phases add up to, as a share of the sample's step; NAN if none is known. */
static double phases_of(const bench_sample *sample, size_t field)
{
    (void)field;
    double sum = (double)NAN;
    for (int p = 0; p < N_PHASES; p++)
        if (isfinite(sample->phase_s[p]))
            sum = (isfinite(sum) ? sum : 0) + sample->phase_s[p];
    return sum / sample->whole_step_s;
}

/* What is known of a row's samples. */
static bench_summary summarize(const bench_rows *rows, int row,
                               double (*value_of)(const bench_sample *, size_t), size_t field)
{
    const bench_row *in = &rows->list[row];
    double values[MAX_VALUES];
    int n = 0;
    for (int r = 0; r < rows->repeats && n < MAX_VALUES; r++) {
        double value = in->samples[r].counts ? value_of(&in->samples[r], field) : (double)NAN;
        if (isfinite(value))
            values[n++] = value;
    }
    return bench_stats_summary(values, n);
}

double bench_row_median(const bench_rows *rows, int row, size_t field)
{
    return summarize(rows, row, field_of, field).median;
}

/* Traffic of a step, in bytes. */
static const struct {
    const char *key;
    size_t field;
} BYTES[] = {{"sent", BENCH_FIELD(sent_bytes)},
             {"received", BENCH_FIELD(received_bytes)},
             {"sent_busiest", BENCH_FIELD(sent_busiest_bytes)},
             {"received_busiest", BENCH_FIELD(received_busiest_bytes)}};
enum { N_BYTES = sizeof BYTES / sizeof BYTES[0], BUSIEST = 2 };

/* What a row has come to: medians of its runs; NAN: not known. */
typedef struct figures {
    const bench_rows *rows;
    int at; /* in them */
    const bench_row *row;
    const bench_case *c;
    bench_summary speed;         /* images per second */
    double step_s, whole_step_s; /* without, and with the warm-up */
    double phase_s[N_PHASES];    /* parts of whole_step_s, as are the two below */
    double comm_total_s, comm_exposed_s;
    double phase_share; /* how much of the step the phases of a run add up to */
    double bytes[N_BYTES];
    double peak_mib; /* the largest of a device */
    double train_loss;
} figures;

/* Seconds of a step that are this field's: the median of its shares in each run, times the median
 * step. A slow run has the same shares as a fast one, so this is steadier than the median of
 * seconds. */
static double part_of(const figures *f, size_t field)
{
    return summarize(f->rows, f->at, share_of, field).median * f->whole_step_s;
}

/* All phases, scaled to add up as they do in a run: medians alone need not. */
static void set_phases(figures *f)
{
    double sum = 0;
    f->phase_share = summarize(f->rows, f->at, phases_of, 0).median;
    for (int p = 0; p < N_PHASES; p++) {
        f->phase_s[p] = part_of(f, BENCH_FIELD(phase_s) + (size_t)p * sizeof(double));
        sum += isfinite(f->phase_s[p]) ? f->phase_s[p] : 0;
    }
    double scale = sum > 0 ? f->phase_share * f->whole_step_s / sum : 1;
    for (int p = 0; p < N_PHASES; p++)
        f->phase_s[p] *= scale;
}

static figures figures_of(const bench_rows *rows, int row)
{
    const bench_row *in = &rows->list[row];
    figures f = {.rows = rows, .at = row, .row = in, .c = in->c, .peak_mib = (double)NAN};
    f.speed = summarize(rows, row, field_of, BENCH_FIELD(images_per_s));
    f.step_s = bench_row_median(rows, row, BENCH_FIELD(step_s));
    f.train_loss = bench_row_median(rows, row, BENCH_FIELD(train_loss));
    f.whole_step_s = bench_row_median(rows, row, BENCH_FIELD(whole_step_s));
    f.comm_total_s = part_of(&f, BENCH_FIELD(comm_total_s));
    f.comm_exposed_s = part_of(&f, BENCH_FIELD(comm_exposed_s));
    set_phases(&f);
    for (size_t i = 0; i < N_BYTES; i++)
        f.bytes[i] = bench_row_median(rows, row, BYTES[i].field);
    for (int r = 0; r < rows->repeats; r++)
        for (int d = 0; in->samples[r].counts && d < in->samples[r].peak_mib_count; d++)
            f.peak_mib = fmax(f.peak_mib, in->samples[r].peak_mib[d]); /* passes over NAN */
    return f;
}

/* Images per second of row a through those of row b, pair by pair of the same repeat. */
static bench_summary ratio_of(const bench_rows *rows, int a, int b)
{
    const bench_row *above = &rows->list[a], *below = &rows->list[b];
    double values[MAX_VALUES];
    int n = 0;
    for (int r = 0; r < rows->repeats && n < MAX_VALUES; r++)
        if (above->samples[r].counts && below->samples[r].counts)
            values[n++] = above->samples[r].images_per_s / below->samples[r].images_per_s;
    return bench_stats_summary(values, n);
}

/* Its speed through that of as many devices that each work as fast as the one alone; NAN if
 * nothing was measured on one. */
static double efficiency_of(const figures *f)
{
    int base = bench_cases_base(f->rows->cases, f->at);
    return base < 0 || base == f->at ? (double)NAN
                                     : ratio_of(f->rows, f->at, base).median / f->c->world;
}

/* The row of ddp that a row is compared with: of as many devices if there is one, else the first
 * with its batch; -1: none. */
static int ddp_beside(const figures *f)
{
    const bench_cases *cases = f->rows->cases;
    int found = bench_cases_find(cases, f->at, f->c->torch, STRATEGY_DDP);
    for (int i = 0; i < cases->count && found < 0; i++) {
        const bench_case *other = &cases->list[i];
        if (other->mode == STRATEGY_DDP && other->variant == 0 && other->torch == f->c->torch &&
            other->model == f->c->model && other->global_batch == f->c->global_batch)
            found = i;
    }
    return found;
}

/* Its images per second through ddp's, pair by pair. */
static bench_summary times_ddp(const figures *f)
{
    int ddp = ddp_beside(f);
    return ddp >= 0 ? ratio_of(f->rows, f->at, ddp) : bench_stats_summary(NULL, 0);
}

static double loss_beside_ddp(const figures *f)
{
    int ddp = ddp_beside(f);
    return ddp >= 0 ? f->train_loss - figures_of(f->rows, ddp).train_loss : (double)NAN;
}

static void explain(const figures *f, char out[BENCH_WHY_BYTES])
{
    int base = bench_cases_base(f->rows->cases, f->at);
    bench_facts facts = {
        .mode = f->c->mode,
        .world = f->c->world,
        .global_batch = f->c->global_batch,
        .threads = f->rows->threads,
        .cores = f->rows->cores,
        .is_cuda = f->rows->is_cuda,
        .step_s = f->whole_step_s,
        .comm_total_s = f->comm_total_s,
        .base_compute_s = (double)NAN,
    };
    memcpy(facts.phase_s, f->phase_s, sizeof facts.phase_s);
    if (base >= 0) {
        figures alone = figures_of(f->rows, base);
        facts.base_batch = alone.c->global_batch;
        facts.base_compute_s =
            (alone.phase_s[MOMENT_FORWARD] + alone.phase_s[MOMENT_BACKWARD]) / facts.base_batch;
    }
    bench_why(&facts, out);
}

/* The figures as JSON, and the tables and sentences of the report. */
enum { INTERVAL_BYTES = 96, DIGITS = 5, LOSS_DIGITS = 7 };

static const double MEBIBYTE = 1048576.0;

static const char *scaling_of(const bench_case *c)
{
    return c->strong && c->weak ? "both" : c->strong ? "strong" : "weak";
}

static json_t *known(double value)
{
    return report_number(value, DIGITS);
}

/* Images per second: the summary and every sample, null for a repeat without one. */
static json_t *speed_json(const figures *f)
{
    const bench_summary *s = &f->speed;
    json_t *values = json_array(), *outliers = json_array();
    for (int i = 0; i < f->rows->repeats; i++) {
        double value = f->row->samples[i].counts ? f->row->samples[i].images_per_s : (double)NAN;
        json_array_append_new(values, known(value));
        if (f->row->samples[i].counts && bench_stats_is_outlier(s, value))
            json_array_append_new(outliers, known(value));
    }
    return json_pack("{s:i, s:o, s:o, s:o, s:o, s:o, s:o}", "n", s->n, "median", known(s->median),
                     "low", known(s->low), "high", known(s->high), "coverage", known(s->coverage),
                     "values", values, "outliers", outliers);
}

static json_t *times_ddp_json(const figures *f)
{
    const bench_summary s = times_ddp(f);
    return json_pack("{s:i, s:o, s:o, s:o}", "pairs", s.n, "median", known(s.median), "low",
                     known(s.low), "high", known(s.high));
}

static json_t *phases_json(const figures *f)
{
    json_t *object = json_object();
    for (int p = 0; p < N_PHASES; p++)
        report_set_number(object, moment_about((moment)p)->name, 1e3 * f->phase_s[p], DIGITS);
    return object;
}

static json_t *bytes_json(const figures *f)
{
    json_t *object = json_object();
    for (size_t i = 0; i < N_BYTES; i++)
        report_set_number(object, BYTES[i].key, f->bytes[i], DIGITS);
    return object;
}

/* Of the last sample, as it came. */
static json_t *peaks_json(const figures *f)
{
    json_t *list = json_array();
    int last = f->rows->repeats - 1;
    while (last >= 0 && !f->row->samples[last].counts)
        last--;
    for (int d = 0; last >= 0 && d < f->row->samples[last].peak_mib_count; d++)
        json_array_append_new(list, known(f->row->samples[last].peak_mib[d]));
    return list;
}

static json_t *row_json(const bench_rows *rows, int row)
{
    const figures f = figures_of(rows, row);
    const bench_case *c = f.c;
    double efficiency = efficiency_of(&f);
    char why[BENCH_WHY_BYTES];
    explain(&f, why);
    json_t *object = json_pack("{s:s, s:s, s:i, s:s, s:i, s:i, s:s}", "system",
                               c->torch ? "torch" : "mnist_ddp", "mode", bench_case_mode(c).name,
                               "world", c->world, "model", model_kind_name(c->model), "batch",
                               c->batch, "global_batch", c->global_batch, "scaling", scaling_of(c));
    const struct {
        const char *key;
        json_t *value;
    } entries[] = {
        {"images_per_s", speed_json(&f)},
        {"step_ms", known(1e3 * f.step_s)},
        {"step_ms_with_warmup", known(1e3 * f.whole_step_s)},
        {"phases_ms", phases_json(&f)},
        {"phases_share_of_step", known(f.phase_share)},
        {"comm_total_ms", known(1e3 * f.comm_total_s)},
        {"comm_exposed_ms", known(1e3 * f.comm_exposed_s)},
        {"bytes_per_step", bytes_json(&f)},
        {"peak_mib", peaks_json(&f)},
        {"efficiency_strong", known(c->strong ? efficiency : (double)NAN)},
        {"efficiency_weak", known(c->weak ? efficiency : (double)NAN)},
        {"test_acc", known(bench_row_median(rows, row, BENCH_FIELD(test_acc)))},
        {"last_loss", known(bench_row_median(rows, row, BENCH_FIELD(last_loss)))},
        {"train_loss", report_number(f.train_loss, LOSS_DIGITS)},
        {"train_loss_minus_ddp", known(loss_beside_ddp(&f))},
        {"state_mib", known(bench_row_median(rows, row, BENCH_FIELD(state_mib)))},
        {"times_ddp", times_ddp_json(&f)},
        {"advice", c->torch ? json_null() : json_string(bench_case_mode(c).advice)},
        {"why", f.speed.n > 0 ? json_string(why) : json_null()},
        {"failure", f.row->failure[0] != '\0' ? json_string(f.row->failure) : json_null()},
        {"command", json_string(f.row->command)},
    };
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++)
        json_object_set_new(object, entries[i].key, entries[i].value);
    return object;
}

/* Heads of the cells that say which row it is. */
#define WHICH "mode x devices", "model", "global batch"

/* Images per second, and false if there is no sample: then a note says why. */
static bool add_images(const figures *f, json_t *table)
{
    char note[BENCH_FAILURE_BYTES + 64];
    if (f->speed.n > 0) {
        table_number(table, f->speed.median);
        table_interval(table, f->speed.low, f->speed.high);
        return true;
    }
    snprintf(note, sizeof note, "not measured: %s",
             f->row->failure[0] != '\0' ? f->row->failure : "stopped before its turn");
    table_note(table, note);
    return false;
}

static void add_speed(const figures *f, json_t *table)
{
    char note[BENCH_WHY_BYTES];
    table_cell(table, "%s", scaling_of(f->c));
    if (!add_images(f, table))
        return;
    table_number(table, 1e3 * f->step_s);
    table_number(table, 100 * efficiency_of(f));
    explain(f, note);
    table_note(table, note);
}

static void add_beside_ddp(const figures *f, json_t *table)
{
    if (!add_images(f, table))
        return;
    table_number(table, times_ddp(f).median);
    table_number(table, 1e3 * f->comm_exposed_s);
    table_number(table, 100 * f->comm_exposed_s / f->whole_step_s);
    if (!f->c->torch)
        table_note(table, bench_case_mode(f->c).advice);
}

/* "%.6f" and the like; nothing if the value is not known. */
static void add_known(json_t *table, const char *digits, double value)
{
    char text[INTERVAL_BYTES] = "";
    if (isfinite(value))
        snprintf(text, sizeof text, digits, value);
    table_cell(table, "%s", text);
}

static void add_cost(const figures *f, json_t *table)
{
    char note[BENCH_WHY_BYTES];
    double state = bench_row_median(f->rows, f->at, BENCH_FIELD(state_mib));
    table_number(table, (f->bytes[0] + f->bytes[1]) / MEBIBYTE);
    table_number(table, (f->bytes[BUSIEST] + f->bytes[BUSIEST + 1]) / MEBIBYTE);
    table_number(table, f->peak_mib);
    add_known(table, "%.6f", f->train_loss);
    add_known(table, "%.2g", loss_beside_ddp(f));
    explain(f, note);
    if (isfinite(state))
        snprintf(note, sizeof note,
                 "parameters, gradients and optimizer state are %.2f MiB on the fullest rank",
                 state);
    table_note(table, note);
}

/* What a rank does itself, and what it says or hears: a table each. */
static void add_work(const figures *f, json_t *table)
{
    static const moment phases[] = {MOMENT_LOAD, MOMENT_FORWARD, MOMENT_BACKWARD, MOMENT_OPTIMIZER,
                                    MOMENT_ACCELERATOR};
    for (int i = 0; i < (f->rows->is_cuda ? 5 : 4); i++)
        table_number(table, 1e3 * f->phase_s[phases[i]]);
    table_number(table, 1e3 * f->whole_step_s);
}

static void add_talk(const figures *f, json_t *table)
{
    static const moment phases[] = {MOMENT_BROADCAST, MOMENT_SCATTER, MOMENT_GATHER, MOMENT_REDUCE,
                                    MOMENT_WAITING};
    for (int i = 0; i < 5; i++)
        table_number(table, 1e3 * f->phase_s[phases[i]]);
    table_number(table, 1e3 * f->comm_total_s);
}

static void add_traffic(const figures *f, json_t *table)
{
    for (size_t i = 0; i < N_BYTES; i++)
        table_number(table, f->bytes[i] / MEBIBYTE);
    table_number(table, f->peak_mib);
}

static bool has_phases(const figures *f)
{
    return isfinite(f->phase_share);
}

/* Which rows a table has. */
typedef enum table_rows { ALL, SAMPLES, PHASES, PHASES_OF_HOST, PHASES_OF_GPU, TRAFFIC } table_rows;

static bool has(const figures *f, table_rows which)
{
    if (which == SAMPLES)
        return f->speed.n > 0;
    if (which == TRAFFIC)
        return isfinite(f->bytes[0]) || isfinite(f->peak_mib);
    bool here = which != (f->rows->is_cuda ? PHASES_OF_HOST : PHASES_OF_GPU);
    return which == ALL || (here && has_phases(f));
}

#define DP_VS_DDP "dp-vs-ddp"
#define MODES "modes"
#define WHERE "Where a step goes, warm-up epochs included, ms on rank 0 or the master"

/* One of the document's tables: the rows that have something to say in it. */
static const struct {
    const char *title;
    const char *columns[20];
    table_rows has;
    void (*add)(const figures *f, json_t *table); /* the cells after those of WHICH */
    const char *benchmark;                        /* that alone has it; NULL: both */
} TABLES[] = {
    {"Beside ddp, and when to take it",
     {WHICH, "images/s", "95 % interval", "times ddp's", "exposed ms", "% of step"},
     ALL,
     add_beside_ddp,
     MODES},
    {"What a step sends and gets, a device holds, and training has lost; and why so fast",
     {WHICH, "MiB at rank 0", "at the busiest", "peak MiB", "loss", "minus ddp's"},
     SAMPLES,
     add_cost,
     MODES},
    {"Speed, and why",
     {WHICH, "scaling", "images/s", "95 % interval", "step ms", "efficiency %, median of pairs"},
     ALL,
     add_speed,
     DP_VS_DDP},
    {WHERE,
     {WHICH, "data", "forward", "backward", "optimizer", "step, warm-up included"},
     PHASES_OF_HOST,
     add_work,
     NULL},
    {WHERE,
     {WHICH, "data", "forward", "backward", "optimizer", "accelerator", "step, warm-up included"},
     PHASES_OF_GPU,
     add_work,
     NULL},
    {"Communication in it, and waiting for others, ms",
     {WHICH, "broadcast", "scatter", "gather", "reduce", "waiting", "all, hidden too"},
     PHASES,
     add_talk,
     NULL},
    {"Traffic of a step and memory, MiB",
     {WHICH, "rank 0 sends", "receives", "busiest sends", "receives", "peak of a device"},
     TRAFFIC,
     add_traffic,
     DP_VS_DDP},
};

static const char *benchmark_of(const json_t *document)
{
    return json_string_value(json_object_get(document, "benchmark"));
}

/* A table without rows is left out. */
static void add_tables(json_t *document, const bench_rows *rows)
{
    const char *benchmark = benchmark_of(document);
    for (size_t t = 0; t < sizeof TABLES / sizeof TABLES[0]; t++) {
        json_t *table = NULL;
        for (int i = 0; i < rows->cases->count; i++) {
            const figures f = figures_of(rows, i);
            if (!has(&f, TABLES[t].has) ||
                (TABLES[t].benchmark != NULL && strcmp(TABLES[t].benchmark, benchmark) != 0))
                continue;
            if (table == NULL)
                table = report_table(document, TABLES[t].title, TABLES[t].columns);
            table_row(table);
            table_cell(table, "%s%s x %d", f.c->torch ? "torch " : "", bench_case_mode(f.c).name,
                       f.c->world);
            table_cell(table, "%s", model_kind_name(f.c->model));
            table_cell(table, "%d", f.c->global_batch);
            TABLES[t].add(&f, table);
        }
    }
}

/* "1.53 times as fast as" or "0.8 times as fast as", with what it rests on. */
static void say_ratio(json_t *document, const bench_rows *rows, int a, int b)
{
    char name[BENCH_CASE_BYTES], other[BENCH_CASE_BYTES];
    char interval[INTERVAL_BYTES] = ", too few for an interval";
    bench_summary s = ratio_of(rows, a, b);
    if (s.n == 0)
        return;
    bench_case_name(rows->list[a].c, name);
    bench_case_name(rows->list[b].c, other);
    if (s.n >= BENCH_STATS_MIN)
        snprintf(interval, sizeof interval, ", %.0f %% interval %.2f to %.2f", 100 * s.coverage,
                 s.low, s.high);
    report_say(document, REPORT_SUMMARY, "%s: %.2f times the images per second of %s (%d pair%s%s)",
               name, s.median, other, s.n, s.n == 1 ? "" : "s", interval);
}

/* Ours against PyTorch's, and ddp against the modes that go through a master. */
static void say_ratios(json_t *document, const bench_rows *rows)
{
    for (int i = 0; i < rows->cases->count; i++) {
        const bench_case *c = rows->list[i].c;
        bool is_mode = c->variant == 0,
             compares = is_mode && c->mode == STRATEGY_DDP && c->world > 1;
        const int others[] = {
            compares ? bench_cases_find(rows->cases, i, c->torch, STRATEGY_DP) : -1,
            compares ? bench_cases_find(rows->cases, i, c->torch, STRATEGY_PS) : -1,
            is_mode && !c->torch ? bench_cases_find(rows->cases, i, true, c->mode) : -1};
        for (int k = 0; k < 3; k++)
            if (others[k] >= 0)
                say_ratio(document, rows, i, others[k]);
    }
}

/* What is odd about the rows. */
static void say_notes(json_t *document, const bench_rows *rows, const json_t *notes)
{
    char name[BENCH_CASE_BYTES];
    const json_t *text;
    size_t k;
    json_array_foreach(notes, k, text)
        report_say(document, REPORT_NOTES, "%s", json_string_value(text));
    for (int i = 0; i < rows->cases->count; i++) {
        const bench_row *r = &rows->list[i];
        const figures f = figures_of(rows, i);
        const bench_summary s = f.speed;
        bench_case_name(r->c, name);
        if (has_phases(&f) && fabs(f.phase_share - 1) > 0.05)
            report_say(document, REPORT_NOTES, "%s: its phases add up to %.0f %% of the step", name,
                       100 * f.phase_share);
        if (s.n > 0 && r->failure[0] != '\0')
            report_say(document, REPORT_NOTES, "%s: a run does not count: %s", name, r->failure);
        if (s.n > 0 && s.n < rows->repeats)
            report_say(document, REPORT_NOTES, "%s: the median is of %d run%s", name, s.n,
                       s.n == 1 ? "" : "s");
        if (s.outliers > 0)
            report_say(document, REPORT_NOTES,
                       "%s: %d of %d runs are outliers; they stay in the median", name, s.outliers,
                       s.n);
    }
}

static void say_limits(const bench_commands *commands, const bench_rows *rows, json_t *document)
{
    long long warmup = commands->opts->bench.warmup;
    report_say(document, REPORT_LIMITS,
               "dp's replicas are threads of one process without an interpreter's lock: "
               "here dp loses to ddp by its traffic and its master, not by Python's lock");
    if (!rows->is_cuda)
        report_say(document, REPORT_LIMITS,
                   "on the CPU all devices are threads or processes of one machine with "
                   "%d core%s: beyond as many devices nothing can get faster, and what is "
                   "copied between devices goes through the same memory",
                   rows->cores, rows->cores == 1 ? "" : "s");
    report_say(document, REPORT_LIMITS,
               "figures are medians of %d run%s, or as a note says; speed is of the epochs after "
               "%lld warm-up epoch%s of each; phases, traffic and communication are means over all "
               "epochs of a run",
               rows->repeats, rows->repeats == 1 ? "" : "s", warmup, warmup == 1 ? "" : "s");
    report_say(document, REPORT_LIMITS,
               "an interval holds the median of all runs there could be with at least "
               "95 %% probability (order statistics, no distribution assumed); it knows "
               "nothing of other machines, or of this one on another day");
    if (strcmp(benchmark_of(document), MODES) == 0)
        report_say(
            document, REPORT_LIMITS,
            "loss is the mean over all images of the last epoch, each in its own step: modes "
            "that do the same work differ from ddp by rounding, until it turns a ReLU or a "
            "maximum over; then by more. PyTorch draws other masks of dropout, and is "
            "compared with its own ddp");
    for (int i = 0; bench_why_rule(i) != NULL; i++)
        report_say(document, REPORT_LIMITS, "rule %d for the sentence below a row: %s", i + 1,
                   bench_why_rule(i));
}

static json_t *settings_json(const bench_commands *commands, const bench_rows *rows)
{
    const options *o = commands->opts;
    json_t *data = commands->is_mnist ? json_value_text(commands->data)
                                      : json_string("embedded digits, not MNIST");
    return json_pack("{s:i, s:I, s:I, s:i, s:s, s:s, s:s, s:o, s:I, s:o}", "repeats", rows->repeats,
                     "warmup_epochs", (json_int_t)o->bench.warmup, "steps_per_epoch",
                     (json_int_t)o->bench.steps, "threads", rows->threads, "device", o->device,
                     "backend", o->backend, "optimizer", o->optimizer, "lr", known(commands->lr),
                     "seed", (json_int_t)o->seed, "data", data);
}

void dp_vs_ddp_document(const bench_commands *commands, const bench_rows *rows, const json_t *notes,
                        json_t *document)
{
    json_t *list = json_array();
    for (int i = 0; i < rows->cases->count; i++)
        json_array_append_new(list, row_json(rows, i));
    json_object_set_new(document, "settings", settings_json(commands, rows));
    json_object_set_new(document, "rows", list);
    add_tables(document, rows);
    say_ratios(document, rows);
    say_notes(document, rows, notes);
    say_limits(commands, rows, document);
}

/* Three plots for every model, batch and kind of scaling: speed, where a step goes, traffic. */
enum { NAME_BYTES = 96, TEXT_BYTES = 256, PLOT_DIGITS = 6 };

/* One set of plots. */
typedef struct view {
    const bench_rows *rows;
    model_kind model;
    int batch;
    bool weak;
    json_t *document;
} view;

static bool is_in(const view *v, int row)
{
    const bench_case *c = v->rows->list[row].c;
    return c->model == v->model && c->batch == v->batch && (v->weak ? c->weak : c->strong) &&
           bench_row_samples(v->rows, row) > 0;
}

static json_t *new_plot(const view *v, const char *what, const char *title, const char *y)
{
    char name[NAME_BYTES], text[TEXT_BYTES];
    snprintf(name, sizeof name, "%s-%s-%s-%d-%s", benchmark_of(v->document), what,
             model_kind_name(v->model), v->batch, v->weak ? "weak" : "strong");
    snprintf(text, sizeof text, "%s: %s, %d images per step%s", title, model_kind_name(v->model),
             v->batch,
             v->weak ? " on each device (weak scaling)"
                     : ", shared by all devices (strong scaling)");
    json_t *plot = report_plot(v->document, name, text);
    json_object_set_new(plot, "y", json_string(y));
    return plot;
}

/* A value of a row with the ends of its interval; all NAN if it is not known. */
typedef bench_summary value_fn(const figures *f);

static bench_summary speed_of(const figures *f)
{
    return f->speed;
}

static bench_summary traffic_of(const figures *f)
{
    return (bench_summary){.median = (f->bytes[BUSIEST] + f->bytes[BUSIEST + 1]) / MEBIBYTE,
                           .low = (double)NAN,
                           .high = (double)NAN};
}

/* The curve over the world sizes of `like`'s mode, if it has points. */
static void add_mode(const view *v, json_t *plot, const bench_case *like, value_fn *value)
{
    char name[NAME_BYTES];
    json_t *series = NULL;
    int colour = like->variant > 0 ? STRATEGY_COUNT + like->variant - 1 : (int)like->mode;
    snprintf(name, sizeof name, "%s%s", like->torch ? "torch " : "", bench_case_mode(like).name);
    for (int i = 0; i < v->rows->cases->count; i++) {
        const bench_case *c = v->rows->list[i].c;
        if (!is_in(v, i) || c->torch != like->torch || c->mode != like->mode ||
            c->variant != like->variant)
            continue;
        const figures f = figures_of(v->rows, i);
        const bench_summary s = value(&f);
        if (!isfinite(s.median))
            continue;
        if (series == NULL) {
            series = report_series(plot, name);
            json_object_set_new(series, "colour", json_integer(colour));
            json_object_set_new(series, "dashed", json_boolean(like->torch));
        }
        json_array_append_new(
            json_object_get(series, "points"),
            json_pack("[i, o, o, o]", c->world, report_number(s.median, PLOT_DIGITS),
                      report_number(s.low, PLOT_DIGITS), report_number(s.high, PLOT_DIGITS)));
    }
}

static void plot_modes(const view *v, value_fn *value, const char *what, const char *title,
                       const char *y)
{
    json_t *plot = new_plot(v, what, title, y);
    json_object_set_new(plot, "x", json_string("devices"));
    json_object_set_new(plot, "x_axis", json_string("log2"));
    for (int torch = 0; torch < 2; torch++)
        for (int mode = 0; mode < STRATEGY_COUNT; mode++)
            for (int variant = 0; variant <= BENCH_VARIANTS; variant++) {
                bench_case like = {
                    .torch = torch != 0, .mode = (strategy_kind)mode, .variant = variant};
                add_mode(v, plot, &like, value);
            }
}

/* One bar per row, in the order of the table, and in it what each phase adds. What is not known has
 * no height; a phase without any height is left out. */
static void plot_phases(const view *v)
{
    json_t *labels = json_array(), *points[N_PHASES];
    bool used[N_PHASES] = {false};
    json_t *plot = new_plot(v, "phases", "Where a step goes",
                            "ms per step, warm-up included, rank 0 or the master");
    json_object_set_new(plot, "labels", labels);
    for (int p = 0; p < N_PHASES; p++)
        points[p] = json_array();
    for (int i = 0; i < v->rows->cases->count; i++) {
        const figures f = figures_of(v->rows, i);
        if (!is_in(v, i) || !has_phases(&f))
            continue;
        json_array_append_new(labels, json_sprintf("%s%s x %d", f.c->torch ? "torch " : "",
                                                   bench_case_mode(f.c).name, f.c->world));
        for (int p = 0; p < N_PHASES; p++) {
            used[p] = used[p] || f.phase_s[p] > 0;
            json_array_append_new(points[p], report_number(1e3 * f.phase_s[p], PLOT_DIGITS));
        }
    }
    for (int p = 0; p < N_PHASES; p++) {
        if (used[p])
            json_object_set(report_series(plot, moment_about((moment)p)->name), "points",
                            points[p]);
        json_decref(points[p]);
    }
}

static bool has_rows(const view *v)
{
    for (int i = 0; i < v->rows->cases->count; i++)
        if (is_in(v, i))
            return true;
    return false;
}

void dp_vs_ddp_plots(const bench_rows *rows, json_t *document)
{
    for (int i = 0; i < rows->cases->count; i++) {
        const bench_case *c = rows->list[i].c;
        bool begins = i == 0 || c[-1].batch != c->batch || c[-1].model != c->model;
        for (int weak = 0; weak < 2 && begins; weak++) {
            view v = {rows, c->model, c->batch, weak != 0, document};
            if (!has_rows(&v))
                continue;
            plot_modes(&v, speed_of, "speed", "Images per second", "images per second");
            plot_phases(&v);
            plot_modes(&v, traffic_of, "traffic", "Bytes on the busiest device",
                       "MiB sent and received per step");
        }
    }
}

enum { CHILD_TIMEOUT_MS = 3600 * 1000 };

/* Below it a run has not learned, and its speed means nothing. */
static const double PEER_ACCURACY = 0.85;

/* A run of PyTorch that does not learn is not measured against. */
static status check_peer(const bench_sample *s)
{
    if (!isfinite(s->last_loss) || !(s->test_acc >= PEER_ACCURACY))
        return FAIL(STATUS_PEER, "does not count: loss %g, accuracy %.1f %% (at least %.0f %%)",
                    s->last_loss, 100 * s->test_acc, 100 * PEER_ACCURACY);
    return STATUS_OK;
}

/* What is measured, and where figures go. */
typedef struct target {
    const bench_commands *commands;
    bench_rows *rows;
} target;

static void make_command(void *ctx, int i, char name[BENCH_CASE_BYTES], bench_words *out)
{
    target *t = ctx;
    bench_row *row = &t->rows->list[i];
    bench_case_name(row->c, name);
    bench_commands_make(t->commands, row->c, out);
    bench_words_line(out, row->command, sizeof row->command);
}

static status take_sample(void *ctx, int i, int repeat, const json_t *line,
                          char figure[BENCH_FIGURE_BYTES])
{
    target *t = ctx;
    bench_row *row = &t->rows->list[i];
    bench_sample *sample = &row->samples[repeat];
    TRY(bench_sample_read(line, (int)t->commands->opts->bench.warmup, row->c->global_batch,
                          sample));
    if (row->c->torch) {
        TRY(check_peer(sample));
    } else {
        char folder[FILE_PATH_BYTES];
        TRY(file_join(t->commands->folder, "run", folder));
        sample->train_loss = bench_train_loss(folder);
    }
    sample->counts = true;
    snprintf(figure, BENCH_FIGURE_BYTES, "%.0f images/s", sample->images_per_s);
    return STATUS_OK;
}

static void note_failure(void *ctx, int i, const char *name)
{
    (void)name;
    bench_row *row = &((target *)ctx)->rows->list[i];
    snprintf(row->failure, sizeof row->failure, "%s", status_text());
}

status dp_vs_ddp_measure(const bench_commands *commands, bench_child *place, bench_rows *rows)
{
    target t = {commands, rows};
    return bench_measure(&(bench_measurement){rows->cases->count, rows->repeats, &t, make_command,
                                              take_sample, note_failure, !commands->opts->quiet},
                         place);
}

/* Everything that the command holds. */
typedef struct comparison {
    bench_cases cases;
    bench_rows rows;
    bench_commands commands;
    json_t *notes;
} comparison;

static status prepare(bench_study *s, void *self)
{
    comparison *c = self;
    int gpus = 0;
    TRY(device_list_count(s->opts, &gpus));
    TRY(bench_cases_make(s->opts, gpus > 0, &c->cases, c->notes));
    TRY(bench_rows_create(&c->cases, (int)s->opts->bench.repeats, &c->rows));
    TRY(bench_commands_init(s->opts, gpus > 0, s->place.folder, &c->commands));
    TRY(bench_commands_find(&c->commands));
    c->commands.evaluates = true;
    c->rows.threads = c->commands.threads;
    c->rows.is_cuda = gpus > 0;
    return bench_folder_make(s->opts, s->folder);
}

/* If no row has samples, the first failure is what is wrong. */
static status check_measured(const comparison *c, bool stopped)
{
    for (int i = 0; i < c->cases.count; i++)
        if (bench_row_samples(&c->rows, i) > 0)
            return STATUS_OK;
    if (stopped)
        return FAIL(STATUS_TIMEOUT, "stopped before anything was measured");
    return FAIL(STATUS_PEER, "nothing was measured: %s\n  it was: %s", c->rows.list[0].failure,
                c->rows.list[0].command);
}

static status measure(bench_study *s, void *self)
{
    comparison *c = self;
    LOG_I("%d cases x %d runs", c->cases.count, c->rows.repeats);
    TRY(dp_vs_ddp_measure(&c->commands, &s->place, &c->rows));
    bool stopped = bench_child_stopped(&s->place);
    TRY(check_measured(c, stopped));
    if (stopped)
        report_say(s->document, REPORT_NOTES,
                   "stopped by a signal: the figures are of the runs until then");
    json_object_set_new(s->document, "interrupted", json_boolean(stopped));
    dp_vs_ddp_document(&c->commands, &c->rows, c->notes, s->document);
    dp_vs_ddp_plots(&c->rows, s->document);
    return STATUS_OK;
}

int dp_vs_ddp_command(const options *opts, int argc, char **argv)
{
    const bench_plan plan = {strcmp(opts->benchmark, MODES) == 0
                                 ? "Every mode beside DistributedDataParallel"
                                 : "DataParallel beside DistributedDataParallel",
                             CHILD_TIMEOUT_MS,
                             EXIT_CODE_INTERNAL,
                             true,
                             prepare,
                             measure};
    comparison c = {.notes = json_array()};
    int exit_code = bench_study_run(&plan, &c, opts, argc, argv);
    bench_rows_free(&c.rows);
    bench_cases_free(&c.cases);
    json_decref(c.notes);
    return exit_code;
}
