/* Pipeline parallelism (torch.distributed.pipelining): a rank is a stage, with some of the layers.
 * A batch is cut into micro-batches, which go through the stages one after the other and back; the
 * gradients of all of them add up to those of the batch.
 *
 * Schedules: gpipe (Huang et al., 2019) does all forwards, then all backwards. 1f1b (Narayanan et
 * al., 2021) does a backward as soon as there is one: stage s of S has at most S - s micro-batches
 * under way. Both leave a stage idle for (S - 1) / (M + S - 1) of the step.
 *
 * The last stage has the loss: its totals go to all. The wish to stop is summed by itself.
 */
#include "app/train/pipeline_schedule.h"
#include "app/train/strategy_ops.h"
#include "base/memory.h"
#include "dist/chunk.h"
#include "dist/process_group/process_group.h"
#include "kernels/ops.h"

#include <stdlib.h>
#include <string.h>

/* A micro-batch under way: the stage's layers with activations of their own. */
typedef struct flight {
    network *net; /* the first is the rank's */
    float *x;     /* (micro-batch, in_elements) from the stage before; the first stage: NULL */
    batch in;
} flight;

typedef struct pipeline {
    device *dev;
    int stage, stages;
    int micro_batches;                /* that a whole batch is cut into */
    size_t in_elements, out_elements; /* of one sample */
    flight *flights;                  /* (n_flights): micro-batch m takes m % n_flights */
    int n_flights;
    bool gpipe;
    bool accumulates; /* some of the step's gradients are there */
} pipeline;

static status check(const options *opts, int world_size)
{
    model_kind kind = MODEL_MLP;
    mesh placed;
    TRY(model_kind_parse(opts->model, &kind));
    TRY(strategy_place(opts, 0, world_size, &placed));
    int stages = placed.model.world_size, most = network_parts(kind);
    if (stages < 2)
        return FAIL(STATUS_INVALID,
                    "--mode=pipeline: one rank is no pipeline: give "
                    "--nproc-per-node=2 or more, or --mode=%s",
                    world_size > 1 ? "ddp" : "single");
    if (stages > most)
        return FAIL(STATUS_INVALID,
                    "--mode=pipeline: --model=%s can be cut into %d stages at most, this job has "
                    "%d: give %d in all, as by --nproc-per-node=%d, or several pipelines as in "
                    "--mesh=dp=2,pp=%d",
                    opts->model, most, stages, most, most, most);
    if (opts->stages > 0 && opts->stages != stages)
        return FAIL(STATUS_INVALID,
                    "--stages=%lld: this job has %d, a rank each: give --mesh "
                    "for several pipelines",
                    (long long)opts->stages, stages);
    if (opts->scale_lr)
        return FAIL(STATUS_INVALID, "--mode=pipeline: --scale-lr is for ranks with a batch each, "
                                    "and all stages share one: leave it out, or give --lr");
    if (opts->clip_grad_norm > 0)
        return FAIL(STATUS_INVALID, "--mode=pipeline: with --clip-grad-norm each stage would know "
                                    "the norm of its own gradients only: leave it out");
    if (strcmp(opts->amp, "fp16") == 0)
        return FAIL(STATUS_INVALID, "--mode=pipeline: with --amp=fp16 each stage would see an "
                                    "overflow of its own gradients only: give --amp=bf16");
    return strategy_ranks_check(opts);
}

static void share_network(const rank_context *rank, network_share *out)
{
    size_t count;
    (void)strategy_stage_range(rank, rank->mesh.model.rank, &count);
    out->n_parts = strategy_stage_parts(rank, rank->mesh.model.rank, &out->first_part);
    out->gradients = count + PREEMPT_FLOATS;
    out->pieces = (int)rank->opts->micro_batches;
}

/* Parameters and gradients are the rank's network's. */
static status open_flight(rank_context *rank, const pipeline *p, int i, flight *out)
{
    int n = network_max_batch(rank->net);
    if (i == 0) {
        out->net = rank->net;
    } else {
        network_options settings = rank_context_network_options(rank);
        settings.max_batch = n = chunk_size(rank->settings.batch_size, p->micro_batches);
        settings.parameters = network_parameters(rank->net);
        settings.gradients = network_gradients(rank->net);
        TRY(network_create(rank->dev, &settings, &out->net));
    }
    return p->in_elements > 0
               ? rank->dev->ops->alloc(rank->dev, p->in_elements * (size_t)n * sizeof(float),
                                       (void **)&out->x)
               : STATUS_OK;
}

static void close_stage(void *self)
{
    pipeline *p = self;
    for (int i = 0; p != NULL && i < p->n_flights; i++) {
        if (i > 0)
            network_destroy(p->flights[i].net);
        p->dev->ops->free(p->dev, p->flights[i].x);
    }
    if (p != NULL)
        free(p->flights);
    free(p);
}

static status open_flights(rank_context *rank, pipeline *p)
{
    size_t in, out;
    int n = pipeline_under_way(p->gpipe, p->stage, p->stages, p->micro_batches);
    (void)network_dinput(rank->net, &in);
    (void)network_output(rank->net, &out);
    p->in_elements = in;
    p->out_elements = out;
    TRY(memory_alloc(sizeof *p->flights * (size_t)n, (void **)&p->flights));
    p->n_flights = n;
    for (int i = 0; i < p->n_flights; i++)
        TRY(open_flight(rank, p, i, &p->flights[i]));
    return STATUS_OK;
}

static status open_stage(rank_context *rank, void **self)
{
    pipeline *p = NULL;
    TRY(memory_alloc(sizeof *p, (void **)&p));
    *p = (pipeline){.dev = rank->dev,
                    .stage = rank->mesh.model.rank,
                    .stages = rank->mesh.model.world_size,
                    .micro_batches = (int)rank->opts->micro_batches,
                    .gpipe = strcmp(rank->opts->pipeline_schedule, "gpipe") == 0};
    status st = open_flights(rank, p);
    if (st != STATUS_OK) {
        close_stage(p);
        return st;
    }
    *self = p;
    return STATUS_OK;
}

/* What goes between two stages: of one sample so many elements. */
static collective message(const rank_context *rank, collective_kind kind, const void *data, int n,
                          size_t elements, int peer)
{
    bool sends = kind == COLLECTIVE_SEND;
    return (collective){.kind = kind,
                        .type = DTYPE_U8,
                        .in = sends ? data : NULL,
                        .out = sends ? NULL : (void *)data,
                        .count = (size_t)n * elements * device_element_bytes(rank->dev),
                        .root = peer,
                        .label = peer > rank->mesh.model.rank ? "with the next stage"
                                                              : "with the stage before"};
}

/* Up to two messages at once, so that two stages can exchange. */
typedef struct exchange {
    collective list[2];
    int n;
} exchange;

static status run_exchange(rank_context *rank, exchange *e)
{
    work *works[2];
    if (e->n == 0)
        return STATUS_OK;
    TRY(timeline_enter(&rank->timeline, MOMENT_STAGE));
    TRY(process_group_batch_isend_irecv(rank->mesh.model.group, e->list, e->n, rank->dev->stream,
                                        works));
    status st = STATUS_OK;
    for (int i = 0; i < e->n; i++) {
        status one = process_group_wait(rank->mesh.model.group, works[i], NULL);
        st = st == STATUS_OK ? one : st;
    }
    *e = (exchange){0};
    return st;
}

static flight *flight_of(const pipeline *p, int m)
{
    return &p->flights[m % p->n_flights];
}

/* The input of micro-batch m comes, or the gradient of its output; its output goes, or the gradient
 * of its input. The ends of the pipeline have none. */
static void add_input(const rank_context *rank, const pipeline *p, int m, exchange *e)
{
    flight *f = flight_of(p, m);
    if (p->stage > 0)
        e->list[e->n++] =
            message(rank, COLLECTIVE_RECV, f->x, f->in.n, p->in_elements, p->stage - 1);
}

static void add_output(const rank_context *rank, const pipeline *p, int m, exchange *e)
{
    size_t elements;
    const flight *f = flight_of(p, m);
    if (p->stage + 1 < p->stages)
        e->list[e->n++] = message(rank, COLLECTIVE_SEND, network_output(f->net, &elements), f->in.n,
                                  p->out_elements, p->stage + 1);
}

static void add_doutput(const rank_context *rank, const pipeline *p, int m, exchange *e)
{
    const flight *f = flight_of(p, m);
    if (p->stage + 1 < p->stages)
        e->list[e->n++] = message(rank, COLLECTIVE_RECV, network_dlogits(f->net), f->in.n,
                                  p->out_elements, p->stage + 1);
}

static void add_dinput(const rank_context *rank, const pipeline *p, int m, exchange *e)
{
    size_t elements;
    const flight *f = flight_of(p, m);
    if (p->stage > 0)
        e->list[e->n++] = message(rank, COLLECTIVE_SEND, network_dinput(f->net, &elements), f->in.n,
                                  p->in_elements, p->stage - 1);
}

/* Micro-batch m of `whole`. Only the first stage reads its pixels. */
static void cut(const rank_context *rank, const pipeline *p, const batch *whole, int m)
{
    flight *f = flight_of(p, m);
    int first = m * chunk_size(whole->n, p->micro_batches);
    size_t row_bytes = DATASET_PIXELS * device_element_bytes(rank->dev);
    f->in = *whole;
    f->in.n = chunk_rows(whole->n, p->micro_batches, m);
    f->in.before = first;
    f->in.x =
        p->stage > 0 ? f->x : (const float *)((const char *)whole->x + (size_t)first * row_bytes);
    f->in.labels += first;
    f->in.samples += first;
}

static status forward(rank_context *rank, const pipeline *p, int m)
{
    const flight *f = flight_of(p, m);
    TRY(timeline_enter(&rank->timeline, MOMENT_FORWARD));
    return network_forward(f->net, &f->in, NETWORK_TRAIN);
}

static status backward(rank_context *rank, pipeline *p, int m)
{
    const flight *f = flight_of(p, m);
    bool adds = p->accumulates;
    p->accumulates = true;
    TRY(timeline_enter(&rank->timeline, MOMENT_BACKWARD));
    if (p->stage + 1 == p->stages)
        TRY(network_loss(rank->net, network_logits(f->net), &f->in, network_dlogits(f->net)));
    return network_backward_from(f->net, adds, NULL, NULL);
}

/* The forward of micro-batch m: its input comes, its output goes. */
static status forward_alone(rank_context *rank, const pipeline *p, const batch *whole, int m)
{
    exchange e = {0};
    cut(rank, p, whole, m);
    add_input(rank, p, m, &e);
    TRY(run_exchange(rank, &e));
    TRY(forward(rank, p, m));
    add_output(rank, p, m, &e);
    return run_exchange(rank, &e);
}

static status backward_alone(rank_context *rank, pipeline *p, int m)
{
    exchange e = {0};
    add_doutput(rank, p, m, &e);
    TRY(run_exchange(rank, &e));
    TRY(backward(rank, p, m));
    add_dinput(rank, p, m, &e);
    return run_exchange(rank, &e);
}

/* The forward of m and the backward of the oldest one under way, `old`. Two stages exchange what
 * goes on and what comes back in one go, or each would wait for the other. */
static status forward_and_backward(rank_context *rank, pipeline *p, const batch *whole, int m,
                                   int old, bool last)
{
    exchange e = {0};
    TRY(forward(rank, p, m));
    add_output(rank, p, m, &e);
    add_doutput(rank, p, old, &e);
    TRY(run_exchange(rank, &e));
    TRY(backward(rank, p, old));
    add_dinput(rank, p, old, &e);
    if (!last) {
        cut(rank, p, whole, m + 1);
        add_input(rank, p, m + 1, &e);
    }
    return run_exchange(rank, &e);
}

/* Some forwards until the stage is full, then one forward and one backward each, then the backwards
 * that are left. */
static status run_micro_batches(rank_context *rank, pipeline *p, const batch *whole, int n)
{
    int ahead = pipeline_under_way(p->gpipe, p->stage, p->stages, n) - 1, m;
    exchange e = {0};
    for (m = 0; m < ahead; m++)
        TRY(forward_alone(rank, p, whole, m));
    if (m < n) {
        cut(rank, p, whole, m);
        add_input(rank, p, m, &e);
        TRY(run_exchange(rank, &e));
    }
    for (; m < n; m++)
        TRY(forward_and_backward(rank, p, whole, m, m - ahead, m + 1 == n));
    for (m = n - ahead; m < n; m++)
        TRY(backward_alone(rank, p, m));
    return STATUS_OK;
}

/* The wishes of all stages to stop, and the last one's totals. (Those of other pipelines have come
 * with the gradients.) */
static status tell_all(rank_context *rank)
{
    TRY(strategy_ranks_sum_wish(rank, NULL));
    return process_group_broadcast(rank->mesh.model.group, (void *)network_totals(rank->net),
                                   sizeof(score), DTYPE_U8, rank->mesh.model.world_size - 1,
                                   rank->dev->stream);
}

static status run_step(rank_context *rank, void *self, int step)
{
    pipeline *p = self;
    int micro_steps = loader_micro_steps(rank->loader, step); /* --accum */
    p->accumulates = false;
    for (int micro = 0; micro < micro_steps; micro++) {
        batch whole;
        TRY(timeline_enter(&rank->timeline, MOMENT_LOAD));
        TRY(loader_next(rank->loader, &whole));
        TRY(run_micro_batches(rank, p, &whole, chunk_count(whole.n, p->micro_batches)));
    }
    TRY(strategy_ranks_average_gradients(rank));
    TRY(tell_all(rank));
    TRY(strategy_ranks_optimizer_step(rank, self));
    return timeline_enter(&rank->timeline, MOMENT_BETWEEN);
}

/* A test's batch is one piece. */
static status evaluate(rank_context *rank, void *self, const batch *in)
{
    pipeline *p = self;
    flight *f = &p->flights[0];
    exchange e = {0};
    if (in == NULL) /* the stages of a pipeline have the same batches */
        return STATUS_OK;
    f->in = *in;
    if (p->stage > 0)
        f->in.x = f->x;
    add_input(rank, p, 0, &e);
    TRY(run_exchange(rank, &e));
    TRY(network_forward(f->net, &f->in, NETWORK_EVAL));
    add_output(rank, p, 0, &e);
    TRY(run_exchange(rank, &e));
    return p->stage + 1 == p->stages ? network_score(f->net) : STATUS_OK;
}

static status read_own(rank_context *rank, size_t arena, float *own)
{
    TRY(network_export(rank->net, strategy_ranks_arena(rank, arena), own));
    return process_group_send(rank->mesh.model.group, own, network_count(rank->net), DTYPE_F32, 0,
                              NULL);
}

static status write_own(rank_context *rank, size_t arena, float *own)
{
    TRY(process_group_recv(rank->mesh.model.group, own, network_count(rank->net), DTYPE_F32, 0,
                           NULL));
    return network_import(rank->net, own, strategy_ranks_arena(rank, arena));
}

/* Rank 0's stage is the first: its parameters begin the model's. The other stages of its pipeline
 * give theirs; those of other pipelines have nothing to add. */
static status read_state(rank_context *rank, void *self, size_t arena, float *host)
{
    float *own = NULL;
    size_t count;
    (void)self;
    if (rank->mesh.dp.rank > 0)
        return STATUS_OK;
    if (rank->mesh.model.rank > 0) {
        TRY(memory_alloc(sizeof *own * network_count(rank->net), (void **)&own));
        status st = read_own(rank, arena, own);
        free(own);
        return st;
    }
    TRY(network_export(rank->net, strategy_ranks_arena(rank, arena), host));
    for (int stage = 1; stage < rank->mesh.model.world_size; stage++) {
        size_t at = strategy_stage_range(rank, stage, &count);
        TRY(process_group_recv(rank->mesh.model.group, host + at, count, DTYPE_F32, stage, NULL));
    }
    return STATUS_OK;
}

static status write_state(rank_context *rank, void *self, size_t arena, const float *host)
{
    float *own = NULL;
    size_t count;
    (void)self;
    if (rank->mesh.dp.rank > 0)
        return STATUS_OK;
    if (rank->mesh.model.rank > 0) {
        TRY(memory_alloc(sizeof *own * network_count(rank->net), (void **)&own));
        status st = write_own(rank, arena, own);
        free(own);
        return st;
    }
    TRY(network_import(rank->net, host, strategy_ranks_arena(rank, arena)));
    for (int stage = 1; stage < rank->mesh.model.world_size; stage++) {
        size_t at = strategy_stage_range(rank, stage, &count);
        TRY(process_group_send(rank->mesh.model.group, host + at, count, DTYPE_F32, stage, NULL));
    }
    return STATUS_OK;
}

static void describe(const rank_context *rank, void *self, FILE *out)
{
    const pipeline *p = self;
    strategy_describe_stages(rank, out);
    fprintf(out, "%d micro-batches, %s: a stage is idle for %.0f%% of a step, if all are equal\n",
            p->micro_batches, p->gpipe ? "gpipe" : "1f1b",
            100.0 * (p->stages - 1) / (p->micro_batches + p->stages - 1));
    fputs("activations go to the next stage, and their gradients come back\n", out);
    if (rank->mesh.dp.world_size > 1)
        fprintf(out,
                "%d pipelines: the same stages average their gradients, one all_reduce a step\n",
                rank->mesh.dp.world_size);
}

const strategy_ops strategy_pipeline = {
    .facts = {.name = "pipeline",
              .title = "mode pipeline, stages",
              .unit = "stage",
              .least_ranks = 2,
              .axis = "pp",
              .cuts_model = true,
              .most_ranks = network_parts,
              .has_peer = true,
              .advice = "take it if the network does not fit a device and links are slow: only "
                        "activations travel, but stages wait for each other"},
    .check = check,
    .open = open_stage,
    .close = close_stage,
    .network = share_network,
    .read_state = read_state,
    .write_state = write_state,
    .run_step = run_step,
    .evaluate = evaluate,
    .backend = strategy_ranks_backend,
    .use = strategy_ranks_use,
    .describe = describe,
};
