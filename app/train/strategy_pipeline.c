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

static status check(const options *opts, int n)
{
    if (opts->stages > 0 && opts->stages != n)
        return FAIL(STATUS_INVALID,
                    "--stages=%lld: this job has %d, a rank each: give --mesh for several "
                    "pipelines",
                    (long long)opts->stages, n);
    return STATUS_OK;
}

static void share_network(const rank_context *rank, network_share *out)
{
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
    for (int i = 0; i < p->n_flights; i++) {
        if (i > 0)
            network_destroy(p->flights[i].net);
        p->dev->ops->free(p->dev, p->flights[i].x);
    }
    free(p->flights);
}

static status open_stage(rank_context *rank, void *self)
{
    pipeline *p = self;
    *p = (pipeline){.dev = rank->dev,
                    .stage = rank->mesh.model.rank,
                    .stages = rank->mesh.model.world_size,
                    .micro_batches = (int)rank->opts->micro_batches,
                    .gpipe = strcmp(rank->opts->pipeline_schedule, "gpipe") == 0};
    int n = pipeline_under_way(p->gpipe, p->stage, p->stages, p->micro_batches);
    (void)network_dinput(rank->net, &p->in_elements);
    (void)network_output(rank->net, &p->out_elements);
    TRY(memory_alloc(sizeof *p->flights * (size_t)n, (void **)&p->flights));
    p->n_flights = n;
    for (int i = 0; i < n; i++)
        TRY(open_flight(rank, p, i, &p->flights[i]));
    return STATUS_OK;
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

/* What comes and goes for a micro-batch: the input comes and the output goes, then the gradient of
 * the output comes and that of the input goes. */
typedef enum passage { INPUT, OUTPUT, DOUTPUT, DINPUT } passage;

static const void *memory_of(const flight *f, passage what)
{
    size_t elements;
    return what == INPUT    ? f->x
           : what == OUTPUT ? network_output(f->net, &elements)
           : what == DINPUT ? network_dinput(f->net, &elements)
                            : network_dlogits(f->net);
}

/* The ends of the pipeline have nobody there. */
static void add(const rank_context *rank, const pipeline *p, int m, passage what, exchange *e)
{
    const flight *f = flight_of(p, m);
    const void *memory = memory_of(f, what);
    bool sends = what == OUTPUT || what == DINPUT, goes_on = what == OUTPUT || what == DOUTPUT;
    size_t elements = goes_on ? p->out_elements : p->in_elements;
    int peer = goes_on ? p->stage + 1 : p->stage - 1;
    if (peer < 0 || peer == p->stages)
        return;
    e->list[e->n++] =
        (collective){.kind = sends ? COLLECTIVE_SEND : COLLECTIVE_RECV,
                     .type = DTYPE_U8,
                     .in = sends ? memory : NULL,
                     .out = sends ? NULL : (void *)memory,
                     .count = (size_t)f->in.n * elements * device_element_bytes(rank->dev),
                     .root = peer,
                     .label = goes_on ? "with the next stage" : "with the stage before"};
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

/* Some forwards until the stage is full, then one forward and one backward each, then the backwards
 * that are left. What goes on travels at once with what comes back, and what goes back with what
 * comes next: or two stages would wait for each other. */
static status run_micro_batches(rank_context *rank, pipeline *p, const batch *whole, int n)
{
    int ahead = pipeline_under_way(p->gpipe, p->stage, p->stages, n) - 1;
    exchange e = {0};
    for (int m = -1; m < n + ahead; m++) {
        if (m >= 0 && m < n) {
            TRY(forward(rank, p, m));
            add(rank, p, m, OUTPUT, &e);
        }
        if (m >= ahead) {
            add(rank, p, m - ahead, DOUTPUT, &e);
            TRY(run_exchange(rank, &e));
            TRY(backward(rank, p, m - ahead));
            add(rank, p, m - ahead, DINPUT, &e);
        }
        if (m + 1 < n) {
            cut(rank, p, whole, m + 1);
            add(rank, p, m + 1, INPUT, &e);
        }
        TRY(run_exchange(rank, &e));
    }
    return STATUS_OK;
}

/* The wishes of all stages to stop, and the last one's totals. (Those of other pipelines have come
 * with the gradients.) */
static status tell_all(rank_context *rank)
{
    TRY(strategy_ranks_sum_wish(rank));
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
    TRY(strategy_ranks_optimizer_step(rank));
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
    add(rank, p, 0, INPUT, &e);
    TRY(run_exchange(rank, &e));
    TRY(network_forward(f->net, &f->in, NETWORK_EVAL));
    add(rank, p, 0, OUTPUT, &e);
    TRY(run_exchange(rank, &e));
    return p->stage + 1 == p->stages ? network_score(f->net) : STATUS_OK;
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
              .alone = "one rank is no pipeline",
              .axis = "pp",
              .cuts_model = true,
              .most = network_parts,
              .has_peer = true,
              .advice = "take it if the network does not fit a device and links are slow: only "
                        "activations travel, but stages wait for each other"},
    .check = check,
    .self_bytes = sizeof(pipeline),
    .open = open_stage,
    .close = close_stage,
    .cut = strategy_stage,
    .network = share_network,
    .move_state = strategy_ranks_move_cut,
    .run_step = run_step,
    .evaluate = evaluate,
    .describe = describe,
};
