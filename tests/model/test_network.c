/* The cpu device, or with --device=cuda that one, computes what the reference
 * device computes, whatever the batch and however many threads; the arena round-trips; accumulation
 * equals one large batch. */
#include "kernels/device_kind.h"
#include "kernels/ops.h"
#include "model/network.h"
#include "model/optimizer.h"
#include "tests/support/cuda.h"
#include "tests/support/suite.h"

#include "base/memory.h"
#include "base/random.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

enum { MAX_N = 64, PIXELS = 784 };

typedef struct rig {
    device *dev;
    network *net;
    size_t count;
    float *gradients, *parameters; /* exported to plain order */
    float logits[MAX_N * NETWORK_CLASSES];
    score total; /* of the last rig_run calls since rig_open */
    float *x;    /* in the device's memory, from here on */
    uint8_t *labels;
    uint32_t *samples;
    step_state *state;
} rig;

static const char *fast = "cpu"; /* the device that is compared with the reference */
static const char *isa = "auto"; /* of the cpu device; --isa=avx2, --isa=generic */

static float x[MAX_N * PIXELS];
static uint8_t labels[MAX_N];
static uint32_t samples[MAX_N];

static void make_input(void)
{
    mt19937 generator;
    mt19937_init(&generator, 5);
    for (int i = 0; i < MAX_N * PIXELS; i++) {
        uint32_t draw = mt19937_u32(&generator);
        float pixel = draw % 5 == 0 ? (float)(draw >> 24) : 0.0f;
        x[i] = (pixel / 255.0f - 0.1307f) / 0.3081f;
    }
    for (int i = 0; i < MAX_N; i++) {
        labels[i] = (uint8_t)(mt19937_u32(&generator) % NETWORK_CLASSES);
        samples[i] = mt19937_u32(&generator) % 60000;
    }
}

static void ok(status st)
{
    ck_assert_msg(st == STATUS_OK, "%s", status_text());
}

static void *place(device *dev, const void *host, size_t size_bytes)
{
    void *memory = NULL;
    ok(dev->ops->alloc(dev, size_bytes, &memory));
    ok(dev->ops->upload(dev, memory, host, size_bytes));
    return memory;
}

static rig rig_open(const char *device_name, int threads, model_kind kind)
{
    rig r = {0};
    const step_state none = {0};
    device_options wanted = {.name = device_name, .threads = threads, .isa = isa};
    ok(device_create(&wanted, &r.dev));
    r.x = place(r.dev, x, sizeof x);
    r.labels = place(r.dev, labels, sizeof labels);
    r.samples = place(r.dev, samples, sizeof samples);
    r.state = place(r.dev, &none, sizeof none);
    network_options options = {.kind = kind, .max_batch = MAX_N, .seed = 3};
    ok(network_create(r.dev, &options, &r.net));
    r.count = network_count(r.net);
    ok(memory_alloc(sizeof(float) * r.count, (void **)&r.gradients));
    ok(memory_alloc(sizeof(float) * r.count, (void **)&r.parameters));
    return r;
}

static void rig_close(rig *r)
{
    network_destroy(r->net);
    void *placed[] = {r->x, r->labels, r->samples, r->state};
    for (size_t i = 0; i < sizeof placed / sizeof placed[0]; i++)
        r->dev->ops->free(r->dev, placed[i]);
    device_destroy(r->dev);
    free(r->gradients);
    free(r->parameters);
}

static batch slice(rig *r, int first, int n)
{
    return (batch){.n = n,
                   .x = r->x + first * PIXELS,
                   .labels = r->labels + first,
                   .samples = r->samples + first,
                   .state = r->state};
}

static void begin_step(rig *r, uint32_t epoch, float grad_scale)
{
    step_plan plan = {.epoch = epoch, .grad_scale = grad_scale};
    ok(r->dev->ops->begin_step(r->dev, &plan, r->state, NULL));
}

static void read_logits(rig *r, int n, float *logits)
{
    ok(r->dev->ops->download(r->dev, logits, network_logits(r->net),
                             sizeof *logits * (size_t)(n * NETWORK_CLASSES)));
}

static void rig_run(rig *r, int first, int n, float grad_scale, bool accumulate)
{
    batch in = slice(r, first, n);
    begin_step(r, 2, grad_scale);
    ok(network_forward(r->net, &in, NETWORK_TRAIN));
    read_logits(r, n, r->logits);
    ok(network_backward(r->net, accumulate, NULL, NULL));
    ok(network_read_score(r->net, &r->total));
    ok(network_export(r->net, network_gradients(r->net), r->gradients));
}

/* Largest difference as a share of the largest value. */
static double difference(const float *a, const float *b, size_t count)
{
    double largest = 0, off = 0;
    for (size_t i = 0; i < count; i++) {
        largest = fmax(largest, fabs((double)b[i]));
        off = fmax(off, fabs((double)a[i] - (double)b[i]));
    }
    return largest > 0 ? off / largest : off;
}

#ifdef SANITIZED /* which makes the reference loops slow */
static const int sizes[] = {1, 9, 33};
#else
static const int sizes[] = {1, 3, 7, 8, 9, 31, 32, 33, 40, 64};
#endif
enum { N_SIZES = sizeof sizes / sizeof sizes[0] };

/* float32 rounds at 2^-24 = 6e-8; a sum of K products errs like sqrt(K) of it, K up to 9216 here:
 * 6e-6, four layers deep, and Winograd's is about four times a direct convolution's. 1e-4 of the
 * largest value leaves room for that and none for a wrong index. A relu or a pool that flips on
 * rounding moves one gradient by its whole size; the input has no such ties within 1e-6. */
static void compare(model_kind kind, int n)
{
    rig want = rig_open("reference", 1, kind), got = rig_open(fast, 1, kind);
    rig_run(&want, 0, n, 1.0f / (float)n, false);
    rig_run(&got, 0, n, 1.0f / (float)n, false);
    double logits = difference(got.logits, want.logits, (size_t)(n * NETWORK_CLASSES));
    ck_assert_msg(logits < 1e-5, "n %d: logits differ by %g", n, logits);
    const parameter *parameters = NULL;
    size_t n_parameters = network_layout(want.net, &parameters);
    for (size_t i = 0; i < n_parameters; i++) {
        const parameter *p = &parameters[i];
        double off = difference(got.gradients + p->offset, want.gradients + p->offset, p->count);
        ck_assert_msg(off < 1e-4, "n %d: gradient of %s differs by %g", n, p->name, off);
    }
    double loss = want.total.loss_sum;
    ck_assert_msg(fabs(got.total.loss_sum - loss) < 1e-5 * loss, "loss %g, want %g",
                  got.total.loss_sum, loss);
    ck_assert_int_eq(got.total.correct, want.total.correct);
    rig_close(&want);
    rig_close(&got);
}

START_TEST(mlp_equals_reference)
{
    compare(MODEL_MLP, sizes[_i]);
}
END_TEST

START_TEST(cnn_equals_reference)
{
    compare(MODEL_CNN, sizes[_i]);
}
END_TEST

START_TEST(speedrun_equals_reference)
{
    compare(MODEL_SPEEDRUN, sizes[_i]);
}
END_TEST

START_TEST(threads_do_not_change_bits)
{
    model_kind kind = (model_kind)(_i % MODEL_COUNT);
    int n = sizes[_i / MODEL_COUNT], threads[] = {2, 3, 5};
    rig one = rig_open(fast, 1, kind);
    rig_run(&one, 0, n, 1.0f, false);
    for (size_t t = 0; t < sizeof threads / sizeof threads[0]; t++) {
        rig many = rig_open(fast, threads[t], kind);
        for (int repeat = 0; repeat < 2; repeat++) {
            rig_run(&many, 0, n, 1.0f, false);
            ck_assert_msg(memcmp(one.gradients, many.gradients, sizeof(float) * one.count) == 0,
                          "n %d: %d threads changed the gradient", n, threads[t]);
            ck_assert(memcmp(one.logits, many.logits,
                             sizeof(float) * (size_t)(n * NETWORK_CLASSES)) == 0);
        }
        rig_close(&many);
    }
    rig_close(&one);
}
END_TEST

START_TEST(accumulation_equals_one_batch)
{
    model_kind kind = (model_kind)(_i % MODEL_COUNT);
    const char *name = _i / MODEL_COUNT == 0 ? "reference" : fast;
    rig whole = rig_open(name, 1, kind), parts = rig_open(name, 1, kind);
    rig_run(&whole, 0, 24, 1.0f / 24, false);
    rig_run(&parts, 0, 9, 1.0f / 24, false);
    rig_run(&parts, 9, 8, 1.0f / 24, true);
    rig_run(&parts, 17, 7, 1.0f / 24, true);
    double off = difference(parts.gradients, whole.gradients, whole.count);
    ck_assert_msg(off < 1e-5, "%s: gradients differ by %g", name, off); /* sums in another order */
    ck_assert_msg(fabs(whole.total.loss_sum - parts.total.loss_sum) < 1e-6 * whole.total.loss_sum,
                  "loss");
    rig_close(&whole);
    rig_close(&parts);
}
END_TEST

/* What a stage has put out, or the gradient of its input, to the next one's memory. */
static void *pass_on(rig *from, rig *to, const float *what, size_t count)
{
    float *host = NULL;
    ok(memory_alloc(sizeof *host * count, (void **)&host));
    ok(from->dev->ops->download(from->dev, host, what, sizeof *host * count));
    void *memory = place(to->dev, host, sizeof *host * count);
    free(host);
    return memory;
}

static rig stage_open(const char *device_name, model_kind kind, int part)
{
    rig r = rig_open(device_name, 1, kind);
    network_destroy(r.net);
    network_options options = {
        .kind = kind, .max_batch = MAX_N, .seed = 3, .cut = {.first_part = part, .n_parts = 1}};
    ok(network_create(r.dev, &options, &r.net));
    return r;
}

/* Each part on a device of its own, one after the other and back: the bits of the whole network. */
START_TEST(stages_are_the_whole_network)
{
    enum { MAX_PARTS = 3, N = 33 };
    model_kind kind = (model_kind)(_i % MODEL_COUNT);
    const char *name = _i / MODEL_COUNT == 0 ? "reference" : fast;
    rig whole = rig_open(name, 1, kind), stages[MAX_PARTS];
    int parts = network_parts(kind);
    size_t elements, at = 0;
    void *passed[2 * MAX_PARTS] = {NULL};
    batch in[MAX_PARTS];
    ck_assert_int_eq(parts, MAX_PARTS);
    rig_run(&whole, 0, N, 1.0f / N, false);
    for (int s = 0; s < parts; s++) {
        stages[s] = stage_open(name, kind, s);
        begin_step(&stages[s], 2, 1.0f / N);
        in[s] = slice(&stages[s], 0, N);
        if (s > 0) {
            const float *y = network_output(stages[s - 1].net, &elements);
            in[s].x = passed[s] = pass_on(&stages[s - 1], &stages[s], y, N * elements);
        }
        ok(network_forward(stages[s].net, &in[s], NETWORK_TRAIN));
    }
    for (int s = parts - 1; s >= 0; s--) {
        if (s == parts - 1) {
            ok(network_backward(stages[s].net, false, NULL, NULL));
        } else {
            const float *dx = network_dinput(stages[s + 1].net, &elements);
            void *dy = passed[MAX_PARTS + s] =
                pass_on(&stages[s + 1], &stages[s], dx, N * elements);
            ok(stages[s].dev->ops->copy(stages[s].dev, network_dlogits(stages[s].net), dy,
                                        sizeof(float) * N * elements));
            ok(network_backward_from(stages[s].net, false, NULL, NULL));
        }
    }
    for (int s = 0; s < parts; at += network_count(stages[s++].net)) {
        const parameter *all = NULL;
        ok(network_export(stages[s].net, network_gradients(stages[s].net), stages[s].gradients));
        for (size_t i = 0; i < network_layout(stages[s].net, &all); i++)
            ck_assert_msg(memcmp(stages[s].gradients + all[i].offset,
                                 whole.gradients + at + all[i].offset,
                                 sizeof(float) * all[i].count) == 0,
                          "gradient of %s", all[i].name);
    }
    ck_assert_uint_eq(at, whole.count);
    ok(network_read_score(stages[parts - 1].net, &stages[0].total));
    ck_assert(stages[0].total.loss_sum == whole.total.loss_sum);
    for (int s = 0; s < parts; s++) {
        for (int i = s; i < 2 * MAX_PARTS; i += MAX_PARTS)
            stages[s].dev->ops->free(stages[s].dev, passed[i]);
        rig_close(&stages[s]);
    }
    rig_close(&whole);
}
END_TEST

START_TEST(arena_round_trips)
{
    const char *name = _i % 2 == 0 ? "reference" : fast;
    rig r = rig_open(name, 1, (model_kind)(_i / 2));
    for (size_t i = 0; i < r.count; i++)
        r.parameters[i] = (float)i;
    ok(network_import(r.net, r.parameters, network_parameters(r.net)));
    memset(r.parameters, 0, sizeof(float) * r.count);
    ok(network_export(r.net, network_parameters(r.net), r.parameters));
    for (size_t i = 0; i < r.count; i++)
        if (r.parameters[i] != (float)i) /* a check that passes costs a system call */
            ck_abort_msg("element %zu became %g", i, (double)r.parameters[i]);
    rig_close(&r);
}
END_TEST

typedef struct ready_log {
    device_stream *stream; /* where slices are ready */
    size_t next;           /* the slice that must come next ends here */
    int calls;
} ready_log;

static status note_ready(void *ctx, size_t offset, size_t count, device_stream *stream)
{
    ready_log *seen = ctx;
    if (offset + count != seen->next || stream != seen->stream)
        return FAIL(STATUS_INVALID, "slice [%zu, +%zu) after %zu", offset, count, seen->next);
    seen->next = offset;
    seen->calls++;
    return STATUS_OK;
}

START_TEST(slices_are_ready_last_layer_first)
{
    static const size_t counts[MODEL_COUNT] = {669706, 1199882, 108874};
    model_kind kind = (model_kind)_i;
    rig r = rig_open(fast, 1, kind);
    ready_log seen = {.stream = r.dev->stream, .next = r.count};
    batch in = slice(&r, 0, 4);
    begin_step(&r, 2, 0.25f);
    ok(network_forward(r.net, &in, NETWORK_TRAIN));
    ok(network_backward(r.net, false, note_ready, &seen));
    ck_assert_uint_eq(seen.next, 0);
    ck_assert_int_eq(seen.calls, kind == MODEL_MLP ? 3 : 4);
    ck_assert_uint_eq(r.count, counts[kind]);
    ck_assert_uint_eq(r.count, model_kind_count(kind));
    rig_close(&r);
}
END_TEST

/* Dropout depends on seed, epoch and sample alone: the same image at another place of another batch
 * has the same logits in every bit. */
START_TEST(dropout_follows_the_sample)
{
    const char *name = _i == 0 ? "reference" : fast;
    rig r = rig_open(name, 1, MODEL_CNN);
    float first[NETWORK_CLASSES];
    rig_run(&r, 5, 1, 1.0f, false);
    memcpy(first, r.logits, sizeof first);
    rig_run(&r, 0, 16, 1.0f, false);
    double off = difference(r.logits + 5 * NETWORK_CLASSES, first, NETWORK_CLASSES);
    ck_assert_msg(off < 1e-6, "%s: logits differ by %g", name, off);
    batch in = slice(&r, 5, 1);
    begin_step(&r, 3, 1.0f);
    ok(network_forward(r.net, &in, NETWORK_TRAIN));
    read_logits(&r, 1, r.logits);
    ck_assert(memcmp(r.logits, first, sizeof first) != 0);
    rig_close(&r);
}
END_TEST

/* First, last and somewhere inside. */
START_TEST(weights_that_are_not_finite_are_seen)
{
    rig r = rig_open(_i < 3 ? "reference" : fast, 1, MODEL_MLP);
    const size_t places[] = {0, r.count / 2, r.count - 1};
    bool finite = false;
    ok(network_is_finite(r.net, &finite));
    ck_assert(finite);
    ok(network_export(r.net, network_parameters(r.net), r.parameters));
    r.parameters[places[_i % 3]] = _i % 2 == 0 ? NAN : -INFINITY;
    ok(network_import(r.net, r.parameters, network_parameters(r.net)));
    ok(network_is_finite(r.net, &finite));
    ck_assert(!finite);
    rig_close(&r);
}
END_TEST

/* What all ranks see in the sum of their flags, if this rank's losses are not finite. */
START_TEST(a_loss_that_is_not_finite_travels_with_the_gradients)
{
    static const double losses[] = {0, 1e300, (double)NAN, (double)INFINITY};
    rig r = rig_open(_i == 0 ? "reference" : fast, 1, MODEL_MLP);
    for (size_t i = 0; i < sizeof losses / sizeof losses[0]; i++) {
        float flag = 7;
        double *loss_sum = place(r.dev, &losses[i], sizeof losses[i]);
        float *device_flag = place(r.dev, &flag, sizeof flag);
        for (int stop = 0; stop < 2; stop++) {
            step_plan plan = {.step = 1, .stop = (float)stop, .loss_sum = loss_sum};
            ok(r.dev->ops->begin_step(r.dev, &plan, r.state, device_flag));
            ok(r.dev->ops->download(r.dev, &flag, device_flag, sizeof flag));
            ck_assert(isfinite(losses[i]) ? flag == (float)stop : isnan(flag));
            plan.loss_sum = NULL;
            ok(r.dev->ops->begin_step(r.dev, &plan, r.state, device_flag));
            ok(r.dev->ops->download(r.dev, &flag, device_flag, sizeof flag));
            ck_assert(flag == (float)stop);
        }
        r.dev->ops->free(r.dev, loss_sum);
        r.dev->ops->free(r.dev, device_flag);
    }
    rig_close(&r);
}
END_TEST

static size_t peak_bytes(void)
{
    struct rusage used;
    ck_assert_int_eq(getrusage(RUSAGE_SELF, &used), 0);
    return (size_t)used.ru_maxrss * 1024;
}

/* Many ranks of one host would take and clear pages for it that they do not keep. */
START_TEST(a_new_network_draws_its_weights_in_place)
{
    device *dev = NULL;
    network *net = NULL;
    size_t count = model_kind_count(MODEL_MLP), bytes = sizeof(float) * count;
    network_options options = {.kind = MODEL_MLP, .max_batch = 1, .seed = 3};
    ok(device_create(&(device_options){.name = fast, .threads = 1, .isa = isa}, &dev));
    ok(dev->ops->alloc(dev, bytes, (void **)&options.parameters));
    ok(dev->ops->alloc(dev, bytes, (void **)&options.gradients));
    size_t before = peak_bytes();
    ok(network_create(dev, &options, &net));
    /* A copy of the weights takes all of these bytes; a sanitizer's own memory takes half. */
    ck_assert_uint_lt(peak_bytes() - before, bytes * 3 / 4);
    for (size_t i = 0; i < count; i++)
        if (options.gradients[i] != 0)
            ck_abort_msg("gradient %zu is %g", i, (double)options.gradients[i]);
    network_destroy(net);
    dev->ops->free(dev, options.parameters);
    dev->ops->free(dev, options.gradients);
    device_destroy(dev);
}
END_TEST

int main(int argc, char **argv)
{
    make_input();
    if (argc > 1 && strcmp(argv[1], "--device=cuda") == 0) {
        if (!cuda_choose())
            return TEST_SKIPPED;
        fast = "cuda";
    }
    if (argc > 1 && strncmp(argv[1], "--isa=", 6) == 0)
        isa = argv[1] + 6;
    Suite *suite = suite_create("network");
    bool is_cuda = strcmp(fast, "cuda") == 0;
    TCase *devices = suite_case(suite, "devices", 120);
    tcase_add_loop_test(devices, mlp_equals_reference, 0, N_SIZES);
    tcase_add_loop_test(devices, cnn_equals_reference, 0, N_SIZES);
    tcase_add_loop_test(devices, speedrun_equals_reference, 0, N_SIZES);
    TCase *bits = suite_case(suite, "bits", 120);
    if (!is_cuda)
        tcase_add_loop_test(bits, threads_do_not_change_bits, 0, MODEL_COUNT * N_SIZES);
    TCase *rules = suite_case(suite, "rules", 60);
    tcase_add_loop_test(rules, accumulation_equals_one_batch, 0, 2 * MODEL_COUNT);
    tcase_add_loop_test(rules, stages_are_the_whole_network, 0, 2 * MODEL_COUNT);
    tcase_add_loop_test(rules, arena_round_trips, 0, 2 * MODEL_COUNT);
    tcase_add_loop_test(rules, slices_are_ready_last_layer_first, 0, MODEL_COUNT);
    tcase_add_loop_test(rules, dropout_follows_the_sample, 0, 2);
    tcase_add_loop_test(rules, weights_that_are_not_finite_are_seen, 0, 6);
    tcase_add_loop_test(rules, a_loss_that_is_not_finite_travels_with_the_gradients, 0, 2);
    if (!is_cuda)
        tcase_add_test(rules, a_new_network_draws_its_weights_in_place);
    return suite_run(suite);
}
