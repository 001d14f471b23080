/* What DistributedSampler deals to each rank. */
#include "data/sampler.h"

#include "app/demo/demo.h"

#include <stdio.h>
#include <string.h>

enum { SAMPLES_MAX = 40, ROW_BYTES = 320 };

static sampler_options options_of(const demo *d, bool shuffle)
{
    return (sampler_options){.samples = (uint32_t)d->opts->sampler.samples,
                             .rank = d->rank,
                             .world_size = d->world_size,
                             .seed = (uint64_t)d->opts->seed,
                             .shuffle = shuffle,
                             .drop_last = d->opts->drop_last};
}

/* This rank's samples of an epoch, and how many of all are repeated. */
static status deal(const demo *d, int64_t epoch, bool shuffle, uint32_t *out, sampler_plan *plan)
{
    sampler_options how = options_of(d, shuffle);
    TRY(sampler_check(&how, plan));
    return sampler_indices(&how, epoch, out);
}

/* "rank 1 | 4 1 7* | 4": a star marks what only fills up. Index i of rank r is number
 * i * world_size + r of the epoch's order, whose last `padded` are repeated from its start. */
static void tell(demo *d, const uint32_t *indices, const sampler_plan *plan)
{
    char list[ROW_BYTES] = "";
    uint32_t total = plan->per_rank * (uint32_t)d->world_size;
    for (uint32_t i = 0; i < plan->per_rank; i++) {
        uint32_t number = i * (uint32_t)d->world_size + (uint32_t)d->rank;
        snprintf(list + strlen(list), sizeof list - strlen(list), "%3u%s", indices[i],
                 number >= total - plan->padded ? "*" : " ");
    }
    demo_row(d, "rank %d|%s", d->rank, list);
}

static status show_epoch(demo *d, int64_t epoch, const char *title, const char *why)
{
    uint32_t indices[SAMPLES_MAX];
    sampler_plan plan;
    TRY(deal(d, epoch, d->opts->shuffle, indices, &plan));
    demo_begin(d, "%s", title);
    demo_say(d, "%s", why);
    demo_columns(d, "|samples");
    tell(d, indices, &plan);
    return demo_show(d);
}

static status show_in_order(demo *d)
{
    uint32_t indices[SAMPLES_MAX];
    sampler_plan plan;
    TRY(deal(d, 0, false, indices, &plan));
    demo_begin(d, "%lld sample%s for %d ranks", (long long)d->opts->sampler.samples,
               d->opts->sampler.samples == 1 ? "" : "s", d->world_size);
    demo_say(d,
             "DistributedSampler deals the samples like cards: rank r gets number r, then the "
             "one %d places further on, and so forth. Here still in order, without a shuffle.",
             d->world_size);
    if (plan.padded > d->opts->sampler.samples)
        demo_say(d,
                 "All ranks must make equally many steps, or one would wait for ever in an "
                 "all-reduce. So each gets %u: there are too few samples, and they are dealt "
                 "again until all ranks have one. Those have a star.",
                 plan.per_rank);
    else if (plan.padded > 0)
        demo_say(d,
                 "All ranks must make equally many steps, or one would wait for ever in an "
                 "all-reduce. So each gets %u, and %u of the first samples %s dealt twice: they "
                 "have a star. With --drop-last the rest is left out instead.",
                 plan.per_rank, plan.padded, plan.padded == 1 ? "is" : "are");
    else if (plan.dropped > 0)
        demo_say(d,
                 "All ranks must make equally many steps, or one would wait for ever in an "
                 "all-reduce. So each gets %u, and --drop-last leaves out %u.",
                 plan.per_rank, plan.dropped);
    demo_columns(d, "|samples");
    tell(d, indices, &plan);
    demo_fact(d, "per_rank", json_integer(plan.per_rank));
    demo_fact(d, "padded", json_integer(plan.padded));
    demo_fact(d, "dropped", json_integer(plan.dropped));
    return demo_show(d);
}

status sampler_check_demo(const options *opts, int world_size)
{
    demo of = {.opts = opts, .world_size = world_size};
    sampler_options how = options_of(&of, false);
    sampler_plan plan;
    if (opts->sampler.samples > SAMPLES_MAX)
        return FAIL(STATUS_INVALID,
                    "demo sampler: --samples=%lld do not fit on a screen; at most %d",
                    (long long)opts->sampler.samples, SAMPLES_MAX);
    return sampler_check(&how, &plan);
}

status sampler_demo(demo *d)
{
    TRY(show_in_order(d));
    if (!d->opts->shuffle)
        return STATUS_OK;
    TRY(show_epoch(d, 0, "Epoch 0",
                   "Now shuffled. Every rank shuffles all samples in the same way, as the seed is "
                   "the same, and takes its own. So no two ranks train on one sample, but for "
                   "those with a star."));
    TRY(show_epoch(d, 1, "Epoch 1",
                   "sampler.set_epoch(1): the shuffle begins from seed + 1, so this epoch has an "
                   "order of its own."));
    return show_epoch(d, 0, "Epoch 1 again, without set_epoch",
                      "Who forgets set_epoch stays in epoch 0: every epoch has this same order. "
                      "Nothing fails, and training is worse. mnist_ddp never forgets it; "
                      "--inject=forget-set-epoch shows what it does.");
}
