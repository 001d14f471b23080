#include "app/train/rank_settings.h"

#include "app/options/training_values.h"
#include "app/train/fault.h"
#include "app/train/strategy.h"
#include "base/thread.h"

/* An elastic run's number of ranks changes: it takes the nearest batch that all ranks can have
 * alike. */
static status read_batch(const options *o, int world_size, bool is_elastic, int *out)
{
    int64_t per_rank = o->batch_size;
    mesh placed;
    TRY(strategy_place(o, 0, world_size, &placed));
    int sharing = strategy_data_sharing(o, &placed).world_size;
    if (o->global_batch_size > 0) {
        int64_t parts = (int64_t)sharing * o->accum;
        if (o->global_batch_size % parts != 0 && !is_elastic)
            return FAIL(STATUS_INVALID,
                        "--global-batch-size %lld is not divisible by %d ranks x --accum %lld",
                        (long long)o->global_batch_size, sharing, (long long)o->accum);
        per_rank = (o->global_batch_size + parts / 2) / parts;
        per_rank = per_rank > 0 ? per_rank : 1;
    }
    *out = (int)per_rank;
    return STATUS_OK;
}

status rank_settings_check(const options *opts, int world_size, bool is_elastic)
{
    int batch_size = 0;
    inject fault;
    const strategy_facts *how = strategy_of(opts);
    if (is_elastic && how->has_server)
        return FAIL(STATUS_INVALID,
                    "%s: no rank may come or go: give one number of --nnodes, or --mode=%s alone",
                    how->title, how->name);
    TRY(read_batch(opts, world_size, is_elastic, &batch_size));
    TRY(inject_parse(opts->inject, &fault));
    return fault_check(&fault, world_size);
}

double rank_settings_lr(const options *opts, double lr, int64_t world_size)
{
    return opts->scale_lr ? lr * (double)world_size : lr;
}

int rank_settings_threads(const options *opts, int ranks, int replicas)
{
    int share = cores_count() / (ranks * replicas);
    return opts->threads > 0 ? (int)opts->threads : share > 1 ? share : 1;
}

const char *rank_settings_elastic_batch(const options *opts)
{
    return opts->global_batch_size > 0 ? "global" : "local";
}

status rank_settings_read(const options *opts, const rendezvous_place *place, rank_settings *out)
{
    rank_settings s = {.optimizer = {.momentum = (float)opts->momentum, .nesterov = opts->nesterov},
                       .schedule = {.gamma = opts->gamma,
                                    .pct_start = opts->pct_start,
                                    .warmup_steps = opts->warmup_steps,
                                    .warmup_factor = opts->warmup_factor}};
    TRY(model_kind_parse(opts->model, &s.model));
    TRY(optimizer_kind_parse(opts->optimizer, &s.optimizer.kind));
    TRY(schedule_kind_parse(opts->schedule, &s.schedule.kind));
    s.lr = opts->lr < 0 ? (double)optimizer_default_lr(s.optimizer.kind) : opts->lr;
    s.schedule.lr = rank_settings_lr(opts, s.lr, place->world_size);
    s.weight_decay = opts->weight_decay < 0 ? optimizer_default_weight_decay(s.optimizer.kind)
                                            : opts->weight_decay;
    s.optimizer.weight_decay = (float)s.weight_decay;
    s.clip_grad_norm = opts->clip_grad_norm < 0 ? 0 : opts->clip_grad_norm;
    TRY(adam_betas_parse(opts->adam_betas, &s.betas));
    s.optimizer.beta1 = (float)s.betas.first;
    s.optimizer.beta2 = (float)s.betas.second;
    TRY(augment_parse(opts->augment, &s.augment));
    TRY(interval_parse("--eval-every", 0, opts->eval_every, &s.eval_every));
    TRY(strategy_replicas(opts, &s.replicas));
    s.threads = rank_settings_threads(opts, place->local_world_size, s.replicas);
    TRY(read_batch(opts, place->world_size, place->round > 0, &s.batch_size));
    *out = s;
    return STATUS_OK;
}
