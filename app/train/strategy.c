#include "app/common/device_list.h"
#include "app/train/strategy_ops.h"
#include "base/memory.h"
#include "kernels/ops.h"
#include "kernels/stream_trace.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define ROW_OF(kind, table) &strategy_##table,
static const strategy_ops *const TABLES[STRATEGY_COUNT] = {STRATEGIES(ROW_OF)};

/* A step's losses and images on their way to all ranks. */
typedef struct commit {
    const strategy_ops *inner; /* what each step commits; NULL: steps do not */
    int images;                /* in this rank's step */
    double step[2];            /* losses and images of the step: of this rank, then of all */
    work *sent;                /* under way */
    double read;               /* the network's sum of losses when it was last looked at */
    bool begins;               /* the next step is the first that is counted */
    step_commits all;
} commit;

struct strategy {
    strategy_ops ops; /* the mode's; if steps commit, two are this file's (strategy_commit_open) */
    rank_context *rank;
    void *self;
    optimizer *opt;
    checkpoint_access access; /* of shared state */
    commit commit;
};

static const strategy_ops *find_ops(const char *name)
{
    for (int i = 0; i < STRATEGY_COUNT; i++)
        if (strcmp(name, TABLES[i]->facts.name) == 0)
            return TABLES[i];
    return NULL;
}

static const strategy_ops *ops_of(const options *opts)
{
    const strategy_ops *found = find_ops(opts->mode);
    if (found == NULL) /* commands without --mode */
        found = &strategy_ddp;
    if (found == &strategy_ps && opts->async)
        return &strategy_ps_async;
    return found == &strategy_ddp && opts->sync_every > 1 ? &strategy_local_sgd : found;
}

const strategy_facts *strategy_named(const char *name)
{
    const strategy_ops *found = find_ops(name);
    return found != NULL ? &found->facts : NULL;
}

const strategy_facts *strategy_about(strategy_kind kind)
{
    return &TABLES[kind]->facts;
}

const strategy_facts *strategy_of(const options *opts)
{
    return &ops_of(opts)->facts;
}

static status check_alone(const options *opts, int world_size)
{
    if (strategy_of(opts)->has_replicas)
        return FAIL(STATUS_INVALID,
                    "--mode=%s is one process with all devices, this job has %d ranks: give "
                    "--replicas=%d (CPU) or --devices=0,1 (GPUs) instead of what asks for ranks "
                    "(--nproc-per-node, --nnodes, --world-size; RANK and WORLD_SIZE)",
                    opts->mode, world_size, world_size);
    return FAIL(STATUS_INVALID,
                "--mode=single is one process, this job has %d ranks: leave out what asks for "
                "them (--nproc-per-node, --nnodes, --world-size; RANK and WORLD_SIZE), or give "
                "--mode=ddp",
                world_size);
}

static status check_ranks(const options *opts)
{
    if (opts->replicas >= 0 && opts->command != COMMAND_DEMO)
        return FAIL(
            STATUS_INVALID,
            "--replicas=%lld: only --mode=dp and model have several devices; for ranks give "
            "--nproc-per-node=%lld",
            (long long)opts->replicas, (long long)opts->replicas);
    if (strcmp(opts->backend, "local") == 0)
        return FAIL(STATUS_INVALID, "--backend=local: is for the threads of --mode=dp; processes "
                                    "take shm (one host), gloo or nccl (GPUs)");
    return STATUS_OK;
}

/* Devices that share a network, or else a step; *out: how many there are. */
static status check_count(const options *opts, int world_size, int *out)
{
    const strategy_facts *how = strategy_of(opts);
    mesh placed;
    TRY(strategy_place(opts, 0, world_size, &placed));
    int n = how->axis != NULL ? placed.model.world_size : world_size;
    if (how->alone != NULL && n < 2)
        return FAIL(STATUS_INVALID, "--mode=%s: %s: give --nproc-per-node=2 or more, or --mode=%s",
                    how->name, how->alone, world_size > 1 ? "ddp" : "single");
    *out = n;
    if (how->most == NULL)
        return STATUS_OK;
    model_kind kind = MODEL_MLP;
    TRY(model_kind_parse(opts->model, &kind));
    if (how->has_replicas)
        TRY(strategy_replicas(opts, &n));
    if (n > how->most(kind))
        return FAIL(STATUS_INVALID,
                    "--mode=%s: --model=%s can be cut for %d %ss at most, this job has %d: give "
                    "%d in all, as by --%s=%d%s",
                    how->name, opts->model, how->most(kind), how->unit, n, how->most(kind),
                    how->has_replicas ? "replicas" : "nproc-per-node", how->most(kind),
                    how->has_replicas ? "" : ", or several rows of ranks with --mesh");
    return STATUS_OK;
}

static status check_sharing(const options *opts)
{
    const strategy_facts *how = strategy_of(opts);
    if (how->cuts_model && !how->is_one_process && opts->scale_lr)
        return FAIL(STATUS_INVALID,
                    "--mode=%s: --scale-lr is for ranks with a batch each, and all %ss share one: "
                    "leave it out, or give --lr",
                    how->name, how->unit);
    if (how->axis == NULL)
        return STATUS_OK;
    if (opts->clip_grad_norm > 0)
        return FAIL(STATUS_INVALID,
                    "--mode=%s: with --clip-grad-norm each %s would know the norm of its own "
                    "gradients only: leave it out, or give --mode=zero1",
                    how->name, how->unit);
    if (strcmp(opts->amp, "fp16") == 0)
        return FAIL(STATUS_INVALID,
                    "--mode=%s: with --amp=fp16 each %s would see an overflow of its own "
                    "gradients only: give --amp=bf16, or --mode=ddp",
                    how->name, how->unit);
    return STATUS_OK;
}

status strategy_check(const options *opts, int world_size)
{
    const strategy_ops *ops = ops_of(opts);
    const char *mode = ops->facts.name;
    bool hooks = opts->comm_hook != NULL && strcmp(opts->comm_hook, "none") != 0;
    bool is_ddp = strcmp(mode, strategy_ddp.facts.name) == 0;
    if (hooks && !is_ddp)
        return FAIL(STATUS_INVALID, "--comm-hook=%s is for --mode=ddp: here it is %s",
                    opts->comm_hook, mode);
    if (opts->sync_every > 1 && !is_ddp)
        return FAIL(STATUS_INVALID, "--sync-every=%lld is for --mode=ddp: here it is %s",
                    (long long)opts->sync_every, mode);
    if (ops->facts.is_one_process && world_size > 1)
        return check_alone(opts, world_size);
    int n = 0;
    TRY(check_count(opts, world_size, &n));
    TRY(check_sharing(opts));
    if (ops->check != NULL)
        TRY(ops->check(opts, n));
    return ops->facts.has_replicas ? STATUS_OK : check_ranks(opts);
}

enum { CPU_REPLICAS = 2 };

status strategy_replicas(const options *opts, int *out)
{
    int gpus = 0;
    *out = 1;
    if (!strategy_of(opts)->has_replicas)
        return STATUS_OK;
    if (opts->replicas < 0)
        TRY(device_list_count(opts, &gpus));
    *out = opts->replicas > 0 ? (int)opts->replicas : gpus > 0 ? gpus : CPU_REPLICAS;
    if (*out > REPLICAS_MAX)
        return FAIL(STATUS_INVALID, "%d replicas: at most %d", *out, (int)REPLICAS_MAX);
    return STATUS_OK;
}

bool strategy_can_commit(const options *opts)
{
    const strategy_ops *ops = ops_of(opts);
    return !ops->facts.is_central && ops->part == NULL && ops->move_state == NULL;
}

status strategy_place(const options *opts, int rank, int world_size, mesh *out)
{
    const strategy_facts *how = strategy_of(opts);
    if (opts->mesh != NULL && how->axis == NULL)
        return FAIL(STATUS_INVALID,
                    "--mesh=%.60s: with --mode=%s all ranks lie along dp: leave it out, or give "
                    "--mode=pipeline (axis pp), tp or fsdp",
                    opts->mesh, how->name);
    status st = mesh_place(opts->mesh, how->axis, rank, world_size, out);
    return st == STATUS_OK ? st : status_context(st, "--mesh, with --mode=%s", how->name);
}

/* Ranks along the model axis work on the same samples if they have parts of one network. A server
 * deals itself those of the first trainer, and takes none of them. */
data_sharing strategy_data_sharing(const options *opts, const mesh *m)
{
    const strategy_facts *how = strategy_of(opts);
    int own = m->dp.rank * m->model.world_size + m->model.rank;
    int world_size = m->dp.world_size * m->model.world_size;
    if (how->has_server)
        return (data_sharing){own > 0 ? own - 1 : 0, world_size - 1, .scores = own > 0};
    if (!how->cuts_model)
        return (data_sharing){own, world_size, .scores = true};
    return (data_sharing){m->dp.rank, m->dp.world_size,
                          .scores = m->model.rank + 1 == m->model.world_size};
}

network_share strategy_network(const rank_context *rank)
{
    const strategy_ops *ops = ops_of(rank->opts);
    network_share share = {.pieces = ops->cut != NULL ? 1 : rank->settings.replicas};
    if (ops->cut != NULL) /* the last of a process's */
        share.cut = ops->cut(rank, (rank->mesh.model.rank + 1) * rank->settings.replicas - 1);
    share.gradients = network_cut_count(rank->settings.model, share.cut) + PREEMPT_FLOATS;
    if (ops->network != NULL)
        ops->network(rank, &share);
    return share;
}

/* What strategies share that cut the model. */

int strategy_stages(const rank_context *rank)
{
    return rank->mesh.model.world_size * rank->settings.replicas;
}

network_cut strategy_stage(const rank_context *rank, int i)
{
    int parts = network_parts(rank->settings.model), n = strategy_stages(rank);
    int first = i * parts / n;
    return (network_cut){.first_part = first, .n_parts = (i + 1) * parts / n - first};
}

void strategy_describe_stages(const rank_context *rank, FILE *out)
{
    const char *one = rank->settings.replicas > 1    ? "device"
                      : rank->mesh.dp.world_size > 1 ? "stage"
                                                     : "rank";
    const parameter *p = NULL;
    (void)network_model_layout(rank->net, &p);
    for (int i = 0; i < strategy_stages(rank); i++) {
        size_t count = network_cut_count(rank->settings.model, strategy_stage(rank, i));
        fprintf(out, "%s %d has", one, i);
        for (size_t end = p->offset + count, next = p->offset; next < end; p += 2) {
            fprintf(out, " %.*s", (int)strcspn(p->name, "."), p->name); /* a weight, and a bias */
            next = p[1].offset + p[1].count;
        }
        fprintf(out, ": %.2f MB of parameters\n", (double)(count * sizeof(float)) * 1e-6);
    }
}

/* What strategies with a rank per device share. */

status strategy_ranks_forward_backward(rank_context *rank, const step_batch *b, grad_ready_fn ready,
                                       void *ctx)
{
    TRY(timeline_enter(&rank->timeline, MOMENT_FORWARD));
    TRY(network_forward(rank->net, &b->in, NETWORK_TRAIN));
    TRY(timeline_enter(&rank->timeline, MOMENT_BACKWARD));
    return network_backward(rank->net, !b->first, ready, ctx);
}

void strategy_server_part(const rank_context *rank, void *self, optimizer_part *out)
{
    (void)self;
    out->count = rank->place.rank == 0 ? out->count : 0;
}

status strategy_ranks_optimizer_step(rank_context *rank)
{
    TRY(timeline_enter(&rank->timeline, MOMENT_OPTIMIZER));
    if (rank->settings.clip_grad_norm > 0)
        TRY(network_clip_gradients(rank->net, (float)rank->settings.clip_grad_norm,
                                   rank->step_state));
    return optimizer_step(strategy_optimizer(rank->strategy), rank->step_state);
}

status strategy_ranks_share_parameters(rank_context *rank, void *self, int root)
{
    process_group *sharing = rank->mesh.dp.group;
    (void)self;
    return sharing != NULL ? process_group_broadcast(sharing, network_parameters(rank->net),
                                                     network_count(rank->net), DTYPE_F32, root,
                                                     rank->dev->stream)
                           : STATUS_OK;
}

/* NULL: there is nobody to sum with. */
static status sum(rank_context *rank, process_group *group, float *values, size_t count,
                  float prescale, const char *label)
{
    const collective c = {.kind = COLLECTIVE_ALL_REDUCE,
                          .in = values,
                          .out = values,
                          .count = count,
                          .prescale = prescale,
                          .label = label};
    if (group == NULL)
        return STATUS_OK;
    TRY(timeline_enter(&rank->timeline, MOMENT_REDUCE));
    return process_group_run(group, &c, rank->dev->stream);
}

status strategy_ranks_average(rank_context *rank, float *values, size_t count, const char *label)
{
    return sum(rank, rank->mesh.dp.group, values, count, 1.0f / (float)rank->mesh.dp.world_size,
               label);
}

status strategy_ranks_average_gradients(rank_context *rank)
{
    return strategy_ranks_average(rank, rank->gradients, network_count(rank->net) + PREEMPT_FLOATS,
                                  "gradients of the same part");
}

status strategy_ranks_sum_wish(rank_context *rank)
{
    float *wish = rank->gradients + network_count(rank->net);
    return sum(rank, rank->mesh.model.group, wish, PREEMPT_FLOATS, 0, "the wish to stop");
}

float *strategy_ranks_arena(const rank_context *rank, size_t arena)
{
    return checkpoint_arena(rank->net, strategy_optimizer(rank->strategy), arena);
}

/* Between the rank's device and its piece of host memory. */
static status move_own(rank_context *rank, const state_slice *s, network_order way, float *own)
{
    device *dev = rank->dev;
    size_t size_bytes = sizeof *own * s->count;
    bool reads = way == NETWORK_EXPORT;
    if (rank->strategy->ops.cut != NULL)
        return reads ? network_export(rank->net, s->state, own)
                     : network_import(rank->net, own, s->state);
    if (s->count == 0)
        return STATUS_OK;
    return reads ? dev->ops->download(dev, own, s->state, size_bytes)
                 : dev->ops->upload(dev, s->state, own, size_bytes);
}

/* Between the model's order and the pieces of all ranks. */
static status move_all(rank_context *rank, const state_slice *s, network_order way, float *host,
                       float *all)
{
    const strategy_ops *ops = &rank->strategy->ops;
    bool reads = way == NETWORK_EXPORT;
    if (ops->cut == NULL)
        return network_reorder_unit(rank->net, s->unit, reads ? all : host, reads ? host : all,
                                    way);
    for (int i = 0; i < rank->mesh.model.world_size; i++, all += s->room)
        network_cut_copy(rank->settings.model, ops->cut(rank, i), host, all, way);
    return STATUS_OK;
}

/* Each rank has a piece of host memory, which travels; rank 0 those of all ranks, too. Other rows
 * of ranks have what the first has. */
status strategy_ranks_move_slice(rank_context *rank, const state_slice *s, network_order way,
                                 float *host)
{
    bool reads = way == NETWORK_EXPORT, in_row = rank->strategy->ops.facts.axis != NULL;
    int n = in_row ? rank->mesh.model.world_size : rank->place.world_size;
    float *own = NULL;
    if (in_row && rank->mesh.dp.rank > 0)
        return STATUS_OK;
    TRY(memory_alloc(sizeof *own * s->room * (host != NULL ? 1 + (size_t)n : 1), (void **)&own));
    float *all = host != NULL ? own + s->room : NULL;
    const collective c = {.kind = reads ? COLLECTIVE_GATHER : COLLECTIVE_SCATTER,
                          .in = reads ? own : all,
                          .out = reads ? all : own,
                          .count = s->room,
                          .label = reads ? "state to rank 0" : "state from rank 0"};
    status st = reads          ? move_own(rank, s, way, own)
                : host != NULL ? move_all(rank, s, way, host, all)
                               : STATUS_OK;
    if (st == STATUS_OK)
        st = process_group_run(in_row ? rank->mesh.model.group : rank->group, &c, NULL);
    if (st == STATUS_OK && !reads)
        st = move_own(rank, s, way, own);
    else if (st == STATUS_OK && host != NULL)
        st = move_all(rank, s, way, host, all);
    free(own);
    return st;
}

status strategy_ranks_move_cut(rank_context *rank, void *self, size_t arena, network_order way,
                               float *host)
{
    state_slice own = {.state = strategy_ranks_arena(rank, arena)};
    (void)self;
    for (int i = 0; i < rank->mesh.model.world_size; i++) {
        network_cut cut = rank->strategy->ops.cut(rank, i);
        size_t count = network_cut_count(rank->settings.model, cut);
        own.room = count > own.room ? count : own.room;
    }
    return strategy_ranks_move_slice(rank, &own, way, host);
}

/* Opening a strategy. */

/* Rank 0 tells the others before each arena what it does with it. */
enum { STATE_END = -1, STATE_WAYS = 2 };

static status agree_on_arena(rank_context *rank, int64_t *what)
{
    return process_group_broadcast(rank->group, what, 1, DTYPE_I64, 0, NULL);
}

static status move_arena(strategy *s, size_t arena, network_order way, float *host)
{
    int64_t what = (int64_t)arena * STATE_WAYS + way;
    TRY(agree_on_arena(s->rank, &what));
    return s->ops.move_state(s->rank, s->self, arena, way, host);
}

static status read_arena(void *ctx, size_t arena, float *host)
{
    return move_arena(ctx, arena, NETWORK_EXPORT, host);
}

static status write_arena(void *ctx, size_t arena, const float *host)
{
    return move_arena(ctx, arena, NETWORK_IMPORT, (float *)host);
}

void strategy_close(strategy *s)
{
    if (s == NULL)
        return;
    if (s->ops.close != NULL && s->self != NULL)
        s->ops.close(s->self);
    free(s->self);
    optimizer_destroy(s->opt);
    free(s);
}

status strategy_open(const options *opts, rank_context *rank, strategy **out)
{
    strategy *s = NULL;
    TRY(memory_alloc(sizeof *s, (void **)&s));
    *s = (strategy){.ops = *ops_of(opts), .rank = rank, .access = {read_arena, write_arena, s}};
    status st = s->ops.self_bytes > 0 ? memory_alloc(s->ops.self_bytes, &s->self) : STATUS_OK;
    if (st == STATUS_OK && s->ops.open != NULL)
        st = s->ops.open(rank, s->self);
    if (st != STATUS_OK) {
        strategy_close(s);
        return st;
    }
    *out = s; /* to be closed from now on */
    optimizer_part part = {network_parameters(rank->net), network_gradients(rank->net),
                           .count = network_count(rank->net)};
    if (s->ops.part != NULL)
        s->ops.part(rank, s->self, &part);
    return optimizer_create(rank->dev, &rank->settings.optimizer, &part, &s->opt);
}

optimizer *strategy_optimizer(const strategy *s)
{
    return s->opt;
}

optimizer *strategy_shared_optimizer(const strategy *s)
{
    return s->ops.part == NULL && s->ops.move_state == NULL ? s->opt : NULL;
}

static status forward_backward(const strategy_ops *ops, rank_context *rank, void *self,
                               const step_batch *b)
{
    return ops->forward_backward != NULL ? ops->forward_backward(rank, self, b)
                                         : strategy_ranks_forward_backward(rank, b, NULL, NULL);
}

/* An elastic run's commits stand around the strategy's own functions, whose `self` they get. */

static status commit_forward_backward(rank_context *rank, void *self, const step_batch *b)
{
    commit *c = &rank->strategy->commit;
    c->images = b->in.n + (b->first ? 0 : c->images);
    return forward_backward(c->inner, rank, self, b);
}

/* The step's losses of this rank, for all. */
static status launch(rank_context *rank, commit *c)
{
    score so_far;
    TRY(network_read_score(rank->net, &so_far));
    c->step[0] = so_far.loss_sum - c->read;
    c->step[1] = (double)c->images;
    c->read = so_far.loss_sum;
    const collective all = {.kind = COLLECTIVE_ALL_REDUCE,
                            .type = DTYPE_F64,
                            .in = c->step,
                            .out = c->step,
                            .count = 2};
    return process_group_launch(rank->group, &all, NULL, &c->sent);
}

/* The host waits until the gradients and the losses of all ranks have come. Works are waited for in
 * the order of their launch. So the losses leave before the gradients are waited for, unless
 * gradients leave only when they are waited for: with --no-overlap, or PowerSGD. */
static status commit_synchronize(rank_context *rank, void *self)
{
    commit *c = &rank->strategy->commit;
    bool early = rank->opts->overlap && strcmp(rank->opts->comm_hook, "powersgd") != 0;
    if (early)
        TRY(launch(rank, c));
    if (c->inner->synchronize != NULL)
        TRY(c->inner->synchronize(rank, self));
    if (!early)
        TRY(launch(rank, c));
    TRY(process_group_wait(rank->group, c->sent, NULL));
    c->all.loss += c->step[0];
    c->all.images += (int64_t)c->step[1];
    c->all.steps++;
    return STATUS_OK;
}

/* The same, enqueued. The sampler gives all ranks equally many images. */
static status commit_enqueue(rank_context *rank, void *self)
{
    commit *c = &rank->strategy->commit;
    const accelerator_ops *ops = rank->dev->ops->accelerator;
    double *offer = rank->step_state->commit.offer;
    const step_vote vote = {.aborted = rank->aborted,
                            .loss_sum = &network_totals(rank->net)->loss_sum,
                            .wish = rank->stop.flag,
                            .images = (int64_t)c->images * rank->sharing.world_size,
                            .world_size = rank->place.world_size};
    const collective all = {.kind = COLLECTIVE_ALL_REDUCE,
                            .type = DTYPE_F64,
                            .in = offer,
                            .out = offer,
                            .count = 2,
                            .label = "the step's commit"};
    if (c->inner->synchronize != NULL)
        TRY(c->inner->synchronize(rank, self));
    TRY(ops->commit_offer(rank->dev, &vote, rank->step_state));
    TRY(process_group_run(rank->group, &all, rank->dev->stream));
    return ops->commit_take(rank->dev, &vote, rank->step_state);
}

status strategy_commit_open(strategy *s)
{
    static const step_state none;
    rank_context *rank = s->rank;
    bool on_host = rank->dev->ops->accelerator == NULL;
    s->commit.inner = ops_of(rank->opts);
    s->ops.forward_backward = commit_forward_backward;
    s->ops.synchronize = on_host ? commit_synchronize : commit_enqueue;
    return rank->dev->ops->upload(rank->dev, rank->step_state, &none, sizeof none);
}

void strategy_commit_begin(strategy *s)
{
    s->commit.all = (step_commits){.updates = optimizer_steps(s->opt)};
    s->commit.read = 0;
    s->commit.begins = true;
}

void strategy_commit_reset_score(strategy *s)
{
    s->commit.read = 0;
}

status strategy_committed(const strategy *s, step_commits *out)
{
    device *dev = s->rank->dev;
    step_state state;
    *out = s->commit.all;
    if (dev->ops->accelerator == NULL || s->commit.begins)
        return STATUS_OK;
    TRY(dev->ops->download(dev, &state, s->rank->step_state, sizeof state));
    out->steps = state.commit.steps;
    out->loss = state.commit.loss;
    out->images = state.commit.images;
    return STATUS_OK;
}

/* A step. */

status strategy_commit_confirm(strategy *s, int64_t steps)
{
    rank_context *rank = s->rank;
    step_commits own;
    if (s->ops.synchronize != commit_enqueue)
        return STATUS_OK;
    TRY(strategy_committed(s, &own));
    int64_t sum = 1 + own.steps, whole = (1 + steps) * rank->place.world_size;
    TRY(process_group_all_reduce(rank->group, &sum, 1, DTYPE_I64, REDUCE_SUM, NULL));
    return sum == whole
               ? STATUS_OK
               : FAIL(STATUS_PEER, "not all ranks have taken the last %" PRId64 " steps", steps);
}

void strategy_plan_step(strategy *s, float lr, step_plan *plan)
{
    optimizer_plan_step(s->opt, lr, plan);
    if (s->ops.synchronize == commit_enqueue) {
        plan->commit_from = &network_totals(s->rank->net)->loss_sum;
        plan->commit_anew = s->commit.begins;
    }
    s->commit.begins = false;
    if (s->ops.plan_step != NULL)
        s->ops.plan_step(s->self, plan);
}

/* One optimizer step, as in any textbook. */
static status train_step(strategy *s, int step)
{
    rank_context *rank = s->rank;
    int micro_steps = loader_micro_steps(rank->loader, step); /* --accum */
    for (int micro = 0; micro < micro_steps; micro++) {
        step_batch b = {.first = micro == 0, .last = micro + 1 == micro_steps};
        TRY(timeline_enter(&rank->timeline, MOMENT_LOAD));
        TRY(loader_next(rank->loader, &b.in));
        TRY(forward_backward(&s->ops, rank, s->self, &b)); /* ddp: gradients leave in here */
    }
    if (s->ops.synchronize != NULL)
        TRY(s->ops.synchronize(rank, s->self)); /* gradients are the mean over all ranks */
    TRY(s->ops.optimizer_step != NULL ? s->ops.optimizer_step(rank, s->self)
                                      : strategy_ranks_optimizer_step(rank));
    return timeline_enter(&rank->timeline, MOMENT_BETWEEN);
}

status strategy_run_step(void *ctx, int step)
{
    strategy *s = ctx;
    return s->ops.run_step != NULL ? s->ops.run_step(s->rank, s->self, step) : train_step(s, step);
}

status strategy_ranks_step(rank_context *rank, int step)
{
    return train_step(rank->strategy, step);
}

/* Steps that are replayed as graphs. */

static status record(step_graphs *graphs, step_graph *one, int step, enqueue_step_fn enqueue,
                     void *ctx)
{
    device *dev = graphs->timeline->dev;
    const accelerator_ops *ops = dev->ops->accelerator;
    TRY(ops->capture_begin(dev));
    stream_trace_hold(dev->stream_trace, true);
    status st = enqueue(ctx, step);
    stream_trace_hold(dev->stream_trace, false);
    if (st == STATUS_OK)
        return ops->capture_end(dev, &one->graph);
    (void)ops->capture_end(dev, NULL);
    return st;
}

status step_graphs_run(step_graphs *graphs, int samples, int step, enqueue_step_fn enqueue,
                       void *ctx)
{
    device *dev = graphs->timeline->dev;
    step_graph *one = NULL;
    for (int i = 0; i < graphs->n; i++)
        if (graphs->known[i].samples == samples)
            one = &graphs->known[i];
    if (one == NULL) {
        if (graphs->enabled && graphs->n < STEP_GRAPHS_MAX)
            graphs->known[graphs->n++] = (step_graph){.samples = samples};
        return enqueue(ctx, step);
    }
    if (one->graph == NULL)
        TRY(record(graphs, one, step, enqueue, ctx));
    TRY(timeline_enter(graphs->timeline, MOMENT_GRAPH));
    TRY(dev->ops->accelerator->graph_launch(dev, one->graph));
    return timeline_enter(graphs->timeline, MOMENT_BETWEEN);
}

void step_graphs_close(step_graphs *graphs)
{
    for (int i = 0; i < graphs->n; i++)
        if (graphs->known[i].graph != NULL)
            graphs->timeline->dev->ops->accelerator->graph_destroy(graphs->known[i].graph);
    graphs->n = 0;
}

/* State, tests, and what is told of a strategy. */

status strategy_meet(strategy *s)
{
    return s->ops.meet != NULL ? s->ops.meet(s->rank, s->self) : STATUS_OK;
}

const checkpoint_access *strategy_access(const strategy *s)
{
    return s->ops.move_state != NULL ? &s->access : NULL;
}

status strategy_serve_state(strategy *s)
{
    while (s->ops.move_state != NULL) {
        int64_t what = STATE_END;
        TRY(agree_on_arena(s->rank, &what));
        if (what == STATE_END)
            break;
        TRY(s->ops.move_state(s->rank, s->self, (size_t)(what / STATE_WAYS),
                              (network_order)(what % STATE_WAYS), NULL));
    }
    return STATUS_OK;
}

status strategy_end_state(strategy *s)
{
    int64_t what = STATE_END;
    return s->ops.move_state != NULL ? agree_on_arena(s->rank, &what) : STATUS_OK;
}

status strategy_evaluate(strategy *s, const batch *in)
{
    if (s->ops.evaluate != NULL)
        return s->ops.evaluate(s->rank, s->self, in);
    if (in == NULL || (s->ops.facts.has_server && s->rank->place.rank == 0))
        return STATUS_OK;
    TRY(network_forward(s->rank->net, in, NETWORK_EVAL));
    return s->rank->sharing.scores ? network_score(s->rank->net) : STATUS_OK;
}

status strategy_is_finite(strategy *s, bool *out)
{
    rank_context *rank = s->rank;
    int64_t all_finite;
    TRY(s->ops.is_finite != NULL ? s->ops.is_finite(s->self, out)
                                 : network_is_finite(rank->net, out));
    all_finite = *out;
    if (network_count(rank->net) != network_model_count(rank->net))
        TRY(process_group_all_reduce(rank->group, &all_finite, 1, DTYPE_I64, REDUCE_MIN, NULL));
    *out = all_finite != 0;
    return STATUS_OK;
}

/* Each rank that has the same part of the network gets all of it. Before the first step the
 * optimizer has no state yet. */
static status share_all(strategy *s, int root)
{
    rank_context *rank = s->rank;
    const char *names[OPTIMIZER_MAX_STATES];
    float *states[OPTIMIZER_MAX_STATES];
    size_t n = optimizer_states(s->opt, names, states);
    TRY(strategy_ranks_share_parameters(rank, s->self, root));
    for (size_t i = 0; i < n && optimizer_steps(s->opt) > 0 && rank->mesh.dp.group != NULL; i++)
        TRY(process_group_broadcast(rank->mesh.dp.group, states[i], optimizer_count(s->opt),
                                    DTYPE_F32, root, rank->dev->stream));
    return STATUS_OK;
}

status strategy_share_state(strategy *s, int root)
{
    rank_context *rank = s->rank;
    loss_scaling scaling;
    int64_t steps = optimizer_steps(s->opt);
    TRY(process_group_broadcast(rank->group, &steps, 1, DTYPE_I64, root, NULL));
    optimizer_set_steps(s->opt, steps);
    TRY(s->ops.share_state != NULL ? s->ops.share_state(rank, s->self, root) : share_all(s, root));
    if (steps == 0)
        return STATUS_OK;
    TRY(rank_context_loss_scaling(rank, &scaling));
    TRY(process_group_broadcast(rank->group, &scaling, sizeof scaling, DTYPE_U8, root, NULL));
    return rank_context_set_loss_scaling(rank, &scaling);
}

status strategy_explain(strategy *s, status st)
{
    return s->ops.explain != NULL ? s->ops.explain(s->self, st) : st;
}

/* Gradients go to one place, and parameters come from there. */
static void describe_central(const strategy *s, int devices, FILE *out)
{
    double mb = (double)(network_count(s->rank->net) * sizeof(float)) * 1e-6;
    const char *unit = s->ops.facts.unit;
    fprintf(out, "gradients, %.2f MB, of every %s to %s 0, which adds them\n", mb, unit, unit);
    fprintf(out, "%s 0 alone makes the step, and sends parameters to all\n", unit);
    mb *= devices - 1;
    fprintf(out, "%s 0 sends %.2f MB in a step, and gets %.2f MB\n", unit, mb, mb);
}

void strategy_describe(const strategy *s, FILE *out)
{
    int devices = s->rank->place.world_size * s->rank->settings.replicas;
    if (devices == 1)
        fputs("nothing: it is one process\n", out);
    else if (s->ops.describe != NULL)
        s->ops.describe(s->rank, s->self, out);
    else
        describe_central(s, devices, out);
}

json_t *strategy_outcome(const strategy *s)
{
    return s->ops.outcome != NULL ? s->ops.outcome(s->rank, s->self) : NULL;
}

const char *strategy_backend(const strategy *s)
{
    return s->ops.backend != NULL ? s->ops.backend(s->self) : process_group_backend(s->rank->group);
}

device_use strategy_use(const strategy *s, int index)
{
    const rank_context *rank = s->rank;
    uint64_t sent = 0, received = 0;
    if (s->ops.use != NULL)
        return s->ops.use(s->self, index);
    process_group_traffic(rank->group, &sent, &received);
    mesh_add_traffic(&rank->mesh, &sent, &received);
    return (device_use){(int64_t)sent, (int64_t)received, rank->dev->memory_peak};
}

int64_t strategy_comm_ns(const strategy *s, int64_t exposed_ns)
{
    return s->ops.comm_ns != NULL ? s->ops.comm_ns(s->rank, s->self, exposed_ns) : exposed_ns;
}
