/* Model parallelism (PyTorch's tutorial "Single-Machine Model Parallel Best Practices"): one
 * process, and each device has some of the network's layers. Activations are copied from one device
 * to the next, and their gradients back. So a model may be larger than one device's memory; but one
 * device works at a time, and the others wait for it.
 *
 * The rank's own device and network are the last part: the loader fills that device, and the loss
 * needs its labels. Pixels are copied to the first part.
 */
#include "app/common/device_list.h"
#include "app/train/strategy_ops.h"
#include "base/memory.h"
#include "kernels/ops.h"

#include <stdlib.h>
#include <string.h>

/* Of the last part, what its comment names is the rank's. */
typedef struct part {
    device *dev;       /* the rank's */
    network *net;      /* the rank's */
    step_state *state; /* the rank's */
    optimizer *opt;    /* the strategy's: NULL */
    float *x;          /* (max_batch, elements): its input; NULL: there is one part */
    uint32_t *samples; /* (max_batch); the loader's: NULL */
    device_use use;
} part;

typedef struct model_parallel {
    rank_context *rank;
    int n;
    part parts[NETWORK_MAX_PARAMETERS];
    void *staged; /* host memory, as one GPU may not reach another's; NULL: devices are the host */
    step_plan plan; /* the step's, for all but the rank's device */
    bool trains;    /* else it is a test's batch: no time is counted, and no bytes */
} model_parallel;

static part *last_part(model_parallel *m)
{
    return &m->parts[m->n - 1];
}

/* A part that is not the rank's own. */
static status open_own(const rank_context *rank, int i, part *p)
{
    network_options settings = rank_context_network_options(rank);
    settings.max_batch = network_max_batch(rank->net);
    settings.cut = strategy_stage(rank, i);
    TRY(device_list_open(rank->opts, i, rank->settings.threads, &p->dev));
    TRY(device_trace(p->dev, rank->trace.spans, rank->trace.lane));
    const device_ops *ops = p->dev->ops;
    TRY(ops->alloc(p->dev, sizeof *p->state, (void **)&p->state));
    TRY(ops->alloc(p->dev, sizeof *p->samples * (size_t)settings.max_batch, (void **)&p->samples));
    TRY(network_create(p->dev, &settings, &p->net));
    optimizer_part all = {network_parameters(p->net), network_gradients(p->net),
                          .count = network_count(p->net)};
    return optimizer_create(p->dev, &rank->settings.optimizer, &all, &p->opt);
}

static status open_parts(rank_context *rank, void *self)
{
    model_parallel *m = self;
    *m = (model_parallel){.rank = rank, .n = strategy_stages(rank)};
    size_t elements = DATASET_PIXELS, rows = (size_t)network_max_batch(rank->net);
    *last_part(m) = (part){.dev = rank->dev, .net = rank->net, .state = rank->step_state};
    size_t most = elements;
    for (int i = 0; i < m->n && m->n > 1; i++) {
        part *p = &m->parts[i];
        if (p != last_part(m))
            TRY(open_own(rank, i, p));
        TRY(p->dev->ops->alloc(p->dev, sizeof *p->x * rows * elements, (void **)&p->x));
        most = elements > most ? elements : most;
        (void)network_output(p->net, &elements);
    }
    return rank->dev->ops->accelerator != NULL && m->n > 1
               ? memory_alloc(sizeof(float) * rows * most, &m->staged)
               : STATUS_OK;
}

static void close_own(part *p)
{
    optimizer_destroy(p->opt);
    network_destroy(p->net);
    if (p->dev != NULL) {
        p->dev->ops->free(p->dev, p->samples);
        p->dev->ops->free(p->dev, p->x);
        p->dev->ops->free(p->dev, p->state);
    }
    device_destroy(p->dev);
}

static void close_model(void *self)
{
    model_parallel *m = self;
    m->rank->dev->ops->free(m->rank->dev, last_part(m)->x);
    for (int i = 0; i + 1 < m->n; i++)
        close_own(&m->parts[i]);
    free(m->staged);
}

static void plan_step(void *self, const step_plan *plan)
{
    model_parallel *m = self;
    m->plan = *plan;
    m->plan.loss_sum = NULL; /* memory of the rank's device */
}

/* From here on this thread works with that part's device, which has done all that it was given: the
 * time of that is the moment's before. */
static status enter(model_parallel *m, const part *p, moment now)
{
    TRY(p->dev->ops->synchronize(p->dev));
    return m->trains ? timeline_enter(&m->rank->timeline, now) : STATUS_OK;
}

/* From memory of one device to memory of another. It is done on return. */
static status copy(model_parallel *m, part *from, part *to, void *dst, const void *src,
                   size_t size_bytes)
{
    if (m->staged == NULL) {
        TRY(to->dev->ops->copy(to->dev, dst, src, size_bytes));
    } else {
        TRY(from->dev->ops->download(from->dev, m->staged, src, size_bytes));
        TRY(to->dev->ops->upload(to->dev, dst, m->staged, size_bytes));
    }
    if (m->trains) {
        from->use.sent_bytes += (int64_t)size_bytes;
        to->use.received_bytes += (int64_t)size_bytes;
    }
    return STATUS_OK;
}

/* The input of part `to`, and the samples' positions, which dropout needs. */
static status copy_input(model_parallel *m, part *from, part *to, batch *in)
{
    size_t elements = DATASET_PIXELS, n = (size_t)in->n;
    const float *x = to == m->parts ? in->x : network_output(from->net, &elements);
    TRY(enter(m, from, MOMENT_SCATTER));
    TRY(copy(m, from, to, to->x, x, n * elements * device_element_bytes(to->dev)));
    in->x = to->x;
    if (to == last_part(m))
        return STATUS_OK;
    TRY(copy(m, last_part(m), to, to->samples, in->samples, n * sizeof *to->samples));
    in->samples = to->samples;
    return STATUS_OK;
}

static status forward(model_parallel *m, const batch *whole, network_mode mode)
{
    part *from = last_part(m);
    for (int i = 0; i < m->n; from = &m->parts[i++]) {
        part *p = &m->parts[i];
        batch in = *whole;
        if (m->n > 1)
            TRY(copy_input(m, from, p, &in));
        in.state = p->state;
        TRY(enter(m, p, MOMENT_FORWARD));
        TRY(network_forward(p->net, &in, mode));
    }
    return STATUS_OK;
}

static status backward(model_parallel *m, int n, bool adds)
{
    size_t elements;
    TRY(enter(m, last_part(m), MOMENT_BACKWARD));
    TRY(network_backward(last_part(m)->net, adds, NULL, NULL));
    for (int i = m->n - 1; i > 0; i--) {
        part *from = &m->parts[i], *to = from - 1;
        const float *dx = network_dinput(from->net, &elements);
        TRY(enter(m, from, MOMENT_GATHER));
        TRY(copy(m, from, to, network_dlogits(to->net), dx,
                 (size_t)n * elements * device_element_bytes(to->dev)));
        TRY(enter(m, to, MOMENT_BACKWARD));
        TRY(network_backward_from(to->net, adds, NULL, NULL));
    }
    return last_part(m)->dev->ops->synchronize(last_part(m)->dev); /* the loader goes on there */
}

static status forward_backward(rank_context *rank, void *self, const step_batch *b)
{
    model_parallel *m = self;
    (void)rank;
    for (part *p = m->parts; b->first && p < last_part(m); p++)
        TRY(p->dev->ops->begin_step(p->dev, &m->plan, p->state, NULL));
    m->trains = true;
    TRY(forward(m, &b->in, NETWORK_TRAIN));
    return backward(m, b->in.n, !b->first);
}

static status step_parts(rank_context *rank, void *self)
{
    model_parallel *m = self;
    for (part *p = m->parts; p < last_part(m); p++) {
        TRY(enter(m, p, MOMENT_OPTIMIZER));
        TRY(optimizer_step(p->opt, p->state));
    }
    TRY(enter(m, last_part(m), MOMENT_OPTIMIZER));
    return strategy_ranks_optimizer_step(rank);
}

static status evaluate(rank_context *rank, void *self, const batch *in)
{
    model_parallel *m = self;
    m->trains = false;
    TRY(forward(m, in, NETWORK_EVAL));
    return network_score(rank->net);
}

static float *arena_of(model_parallel *m, const part *p, size_t arena)
{
    optimizer *opt = p->opt != NULL ? p->opt : strategy_optimizer(m->rank->strategy);
    return checkpoint_arena(p->net, opt, arena);
}

static status move_state(rank_context *rank, void *self, size_t arena, network_order way,
                         float *host)
{
    model_parallel *m = self;
    (void)rank;
    for (part *p = m->parts; p <= last_part(m); host += network_count(p++->net))
        TRY(way == NETWORK_EXPORT ? network_export(p->net, arena_of(m, p, arena), host)
                                  : network_import(p->net, host, arena_of(m, p, arena)));
    return STATUS_OK;
}

static status is_finite(void *self, bool *out)
{
    model_parallel *m = self;
    *out = true;
    for (part *p = m->parts; p <= last_part(m) && *out; p++)
        TRY(network_is_finite(p->net, out));
    return STATUS_OK;
}

static device_use use(void *self, int index)
{
    const part *p = &((const model_parallel *)self)->parts[index];
    return (device_use){p->use.sent_bytes, p->use.received_bytes, p->dev->memory_peak};
}

static void describe(const rank_context *rank, void *self, FILE *out)
{
    model_parallel *m = self;
    strategy_describe_stages(rank, out);
    fprintf(out, "one device works at a time: each is idle for %.0f%%, if all are equal\n",
            100.0 * (m->n - 1) / m->n);
    fputs("activations are copied to the next device, and their gradients back\n", out);
    fprintf(out, "labels are on device %d, which has the loss; pixels go to device 0\n", m->n - 1);
}

const strategy_ops strategy_model = {
    .facts = {.name = "model",
              .title = "mode model, devices",
              .unit = "device",
              .is_one_process = true,
              .has_replicas = true,
              .axis = "pp",
              .cuts_model = true,
              .most = network_parts,
              .advice =
                  "take it if the network does not fit a device and one process has them all: "
                  "nothing to set, but one device works at a time"},
    .self_bytes = sizeof(model_parallel),
    .open = open_parts,
    .close = close_model,
    .cut = strategy_stage,
    .move_state = move_state,
    .is_finite = is_finite,
    .plan_step = plan_step,
    .forward_backward = forward_backward,
    .optimizer_step = step_parts,
    .evaluate = evaluate,
    .describe = describe,
    .use = use,
};
