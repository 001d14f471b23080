#include "app/bench/bench_why.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { CLAUSE_BYTES = 190, MAX_CLAUSES = 2 };

/* Shares of the step from which on something is a cause. */
static const double NOTABLE = 0.10; /* of communication, waiting, data and the optimizer */
static const double LISTED = 0.02;  /* of a part in an enumeration */
static const double HIDDEN = 0.80;  /* of the all-reduce that backward covers */
static const double SLOWER = 1.25;  /* times as long per image as on one device alone */

static double share(const bench_facts *f, bench_phase phase)
{
    double value = f->phase_s[phase] / f->step_s;
    return isfinite(value) ? value : 0;
}

static int percent(double part)
{
    return (int)lround(100 * part);
}

static bool has_master(const bench_facts *f)
{
    return (f->mode == BENCH_DP || f->mode == BENCH_PS) && f->world > 1;
}

/* "broadcast 20 %, reduce 12 %": the parts in order of their size. */
static void list_parts(const bench_facts *f, const bench_phase *parts, int n, char *out,
                       size_t size_bytes)
{
    bool told[BENCH_PHASES] = {false};
    size_t used = 0;
    out[0] = '\0';
    for (int k = 0; k < n; k++) {
        int best = -1;
        for (int i = 0; i < n; i++)
            if (!told[parts[i]] && (best < 0 || share(f, parts[i]) > share(f, parts[best])))
                best = i;
        told[parts[best]] = true;
        double part = share(f, parts[best]);
        if (part < LISTED || used >= size_bytes)
            break;
        int length = snprintf(out + used, size_bytes - used, "%s%s %d %%", used > 0 ? ", " : "",
                              bench_phase_name(parts[best]), percent(part));
        used += length > 0 ? (size_t)length : 0;
    }
}

/* Every rule returns the share of the step that it explains, 0 where it does not apply, and then
 * has written its clause. */
typedef double (*rule_fn)(const bench_facts *f, char *out);

static double unknown(const bench_facts *f, char *out)
{
    double known = 0;
    for (int p = 0; p < BENCH_PHASES; p++)
        known += share(f, (bench_phase)p);
    if (known > 0)
        return 0;
    snprintf(out, CLAUSE_BYTES, "where its time goes is not known: it reports no phases");
    return 1;
}

static double one_graph(const bench_facts *f, char *out)
{
    double part = share(f, BENCH_ACCELERATOR);
    if (part < 0.5)
        return 0;
    snprintf(out, CLAUSE_BYTES,
             "%d %% of the step is one recorded graph on the GPU, whose parts "
             "are not told apart",
             percent(part));
    return part;
}

static double master_traffic(const bench_facts *f, char *out)
{
    static const bench_phase parts[] = {BENCH_BROADCAST, BENCH_SCATTER, BENCH_GATHER, BENCH_REDUCE};
    char list[120];
    double sum = 0;
    for (int i = 0; i < 4; i++)
        sum += share(f, parts[i]);
    if (!has_master(f) || sum < NOTABLE)
        return 0;
    list_parts(f, parts, 4, list, sizeof list);
    snprintf(out, CLAUSE_BYTES,
             "traffic through the master takes %d %% of the step while %s "
             "wait (%s)",
             percent(sum), f->mode == BENCH_DP ? "replicas" : "ranks", list);
    return sum;
}

static double master_steps(const bench_facts *f, char *out)
{
    double part = share(f, BENCH_OPTIMIZER);
    if (!has_master(f) || part < NOTABLE)
        return 0;
    snprintf(out, CLAUSE_BYTES, "the optimizer runs on the master alone, %d %% of the step",
             percent(part));
    return part;
}

static double repeated_step(const bench_facts *f, char *out)
{
    double part = share(f, BENCH_OPTIMIZER);
    if (f->mode != BENCH_DDP || f->world < 2 || part < NOTABLE)
        return 0;
    snprintf(out, CLAUSE_BYTES,
             "every rank does the whole optimizer step, %d %% that more ranks "
             "do not shorten",
             percent(part));
    return part;
}

static double exposed(const bench_facts *f, char *out)
{
    double part = share(f, BENCH_REDUCE);
    if (f->mode != BENCH_DDP || f->world < 2 || part < NOTABLE)
        return 0;
    snprintf(out, CLAUSE_BYTES,
             "the all-reduce takes %d %% of the step beyond what backward "
             "hides",
             percent(part));
    return part;
}

static double hidden(const bench_facts *f, char *out)
{
    double covered = 1 - f->phase_s[BENCH_REDUCE] / f->comm_total_s;
    double part = f->comm_total_s / f->step_s;
    if (f->mode != BENCH_DDP || f->world < 2 || !(covered >= HIDDEN) || !(part >= LISTED))
        return 0;
    snprintf(out, CLAUSE_BYTES, "the all-reduce is hidden behind backward (%d %% of its %.2g ms)",
             percent(covered), 1e3 * f->comm_total_s);
    return 0.5 * NOTABLE; /* no cost: said where nothing costs more */
}

static double waiting(const bench_facts *f, char *out)
{
    double part = share(f, BENCH_WAITING);
    if (part < NOTABLE)
        return 0;
    snprintf(out, CLAUSE_BYTES, "%s waits %d %% of the step for slower %s",
             f->mode == BENCH_DP ? "the master" : "rank 0", percent(part),
             f->mode == BENCH_DP ? "replicas" : "ranks");
    return part;
}

/* How many times as long forward and backward of one image take as on one device alone. */
static double slower(const bench_facts *f)
{
    double images = ceil((double)f->global_batch / f->world); /* at rank 0, or the master */
    double own = (f->phase_s[BENCH_FORWARD] + f->phase_s[BENCH_BACKWARD]) / images;
    return f->world > 1 && f->base_compute_s > 0 ? own / f->base_compute_s : (double)NAN;
}

static double compute_share(const bench_facts *f)
{
    return share(f, BENCH_FORWARD) + share(f, BENCH_BACKWARD);
}

static bool shares_cores(const bench_facts *f)
{
    return !f->is_cuda && f->world * f->threads > f->cores;
}

static double shared_cores(const bench_facts *f, char *out)
{
    double times = slower(f);
    if (!(times >= SLOWER) || !shares_cores(f))
        return 0;
    snprintf(out, CLAUSE_BYTES,
             "%d %s share %d core%s: forward and backward take %.1f times as "
             "long per image",
             f->world, f->mode == BENCH_DP ? "replicas" : "ranks", f->cores,
             f->cores == 1 ? "" : "s", times);
    return (1 - 1 / times) * compute_share(f);
}

static double small_batches(const bench_facts *f, char *out)
{
    double times = slower(f);
    int images = (f->global_batch + f->world - 1) / f->world;
    if (!(times >= SLOWER) || shares_cores(f) || images >= f->base_batch)
        return 0;
    snprintf(out, CLAUSE_BYTES,
             "only %d images at a time: forward and backward take %.1f times "
             "as long per image as %d at once",
             images, times, f->base_batch);
    return (1 - 1 / times) * compute_share(f);
}

static double crowded(const bench_facts *f, char *out)
{
    double times = slower(f);
    int images = (f->global_batch + f->world - 1) / f->world;
    if (!(times >= SLOWER) || shares_cores(f) || images < f->base_batch)
        return 0;
    snprintf(out, CLAUSE_BYTES,
             "forward and backward take %.1f times as long per image as on one "
             "device alone: caches and memory are shared",
             times);
    return (1 - 1 / times) * compute_share(f);
}

static double slow_data(const bench_facts *f, char *out)
{
    double part = share(f, BENCH_DATA);
    if (part < NOTABLE)
        return 0;
    snprintf(out, CLAUSE_BYTES, "the next batch is waited for: %d %% of the step", percent(part));
    return part;
}

static double compute(const bench_facts *f, char *out)
{
    double part = compute_share(f);
    if (part <= 0)
        snprintf(out, CLAUSE_BYTES, "nothing that is known of it takes 10 %% of the step");
    else
        snprintf(out, CLAUSE_BYTES, "forward and backward are %d %% of the step", percent(part));
    return 0.01; /* said where there is no other cause */
}

static const struct {
    rule_fn apply;
    const char *words;
} RULES[] = {
    {unknown, "no phase is known: that is said, and nothing else"},
    {one_graph, "accelerator >= 50 % of the step: a recorded graph hides the phases"},
    {master_traffic, "dp, ps: broadcast + scatter + gather + reduce >= 10 % of the step: traffic "
                     "through the master"},
    {master_steps, "dp, ps: optimizer >= 10 %: the master steps alone"},
    {repeated_step, "ddp: optimizer >= 10 %: every rank does the whole step"},
    {exposed, "ddp: reduce >= 10 %: the all-reduce that backward does not hide"},
    {hidden, "ddp: at least 80 % of the all-reduce hidden, and it is >= 2 % of the step: said "
             "behind what costs more"},
    {waiting, "waiting >= 10 %: the others are slower"},
    {shared_cores, "forward and backward take >= 1.25 times as long per image as on one device "
                   "alone, and ranks x threads > cores: cores are shared"},
    {small_batches, "as long as that, with enough cores and fewer images at a time: small batches"},
    {crowded, "as long as that, with enough cores and as many images: caches and memory are "
              "shared"},
    {slow_data, "data >= 10 %: the next batch is waited for"},
    {compute, "none of these: the share of forward and backward"},
};
enum { COUNT = sizeof RULES / sizeof RULES[0] };

const char *bench_why_rule(int i)
{
    return i >= 0 && i < COUNT ? RULES[i].words : NULL;
}

void bench_why(const bench_facts *facts, char out[BENCH_WHY_BYTES])
{
    char clauses[COUNT][CLAUSE_BYTES];
    double shares[COUNT];
    size_t used = 0;
    out[0] = '\0';
    for (int i = 0; i < COUNT; i++)
        shares[i] = RULES[i].apply(facts, clauses[i]);
    for (int n = 0; n < MAX_CLAUSES; n++) {
        int best = 0;
        for (int i = 1; i < COUNT; i++)
            if (shares[i] > shares[best])
                best = i;
        if (shares[best] <= 0 || (n > 0 && shares[best] < 0.5 * NOTABLE))
            break;
        int length =
            snprintf(out + used, BENCH_WHY_BYTES - used, "%s%s", n > 0 ? "; " : "", clauses[best]);
        used += length > 0 ? (size_t)length : 0;
        shares[best] = 0;
        if (best == 0) /* unknown */
            break;
    }
}
