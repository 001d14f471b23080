/* How near the CNN's convolutions come to the GPU's ceilings: their time in a replayed graph, as a
 * training step has it, beside the measured peaks. Random numbers, never zeros.
 *
 *     gpu_convolutions PRECISION PEAK_TFLOPS COPY_GB_PER_S [DEVICE]
 *
 * The two figures are gpu_peak's. One line per pass on stdout, "table=convolutions<TAB>...", with
 * cuDNN's engine (its number, notes, workspace, and how many images go at once).
 */
#include "base/clock.h"
#include "base/status.h"
#include "kernels/device_kind.h"
#include "kernels/ops.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KERNEL = 3, SAMPLES = 5, MIN_CALLS = 20, CALL_IMAGES = 12800 };

typedef enum pass { PASS_FORWARD, PASS_WEIGHTS, PASS_DATA, N_PASSES } pass;

static const char *const pass_names[N_PASSES] = {"forward", "weights", "data"};

/* The CNN's (model/network.h). */
static const conv2d_shape shapes[] = {
    {1, 28, 28, 32, KERNEL, true, true},
    {32, 26, 26, 64, KERNEL, false, false},
};

typedef struct subject {
    device *dev;
    const conv2d_shape *shape;
    int n;
    conv2d *plan;
    float *x, *y, *dx, *dy;        /* activations and their gradients */
    float *parameters, *gradients; /* weight, then bias */
} subject;

static size_t weights_of(const conv2d_shape *s)
{
    return (size_t)s->out_channels * (size_t)s->channels * KERNEL * KERNEL;
}

static size_t inputs_of(const conv2d_shape *s)
{
    return (size_t)s->channels * (size_t)s->height * (size_t)s->width;
}

static size_t outputs_of(const conv2d_shape *s)
{
    return (size_t)s->out_channels * (size_t)(s->height - KERNEL + 1) *
           (size_t)(s->width - KERNEL + 1);
}

static size_t element_bytes(const device *dev)
{
    return dev->precision == PRECISION_BF16 || dev->precision == PRECISION_F16 ? 2 : 4;
}

/* `count` numbers of the activations' type in +-[0.5, 1), by their bits; always float32 where
 * `plain`. */
static status random_numbers(device *dev, size_t count, bool plain, float **out)
{
    bool half = !plain && element_bytes(dev) == 2;
    size_t size_bytes = sizeof **out * count;
    uint32_t *bits = malloc(size_bytes), state = 12345;
    void *memory = NULL;
    if (bits == NULL)
        return FAIL(STATUS_NO_MEMORY, "%zu bytes", size_bytes);
    uint32_t pair = dev->precision == PRECISION_BF16 ? 0x3f003f00u : 0x38003800u;
    uint32_t loose = dev->precision == PRECISION_BF16 ? 0x807f807fu : 0x83ff83ffu;
    for (size_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        uint32_t word = state ^ state >> 15;
        bits[i] = half ? pair | (word & loose) : 0x3f000000u | (word & 0x807fffffu);
    }
    status st = dev->ops->alloc(dev, size_bytes, &memory);
    if (st == STATUS_OK)
        st = dev->ops->upload(dev, memory, bits, size_bytes);
    free(bits);
    *out = memory;
    return st;
}

static void subject_close(subject *s)
{
    float *const memory[] = {s->x, s->y, s->dx, s->dy, s->parameters, s->gradients};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++)
        s->dev->ops->free(s->dev, memory[i]);
    s->dev->ops->conv2d_destroy(s->plan);
}

static status subject_init(device *dev, const conv2d_shape *shape, int n, subject *out)
{
    *out = (subject){.dev = dev, .shape = shape, .n = n};
    size_t inputs = (size_t)n * inputs_of(shape), outputs = (size_t)n * outputs_of(shape);
    size_t parameters = weights_of(shape) + (size_t)shape->out_channels;
    status st = dev->ops->conv2d_create(dev, shape, n, &out->plan);
    if (st == STATUS_OK)
        st = random_numbers(dev, inputs, false, &out->x);
    if (st == STATUS_OK)
        st = random_numbers(dev, inputs, false, &out->dx);
    if (st == STATUS_OK)
        st = random_numbers(dev, outputs, false, &out->y);
    if (st == STATUS_OK)
        st = random_numbers(dev, outputs, false, &out->dy);
    if (st == STATUS_OK)
        st = random_numbers(dev, parameters, true, &out->parameters);
    if (st == STATUS_OK)
        st = random_numbers(dev, parameters, true, &out->gradients);
    if (st == STATUS_OK)
        st = dev->ops->begin_forward(dev, out->parameters, parameters);
    if (st != STATUS_OK)
        subject_close(out);
    return st;
}

static status enqueue(const subject *s, pass which)
{
    const device_ops *ops = s->dev->ops;
    size_t bias = weights_of(s->shape);
    switch (which) {
    case PASS_FORWARD:
        return ops->conv2d_forward(s->plan, s->n, s->x, s->parameters, s->parameters + bias, s->y);
    case PASS_WEIGHTS: {
        param_gradients out = {s->gradients, s->gradients + bias, false};
        return ops->conv2d_backward_weights(s->plan, s->n, s->x, s->y, s->dy, &out);
    }
    default:
        return ops->conv2d_backward_data(s->plan, s->n, s->parameters, s->y, s->dy, s->dx);
    }
}

static status enqueue_calls(const subject *s, pass which, int calls)
{
    for (int i = 0; i < calls; i++)
        TRY(enqueue(s, which));
    return STATUS_OK;
}

static int ascending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Seconds of one call: the median of SAMPLES. */
static status measure(const subject *s, pass which, double *out)
{
    device *dev = s->dev;
    const accelerator_ops *accelerator = dev->ops->accelerator;
    device_graph *graph = NULL;
    int calls = CALL_IMAGES / s->n > MIN_CALLS ? CALL_IMAGES / s->n : MIN_CALLS;
    int64_t sample[SAMPLES];
    TRY(enqueue(s, which)); /* libraries may set themselves up in their first call */
    if (accelerator != NULL) {
        TRY(accelerator->capture_begin(dev));
        status st = enqueue_calls(s, which, calls);
        status ended = accelerator->capture_end(dev, st == STATUS_OK ? &graph : NULL);
        TRY(st != STATUS_OK ? st : ended);
    }
    status st = STATUS_OK;
    for (int i = -1; i < SAMPLES && st == STATUS_OK; i++) { /* the first one warms up */
        int64_t begun = clock_now_ns();
        st = graph != NULL ? accelerator->graph_launch(dev, graph) : enqueue_calls(s, which, calls);
        if (st == STATUS_OK)
            st = dev->ops->synchronize(dev);
        if (i >= 0)
            sample[i] = clock_now_ns() - begun;
    }
    if (graph != NULL)
        accelerator->graph_destroy(graph);
    TRY(st);
    qsort(sample, SAMPLES, sizeof sample[0], ascending);
    *out = clock_seconds(sample[SAMPLES / 2]) / calls;
    return STATUS_OK;
}

/* The fewest bytes that a pass must move: each array once. */
static double bytes_of(const subject *s, pass which)
{
    double inputs = (double)inputs_of(s->shape), outputs = (double)outputs_of(s->shape);
    double masks = s->shape->relu && which != PASS_FORWARD ? outputs : 0;
    return (double)s->n * (inputs + outputs + masks) * (double)element_bytes(s->dev);
}

/* cuDNN's engine for it, as more columns; nothing where own kernels do it. */
static void print_engine(const subject *s, pass which)
{
    device_choice c, found = {.engine = -1};
    for (int i = 0; s->dev->ops->choice != NULL && s->dev->ops->choice(s->dev, i, &c); i++)
        if (c.batch == s->n && c.engine >= 0 &&
            strncmp(c.pass, pass_names[which], strlen(pass_names[which])) == 0)
            found = c;
    if (found.engine < 0 || s->shape->plain_input)
        printf("\tengine=own\tpiece=%d\tworkspace_bytes=0\tnotes=-\n", s->n);
    else
        printf("\tengine=%lld\tpiece=%d\tworkspace_bytes=%lld\tnotes=%s\n", (long long)found.engine,
               found.piece, (long long)found.workspace_bytes, found.notes);
}

static void print(const subject *s, pass which, double seconds, double peak_tflops, double copy_gbs)
{
    double operations =
        2.0 * s->n * (double)outputs_of(s->shape) * s->shape->channels * KERNEL * KERNEL;
    double tflops = operations / seconds / 1e12;
    printf("table=convolutions\tlayer=%d->%d\tpass=%s\tprecision=%s\tbatch=%d\tus=%.1f\t"
           "tflops=%.2f\tof_peak_%%=%.1f\tof_copy_%%=%.1f",
           s->shape->channels, s->shape->out_channels, pass_names[which],
           precision_name(s->dev->precision), s->n, seconds * 1e6, tflops,
           100 * tflops / peak_tflops, 100 * bytes_of(s, which) / seconds / 1e9 / copy_gbs);
    print_engine(s, which);
    fflush(stdout);
}

static status measure_all(device *dev, double peak_tflops, double copy_gbs)
{
    static const int batches[] = {64, 512, 4096};
    for (size_t b = 0; b < sizeof batches / sizeof batches[0]; b++) {
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            subject s;
            TRY(subject_init(dev, &shapes[i], batches[b], &s));
            status st = STATUS_OK;
            for (int p = 0; p < N_PASSES && st == STATUS_OK; p++) {
                double seconds = 0;
                if (p == PASS_DATA && shapes[i].plain_input)
                    continue; /* the batch needs no gradient */
                st = measure(&s, (pass)p, &seconds);
                if (st == STATUS_OK)
                    print(&s, (pass)p, seconds, peak_tflops, copy_gbs);
            }
            subject_close(&s);
            TRY(st);
        }
    }
    return STATUS_OK;
}

static status run(char **argv, const char *name)
{
    device_options options = {.name = name, .threads = 1, .precision = PRECISION_F32};
    double peak_tflops = atof(argv[2]), copy_gbs = atof(argv[3]);
    while (strcmp(precision_name(options.precision), argv[1]) != 0)
        if (options.precision++ == PRECISION_F16)
            return FAIL(STATUS_INVALID, "no precision \"%s\"", argv[1]);
    if (!(peak_tflops > 0) || !(copy_gbs > 0))
        return FAIL(STATUS_INVALID, "the ceilings must be positive");
    device *dev = NULL;
    TRY(device_create(&options, &dev));
    status st = dev->emulation == NULL
                    ? measure_all(dev, peak_tflops, copy_gbs)
                    : FAIL(STATUS_INVALID, "no figures from a device that is %s", dev->emulation);
    device_destroy(dev);
    return st;
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fputs("usage: gpu_convolutions PRECISION PEAK_TFLOPS COPY_GB_PER_S [DEVICE]\n", stderr);
        return EXIT_FAILURE;
    }
    if (run(argv, argc > 4 ? argv[4] : "cuda") != STATUS_OK) {
        fprintf(stderr, "gpu_convolutions: %s\n", status_text());
        return EXIT_FAILURE;
    }
    return EXIT_SUCCESS;
}
