#include "model/classifier.h"

#include "base/log.h"
#include "base/memory.h"
#include "model/checkpoint.h"

#include <math.h>
#include <stdlib.h>

static int argmax(const float logits[NETWORK_CLASSES])
{
    int best = 0;
    for (int c = 1; c < NETWORK_CLASSES; c++)
        if (logits[c] > logits[best])
            best = c;
    return best;
}

/* Sets out[c] = exp(logits[c] - largest); returns their sum. */
static double exponentials(const float logits[NETWORK_CLASSES], float largest,
                           double out[NETWORK_CLASSES])
{
    double sum = 0;
    for (int c = 0; c < NETWORK_CLASSES; c++) {
        out[c] = exp((double)(logits[c] - largest));
        sum += out[c];
    }
    return sum;
}

prediction prediction_of(const float logits[NETWORK_CLASSES])
{
    prediction p = {.label = argmax(logits)};
    double sum = exponentials(logits, logits[p.label], p.probabilities);
    for (int c = 0; c < NETWORK_CLASSES; c++)
        p.probabilities[c] /= sum;
    return p;
}

double prediction_loss(const float logits[NETWORK_CLASSES], int label)
{
    double each[NETWORK_CLASSES];
    float largest = logits[argmax(logits)];
    return log(exponentials(logits, largest, each)) - (double)(logits[label] - largest);
}

/* All but `net` is device memory for max_batch images. */
struct classifier {
    device *dev;
    network *net;
    step_state *state;
    uint8_t *images; /* an accelerator's copy; NULL: gather reads the caller's */
    uint8_t *labels; /* zeros: nobody knows the truth */
    uint32_t *order; /* 0, 1, 2 .. */
    gather_output gathered;
};

static status alloc(classifier *c, size_t size_bytes, void **out)
{
    return c->dev->ops->alloc(c->dev, size_bytes, out);
}

static status fill_order(classifier *c, size_t n)
{
    uint32_t *order = NULL;
    size_t size_bytes = n * sizeof *order;
    TRY(memory_alloc(size_bytes, (void **)&order));
    for (size_t i = 0; i < n; i++)
        order[i] = (uint32_t)i;
    status st = alloc(c, size_bytes, (void **)&c->order);
    if (st == STATUS_OK)
        st = c->dev->ops->upload(c->dev, c->order, order, size_bytes);
    free(order);
    return st;
}

static status alloc_batch(classifier *c, size_t n)
{
    const size_t pixels = n * CLASSIFIER_PIXELS;
    TRY(alloc(c, sizeof *c->state, (void **)&c->state));
    if (c->dev->ops->accelerator != NULL)
        TRY(alloc(c, pixels, (void **)&c->images));
    TRY(alloc(c, n, (void **)&c->labels));
    TRY(alloc(c, pixels * sizeof *c->gathered.x, (void **)&c->gathered.x));
    TRY(alloc(c, n, (void **)&c->gathered.labels));
    TRY(alloc(c, n * sizeof *c->gathered.samples, (void **)&c->gathered.samples));
    return fill_order(c, n);
}

static status open_network(classifier *c, const char *path, int max_batch)
{
    int best = network_eval_batch(c->dev);
    network_options settings = {.max_batch = max_batch < best ? max_batch : best};
    TRY(checkpoint_model_kind(path, &settings.kind));
    TRY(network_create(c->dev, &settings, &c->net));
    return checkpoint_load_model(path, c->net, NULL);
}

/* Such a weight need not show: a ReLU makes a NaN of it a zero. */
static status tell_if_not_finite(const classifier *c, const char *path)
{
    bool finite = true;
    TRY(network_is_finite(c->net, &finite));
    if (!finite)
        LOG_W("%s holds a weight that is not finite: what it says means nothing", path);
    return STATUS_OK;
}

status classifier_create(device *dev, const char *path, int max_batch, classifier **out)
{
    classifier *c = NULL;
    TRY(memory_alloc(sizeof *c, (void **)&c));
    c->dev = dev;
    status st = open_network(c, path, max_batch);
    if (st == STATUS_OK)
        st = alloc_batch(c, (size_t)network_max_batch(c->net));
    if (st == STATUS_OK)
        st = tell_if_not_finite(c, path);
    if (st != STATUS_OK) {
        classifier_destroy(c);
        return st;
    }
    *out = c;
    return STATUS_OK;
}

void classifier_destroy(classifier *c)
{
    if (c == NULL)
        return;
    const device_ops *ops = c->dev->ops;
    ops->free(c->dev, c->gathered.samples);
    ops->free(c->dev, c->gathered.labels);
    ops->free(c->dev, c->gathered.x);
    ops->free(c->dev, c->order);
    ops->free(c->dev, c->labels);
    ops->free(c->dev, c->images);
    ops->free(c->dev, c->state);
    network_destroy(c->net);
    free(c);
}

static status run_batch(classifier *c, const uint8_t *images, int n, float *logits)
{
    const device_ops *ops = c->dev->ops;
    const step_plan plan = {0};
    gather_source source = {
        .images = images, .labels = c->labels, .order = c->order, .pixels = CLASSIFIER_PIXELS};
    if (c->images != NULL) {
        TRY(ops->upload(c->dev, c->images, images, (size_t)n * CLASSIFIER_PIXELS));
        source.images = c->images;
    }
    TRY(ops->begin_step(c->dev, &plan, c->state, NULL));
    TRY(ops->gather(c->dev, &source, c->state, 0, n, &c->gathered));
    batch in = {.n = n,
                .x = c->gathered.x,
                .labels = c->gathered.labels,
                .samples = c->gathered.samples,
                .state = c->state};
    TRY(network_forward(c->net, &in, NETWORK_EVAL));
    return ops->download(c->dev, logits, network_logits(c->net),
                         sizeof *logits * NETWORK_CLASSES * (size_t)n);
}

status classifier_run(classifier *c, const uint8_t *images, size_t n, float *logits)
{
    size_t at_once = (size_t)network_max_batch(c->net);
    for (size_t at = 0; at < n; at += at_once) {
        size_t rest = n - at;
        TRY(run_batch(c, images + at * CLASSIFIER_PIXELS, (int)(rest < at_once ? rest : at_once),
                      logits + at * NETWORK_CLASSES));
    }
    return STATUS_OK;
}

network *classifier_network(classifier *c)
{
    return c->net;
}
