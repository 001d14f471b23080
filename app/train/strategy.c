#include "app/train/strategy.h"

#include "app/train/rank_context.h"
#include "app/train/strategy_ops.h"
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

static const strategy_ops *const STRATEGIES[STRATEGY_COUNT] = {
    [STRATEGY_SINGLE] = &strategy_single,
    [STRATEGY_DP] = &strategy_dp,
    [STRATEGY_DDP] = &strategy_ddp,
    [STRATEGY_PS] = &strategy_ps,
};

struct strategy {
    const strategy_ops *ops;
    rank_context *rank;
    void *self;
};

static const strategy_ops *ops_of(const options *opts)
{
    for (int i = 0; i < STRATEGY_COUNT; i++)
        if (strcmp(opts->mode, STRATEGIES[i]->facts.name) == 0)
            return STRATEGIES[i];
    return &strategy_ddp; /* commands without --mode */
}

const strategy_facts *strategy_about(strategy_kind kind)
{
    return &STRATEGIES[kind]->facts;
}

const strategy_facts *strategy_of(const options *opts)
{
    return &ops_of(opts)->facts;
}

status strategy_check(const options *opts, int world_size)
{
    bool hooks = opts->comm_hook != NULL && strcmp(opts->comm_hook, "none") != 0;
    if (hooks && ops_of(opts) != &strategy_ddp)
        return FAIL(STATUS_INVALID, "--comm-hook=%s is for --mode=ddp: here it is %s",
                    opts->comm_hook, ops_of(opts)->facts.name);
    return ops_of(opts)->check(opts, world_size);
}

status strategy_replicas(const options *opts, int *out)
{
    const strategy_ops *ops = ops_of(opts);
    *out = 1;
    return ops->replicas != NULL ? ops->replicas(opts, out) : STATUS_OK;
}

status strategy_open(const options *opts, rank_context *rank, strategy **out)
{
    strategy *s = NULL;
    TRY(memory_alloc(sizeof *s, (void **)&s));
    *s = (strategy){.ops = ops_of(opts), .rank = rank};
    status st = s->ops->open != NULL ? s->ops->open(rank, &s->self) : STATUS_OK;
    if (st != STATUS_OK) {
        free(s);
        return st;
    }
    *out = s;
    return STATUS_OK;
}

void strategy_close(strategy *s)
{
    if (s != NULL && s->ops->close != NULL)
        s->ops->close(s->self);
    free(s);
}

void strategy_begin_step(strategy *s, const step_plan *plan)
{
    if (s->ops->begin_step != NULL)
        s->ops->begin_step(s->rank, s->self, plan);
}

status strategy_forward_backward(strategy *s, const step_batch *b)
{
    return s->ops->forward_backward(s->rank, s->self, b);
}

status strategy_synchronize(strategy *s)
{
    return s->ops->synchronize != NULL ? s->ops->synchronize(s->rank, s->self) : STATUS_OK;
}

status strategy_optimizer_step(strategy *s)
{
    return s->ops->optimizer_step(s->rank, s->self);
}

status strategy_explain(strategy *s, status st)
{
    return s->ops->explain != NULL ? s->ops->explain(s->self, st) : st;
}

/* Gradients go to one place, and parameters come from there. */
static void describe_central(const strategy *s, int devices, FILE *out)
{
    double mb = (double)(network_count(s->rank->net) * sizeof(float)) * 1e-6;
    const char *unit = s->ops->facts.unit;
    fprintf(out, "gradients, %.2f MB, of every %s to %s 0, which adds them\n", mb, unit, unit);
    fprintf(out, "%s 0 alone makes the step, and sends parameters to all\n", unit);
    fprintf(out, "%s 0 sends %.2f MB in a step, and gets %.2f MB\n", unit, mb * (devices - 1),
            mb * (devices - 1));
}

void strategy_describe(const strategy *s, FILE *out)
{
    int devices = s->rank->place.world_size * s->rank->settings.replicas;
    if (devices == 1)
        fputs("nothing: it is one process\n", out);
    else if (s->ops->describe != NULL)
        s->ops->describe(s->rank, s->self, out);
    else
        describe_central(s, devices, out);
}

const char *strategy_backend(const strategy *s)
{
    return s->ops->backend(s->rank, s->self);
}

device_use strategy_use(const strategy *s, int index)
{
    return s->ops->use(s->rank, s->self, index);
}

int64_t strategy_comm_ns(const strategy *s, int64_t exposed_ns)
{
    return s->ops->comm_ns != NULL ? s->ops->comm_ns(s->rank, s->self, exposed_ns) : exposed_ns;
}
