#include "app/bench/why.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

enum { CLAUSE_BYTES = 190, MAX_CAUSES = 12, MAX_CLAUSES = 2 };

/* Shares of the step from which on something is a cause. */
static const double NOTABLE = 0.10; /* of communication, waiting, data and the optimizer */
static const double LISTED = 0.02;  /* of a part in an enumeration */
static const double HIDDEN = 0.80;  /* of the all-reduce that backward covers */
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

__attribute__((format(printf, 3, 4))) static void add(causes *all, double share, const char *fmt,
                                                      ...)
{
    va_list args;
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

/* "broadcast 20 %, reduce 12 %": the phases in order of their size. */
static void list_parts(const bench_facts *f, const moment *parts, int n, char *out,
                       size_t size_bytes)
{
    bool told[N_PHASES] = {false};
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
                              moment_about(parts[best])->name, percent(part));
        used += length > 0 ? (size_t)length : 0;
    }
}

/* DP's master and the parameter server: all traffic goes through one, which steps alone. */
static void find_master(const bench_facts *f, causes *all)
{
    static const moment parts[] = {MOMENT_BROADCAST, MOMENT_SCATTER, MOMENT_GATHER, MOMENT_REDUCE};
    char list[120];
    double traffic = 0, step = share(f, MOMENT_OPTIMIZER);
    for (int i = 0; i < 4; i++)
        traffic += share(f, parts[i]);
    list_parts(f, parts, 4, list, sizeof list);
    if (traffic >= NOTABLE)
        add(all, traffic, "traffic through the master takes %d %% of the step while %ss wait (%s)",
            percent(traffic), strategy_about(f->mode)->unit, list);
    if (step >= NOTABLE)
        add(all, step, "the optimizer runs on the master alone, %d %% of the step", percent(step));
}

static void find_ddp(const bench_facts *f, causes *all)
{
    double step = share(f, MOMENT_OPTIMIZER), exposed = share(f, MOMENT_REDUCE);
    double waited = f->phase_s[MOMENT_REDUCE] + f->phase_s[MOMENT_WAITING];
    double covered = 1 - waited / f->comm_total_s;
    if (step >= NOTABLE)
        add(all, step,
            "every rank does the whole optimizer step, %d %% that more ranks do not shorten",
            percent(step));
    if (exposed >= NOTABLE)
        add(all, exposed, "the all-reduce takes %d %% of the step that backward does not hide",
            percent(exposed));
    if (covered >= HIDDEN && f->comm_total_s / f->step_s >= LISTED) /* said if nothing costs more */
        add(all, 0.5 * NOTABLE, "the all-reduce is hidden by backward (%d %% of its %.2g ms)",
            percent(covered), 1e3 * f->comm_total_s);
}

/* Forward and backward take longer per image than on one device alone. */
static void find_slow_compute(const bench_facts *f, causes *all)
{
    double compute = share(f, MOMENT_FORWARD) + share(f, MOMENT_BACKWARD);
    int images = (f->global_batch + f->world - 1) / f->world; /* at rank 0, or the master */
    double own = (f->phase_s[MOMENT_FORWARD] + f->phase_s[MOMENT_BACKWARD]) / images;
    double times = f->world > 1 && f->base_compute_s > 0 ? own / f->base_compute_s : 0;
    double part = (1 - 1 / times) * compute;
    if (!(times >= SLOWER))
        return;
    if (!f->is_cuda && f->world * f->threads > f->cores)
        add(all, part,
            "%d %ss share %d core%s: forward and backward take %.1f times as long per image",
            f->world, strategy_about(f->mode)->unit, f->cores, f->cores == 1 ? "" : "s", times);
    else if (images < f->base_batch)
        add(all, part,
            "only %d images at a time: forward and backward take %.1f times as long per image as "
            "%d at once",
            images, times, f->base_batch);
    else
        add(all, part,
            "forward and backward take %.1f times as long per image as on one device alone: "
            "caches and memory are shared",
            times);
}

static void find_causes(const bench_facts *f, causes *all)
{
    double graph = share(f, MOMENT_ACCELERATOR), waiting = share(f, MOMENT_WAITING);
    double data = share(f, MOMENT_LOAD);
    double compute = share(f, MOMENT_FORWARD) + share(f, MOMENT_BACKWARD);
    if (graph >= 0.5)
        add(all, graph,
            "%d %% of the step is one recorded graph on the GPU, whose parts are not told apart",
            percent(graph));
    if (f->world > 1 && strategy_about(f->mode)->is_central)
        find_master(f, all);
    if (f->world > 1 && f->mode == STRATEGY_DDP)
        find_ddp(f, all);
    if (waiting >= NOTABLE)
        add(all, waiting, "%s waits %d %% of the step for slower %ss",
            f->mode == STRATEGY_DP ? "the master" : "rank 0", percent(waiting),
            strategy_about(f->mode)->unit);
    find_slow_compute(f, all);
    if (data >= NOTABLE)
        add(all, data, "the next batch is waited for: %d %% of the step", percent(data));
    if (compute > 0) /* said if there is no other cause */
        add(all, 0.01, "forward and backward are %d %% of the step", percent(compute));
    else
        add(all, 0.01, "nothing that is known of it takes 10 %% of the step");
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
    size_t used = 0;
    for (int n = 0; n < MAX_CLAUSES; n++) {
        cause *best = &all.list[0];
        for (int i = 1; i < all.n; i++)
            if (all.list[i].share > best->share)
                best = &all.list[i];
        if (n > 0 && best->share < 0.5 * NOTABLE)
            break;
        int length =
            snprintf(out + used, BENCH_WHY_BYTES - used, "%s%s", n > 0 ? "; " : "", best->clause);
        used += length > 0 ? (size_t)length : 0;
        best->share = 0;
    }
}
