/* The networks and optimizers compute what PyTorch computes, on every device of the host and, with
 * --device=cuda, on that one: initial
 * weights and dropout masks in every bit; logits, loss, gradients and ten training steps within
 * rounding. The golden values are tests/golden's; the input comes from the same generator as there.
 */
#include "base/digest.h"
#include "kernels/device_kind.h"
#include "kernels/ops.h"
#include "tests/model/golden.h"
#include "tests/support/cuda.h"
#include "tests/support/suite.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { BATCH = GOLDEN_BATCH, STEPS = 10, MASK_SEED = 1000 };
enum { N_MODELS = MODEL_COUNT, MAX_DEVICES = 2, DEVICE_THREADS = 2 };

/* Those of the host, or with --device=cuda that one. */
static const char *devices[MAX_DEVICES] = {"reference", "cpu"};
static int n_devices = MAX_DEVICES;
static const char *isa = "auto"; /* of the cpu device; --isa=avx2, --isa=generic */

/* Tolerances. u = 2^-24 bounds the relative error of one float32 operation. A sum of K products
 * with independent rounding errors is off by about 0.4 u sqrt(K) times its terms' rms norm when
 * added up in order, less when added in blocks. Both sides have such errors, in every layer there
 * and back, which add up like independent ones too: u sqrt(K) with the model's longest sum covers
 * them. K is the mlp's 784 inputs; the cnn's 16 * 26 * 26 positions in the gradient of conv1's
 * weights; the speedrun's 16 * 12 * 12, for of each window its pool passes on one. The input and
 * the seeds are such that no ReLU and no pooling window comes so near to its kink that a rounding
 * error decides (make_golden.py asserts it): beyond a kink no tolerance holds. */
static const double U = 0x1p-24;

static double tolerance(model_kind kind)
{
    static const double longest[MODEL_COUNT] = {[MODEL_MLP] = 784.0,
                                                [MODEL_CNN] = 16.0 * 26.0 * 26.0,
                                                [MODEL_SPEEDRUN] = 16.0 * 12.0 * 12.0};
    return U * sqrt(longest[kind]);
}

typedef struct run {
    const char *name;
    model_kind kind;
    uint64_t seed; /* of the weights */
    int n;         /* samples in a batch */
    optimizer_options options;
    float lr;
    /* How much more than one gradient's error the way of ten steps may be off, relative to its
     * length. The steps' errors add up: 10. Adam divides each element by its own magnitude, so
     * that elements whose terms nearly cancel are off by more: another 4. (torch's float32 run is
     * off its float64 run by at most 2e-6 with sgd and 2e-5 with adam; 10 allows 2e-5 here.) */
    double growth;
    float clip_norm; /* 0: gradients are not clipped */
    float label_smoothing;
} run;

/* clang-format off */
static const run RUNS[] = {
    {"sgd", MODEL_MLP, 1, 16, {OPTIMIZER_SGD, 0.9f, 0.0f, false, 0, 0}, 0.05f, 10, 0, 0},
    {"nesterov", MODEL_MLP, 1, 16, {OPTIMIZER_SGD, 0.9f, 0.01f, true, 0, 0}, 0.05f, 10, 0, 0},
    {"adam", MODEL_MLP, 1, 16, {OPTIMIZER_ADAM, 0.0f, 0.0f, false, 0, 0}, 0.001f, 40, 0, 0},
    {"adam_decay", MODEL_MLP, 1, 16, {OPTIMIZER_ADAM, 0.0f, 0.01f, false, 0, 0}, 0.001f, 40, 0, 0},
    {"adam_betas", MODEL_MLP, 1, 16, {OPTIMIZER_ADAM, 0.0f, 0.0f, false, 0.7f, 0.9f}, 0.001f, 40, 0, 0},
    {"adamw", MODEL_MLP, 1, 16, {OPTIMIZER_ADAMW, 0.0f, 0.01f, false, 0, 0}, 0.001f, 40, 0, 0},
    {"adamw_betas", MODEL_MLP, 1, 16, {OPTIMIZER_ADAMW, 0.0f, 0.1f, false, 0.7f, 0.9f}, 0.005f, 40, 0, 0},
    {"adadelta_decay", MODEL_MLP, 1, 16, {OPTIMIZER_ADADELTA, 0.0f, 0.01f, false, 0, 0}, 1.0f, 10, 0, 0},
    {"clipped", MODEL_MLP, 1, 16, {OPTIMIZER_SGD, 0.9f, 0.0f, false, 0, 0}, 0.05f, 10, 1.5f, 0},
    {"smoothed", MODEL_MLP, 1, 16, {OPTIMIZER_SGD, 0.9f, 0.0f, false, 0, 0}, 0.05f, 10, 0, 0.1f},
    {"adadelta", MODEL_CNN, 22, 4, {OPTIMIZER_ADADELTA, 0.0f, 0.0f, false, 0, 0}, 1.0f, 10, 0, 0},
    {"momentum", MODEL_SPEEDRUN, 1, 4, {OPTIMIZER_SGD, 0.9f, 0.0f, false, 0, 0}, 0.05f, 10, 0, 0},
};
/* clang-format on */
enum { N_RUNS = sizeof RUNS / sizeof RUNS[0] };

static const uint64_t INIT_SEEDS[] = {0, 1, 7, 12345};
static const uint64_t GRADIENT_SEEDS[] = {1, 4};
enum {
    N_INIT_SEEDS = sizeof INIT_SEEDS / sizeof INIT_SEEDS[0],
    N_GRADIENT_SEEDS = sizeof GRADIENT_SEEDS / sizeof GRADIENT_SEEDS[0],
};

/* A network on a device with a batch in the device's memory. */
typedef struct trial {
    device *dev;
    network *net;
    batch in;
    float *x;
    uint8_t *labels, *keep[2];
    uint32_t *samples;
    step_state *state;
    step_plan plan;
    mt19937 input; /* where the batches come from */
    golden gold;
} trial;

static void *device_alloc(device *dev, size_t size_bytes)
{
    void *memory = NULL;
    ck_assert_int_eq(dev->ops->alloc(dev, size_bytes, &memory), STATUS_OK);
    return memory;
}

static void device_upload(device *dev, void *to, const void *from, size_t size_bytes)
{
    ck_assert_int_eq(dev->ops->upload(dev, to, from, size_bytes), STATUS_OK);
}

static void trial_init_smoothed(trial *t, const char *device_name, model_kind kind, uint64_t seed,
                                float label_smoothing)
{
    network_options options = {
        .kind = kind, .max_batch = BATCH, .seed = seed, .label_smoothing = label_smoothing};
    uint32_t samples[BATCH];
    golden_read(model_kind_name(kind), &t->gold);
    device_options wanted = {.name = device_name, .threads = DEVICE_THREADS, .isa = isa};
    ck_assert_msg(device_create(&wanted, &t->dev) == STATUS_OK, "%s", status_text());
    t->state = device_alloc(t->dev, sizeof *t->state);
    ck_assert_msg(network_create(t->dev, &options, &t->net) == STATUS_OK, "%s", status_text());
    t->x = device_alloc(t->dev, sizeof(float) * BATCH * GOLDEN_PIXELS);
    t->labels = device_alloc(t->dev, BATCH);
    t->samples = device_alloc(t->dev, sizeof samples);
    for (int d = 0; d < 2; d++)
        t->keep[d] = device_alloc(t->dev, golden_mask_size(d, BATCH));
    for (uint32_t i = 0; i < BATCH; i++)
        samples[i] = i;
    device_upload(t->dev, t->samples, samples, sizeof samples);
    mt19937_init(&t->input, GOLDEN_INPUT_SEED);
}

static void trial_init(trial *t, const char *device_name, model_kind kind, uint64_t seed)
{
    trial_init_smoothed(t, device_name, kind, seed, 0);
}

static void trial_close(trial *t)
{
    golden_free(&t->gold);
    network_destroy(t->net);
    for (int d = 0; d < 2; d++)
        t->dev->ops->free(t->dev, t->keep[d]);
    t->dev->ops->free(t->dev, t->state);
    t->dev->ops->free(t->dev, t->samples);
    t->dev->ops->free(t->dev, t->labels);
    t->dev->ops->free(t->dev, t->x);
    device_destroy(t->dev);
}

static void begin_step(trial *t)
{
    ck_assert_int_eq(t->dev->ops->begin_step(t->dev, &t->plan, t->state, NULL), STATUS_OK);
}

/* The loss summed over the batches since the last call. */
static double take_loss(trial *t)
{
    score total;
    ck_assert_int_eq(network_read_score(t->net, &total), STATUS_OK);
    ck_assert_int_eq(network_reset_score(t->net), STATUS_OK);
    return total.loss_sum;
}

/* The stream's next n samples. */
static void next_batch(trial *t, int n)
{
    static float x[BATCH * GOLDEN_PIXELS];
    uint8_t labels[BATCH];
    golden_make_batch(&t->input, n, x, labels);
    device_upload(t->dev, t->x, x, sizeof x);
    device_upload(t->dev, t->labels, labels, sizeof labels);
    t->in =
        (batch){.n = n, .x = t->x, .labels = t->labels, .samples = t->samples, .state = t->state};
    t->plan = (step_plan){.grad_scale = 1.0f / (float)n};
    begin_step(t);
}

/* The masks that torch drew for n samples after manual_seed(seed); those from sample `first` on. */
static void inject_masks(trial *t, uint64_t seed, int n, int first)
{
    mt19937 generator;
    mt19937_init(&generator, seed);
    for (int d = 0; d < 2; d++) {
        size_t size = golden_mask_size(d, n), skipped = golden_mask_size(d, first);
        uint8_t *mask = malloc(size);
        ck_assert_ptr_nonnull(mask);
        golden_make_mask(&generator, d, n, mask);
        device_upload(t->dev, t->keep[d], mask + skipped, size - skipped);
        network_inject_dropout(t->net, d, t->keep[d]);
        free(mask);
    }
}

/* An arena in PyTorch's order; the caller frees it. */
static float *export(trial *t, const float *arena)
{
    float *host = malloc(sizeof *host * network_count(t->net));
    ck_assert_ptr_nonnull(host);
    ck_assert_int_eq(network_export(t->net, arena, host), STATUS_OK);
    return host;
}

/* Compares all tensors of an arena with "<prefix>/<parameter>", as changes from `before`. */
static void check_arena(trial *t, const char *prefix, const float *arena, const float *before,
                        double tol)
{
    const parameter *layout = NULL;
    size_t n = network_layout(t->net, &layout);
    float *host = export(t, arena);
    for (size_t i = 0; i < n; i++) {
        const parameter *p = &layout[i];
        char name[96];
        snprintf(name, sizeof name, "%s/%s", prefix, p->name);
        golden_check(&t->gold, name, host + p->offset, before ? before + p->offset : NULL, p->count,
                     tol);
    }
    free(host);
}

static void check_logits(trial *t, const char *prefix, const char *what, double tol)
{
    float logits[BATCH * NETWORK_CLASSES];
    char name[96];
    snprintf(name, sizeof name, "%s/%s", prefix, what);
    ck_assert_int_eq(t->dev->ops->download(t->dev, logits, network_logits(t->net), sizeof logits),
                     STATUS_OK);
    golden_check_all(&t->gold, name, logits, BATCH, NETWORK_CLASSES, tol);
}

static void check_loss(double loss, double want, double tol)
{
    golden_check_number("loss", loss, want, tol * fabs(want));
}

static void report(const char *what, const char *device_name)
{
    printf("%s on %s: largest error %.3f of what is allowed\n", what, device_name,
           golden_worst_ratio());
    fflush(stdout);
}

START_TEST(initial_weights)
{
    trial t;
    uint64_t seed = INIT_SEEDS[_i % N_INIT_SEEDS];
    model_kind kind = (model_kind)(_i / N_INIT_SEEDS % N_MODELS);
    trial_init(&t, devices[_i / N_INIT_SEEDS / N_MODELS], kind, seed);
    const parameter *layout = NULL;
    size_t n = network_layout(t.net, &layout);
    float *host = export(&t, network_parameters(t.net));
    ck_assert_uint_eq(n, kind == MODEL_MLP ? 6 : 8);
    for (size_t i = 0; i < n; i++) {
        const float *values = host + layout[i].offset;
        char name[64];
        snprintf(name, sizeof name, "init/%" PRIu64 "/%s", seed, layout[i].name);
        golden_check_first(&t.gold, name, values, 4);
        golden_check_hash(&t.gold, name, values, sizeof *values * layout[i].count);
    }
    free(host);
    trial_close(&t);
}
END_TEST

START_TEST(dropout_recipe)
{
    golden gold;
    uint64_t seed = GRADIENT_SEEDS[_i];
    mt19937 generator;
    mt19937_init(&generator, seed);
    golden_read("cnn", &gold);
    for (int d = 0; d < 2; d++) {
        size_t size = golden_mask_size(d, BATCH);
        uint8_t *mask = malloc(size);
        char name[64];
        ck_assert_ptr_nonnull(mask);
        golden_make_mask(&generator, d, BATCH, mask);
        snprintf(name, sizeof name, "mask/%" PRIu64 "/dropout%d", seed, d + 1);
        golden_check_hash(&gold, name, mask, size);
        free(mask);
    }
    golden_free(&gold);
}
END_TEST

/* One forward and backward pass, whole (micro = BATCH) or in micro-batches that accumulate. */
static void check_gradients(int index, int micro)
{
    trial t;
    char prefix[32];
    uint64_t seed = GRADIENT_SEEDS[index % N_GRADIENT_SEEDS];
    model_kind kind = (model_kind)(index / N_GRADIENT_SEEDS % N_MODELS);
    const char *device_name = devices[index / N_GRADIENT_SEEDS / N_MODELS];
    double tol = tolerance(kind);
    snprintf(prefix, sizeof prefix, "grad/%" PRIu64, seed);
    trial_init(&t, device_name, kind, seed);
    next_batch(&t, BATCH);
    for (int first = 0; first < BATCH; first += micro) {
        batch part = t.in;
        part.n = micro;
        part.x += first * GOLDEN_PIXELS;
        part.labels += first;
        part.samples += first;
        inject_masks(&t, seed, BATCH, first);
        ck_assert_int_eq(network_forward(t.net, &part, NETWORK_TRAIN), STATUS_OK);
        if (micro == BATCH)
            check_logits(&t, prefix, "logits", tol);
        ck_assert_int_eq(network_backward(t.net, first > 0, NULL, NULL), STATUS_OK);
    }
    check_loss(take_loss(&t) / BATCH, golden_number(&t.gold, prefix, "loss", 0), tol);
    check_arena(&t, prefix, network_gradients(t.net), NULL, tol);
    ck_assert_int_eq(network_forward(t.net, &t.in, NETWORK_EVAL), STATUS_OK);
    check_logits(&t, prefix, "eval_logits", tol);
    report(model_kind_name(kind), device_name);
    trial_close(&t);
}

START_TEST(gradients)
{
    check_gradients(_i, BATCH);
}
END_TEST

START_TEST(accumulated_gradients)
{
    check_gradients(_i, BATCH / 2);
}
END_TEST

/* Clips the gradients; their norm is `want`. Steps before it have moved the parameters. */
static void check_clipping(trial *t, const run *r, double want)
{
    score total;
    ck_assert_int_eq(network_clip_gradients(t->net, r->clip_norm, t->state), STATUS_OK);
    ck_assert_int_eq(network_read_score(t->net, &total), STATUS_OK);
    golden_check_number("norm", total.grad_norm, want, r->growth * tolerance(r->kind) * want);
}

START_TEST(ten_steps)
{
    trial t;
    const run *r = &RUNS[_i % N_RUNS];
    const char *device_name = devices[_i / N_RUNS];
    optimizer *opt = NULL;
    double tol = tolerance(r->kind);
    char prefix[32];
    snprintf(prefix, sizeof prefix, "train/%s", r->name);
    trial_init_smoothed(&t, device_name, r->kind, r->seed, r->label_smoothing);
    const optimizer_part all = {network_parameters(t.net), network_gradients(t.net),
                                .count = network_count(t.net)};
    ck_assert_int_eq(optimizer_create(t.dev, &r->options, &all, &opt), STATUS_OK);
    float *before = export(&t, network_parameters(t.net));
    for (int step = 0; step < STEPS; step++) {
        next_batch(&t, r->n);
        inject_masks(&t, MASK_SEED + (uint64_t)step, r->n, 0);
        optimizer_plan_step(opt, r->lr, &t.plan);
        begin_step(&t);
        ck_assert_int_eq(network_forward(t.net, &t.in, NETWORK_TRAIN), STATUS_OK);
        ck_assert_int_eq(network_backward(t.net, false, NULL, NULL), STATUS_OK);
        if (r->clip_norm > 0)
            check_clipping(&t, r, golden_number(&t.gold, prefix, "norm", step));
        ck_assert_int_eq(optimizer_step(opt, t.state), STATUS_OK);
        check_loss(take_loss(&t) / r->n, golden_number(&t.gold, prefix, "loss", step),
                   (1 + step) * tol);
    }
    check_arena(&t, prefix, network_parameters(t.net), before, r->growth * tol);
    report(prefix, device_name);
    free(before);
    optimizer_destroy(opt);
    trial_close(&t);
}
END_TEST

int main(int argc, char **argv)
{
    golden gold;
    if (argc > 1 && strcmp(argv[1], "--device=cuda") == 0) {
        if (!cuda_choose())
            return TEST_SKIPPED;
        devices[0] = "cuda";
        n_devices = 1;
    }
    if (argc > 1 && strncmp(argv[1], "--isa=", 6) == 0)
        isa = argv[1] + 6;
    golden_read("cnn", &gold);
    printf("golden values of torch %s\n", safetensors_metadata(gold.file, "torch"));
    fflush(stdout);
    golden_free(&gold);
    Suite *suite = suite_create("golden");
    TCase *core = suite_case(suite, "core", 60);
    tcase_add_loop_test(core, initial_weights, 0, N_INIT_SEEDS * N_MODELS * n_devices);
    tcase_add_loop_test(core, dropout_recipe, 0, N_GRADIENT_SEEDS);
    tcase_add_loop_test(core, gradients, 0, N_GRADIENT_SEEDS * N_MODELS * n_devices);
    tcase_add_loop_test(core, accumulated_gradients, 0, N_GRADIENT_SEEDS * N_MODELS * n_devices);
    tcase_add_loop_test(core, ten_steps, 0, N_RUNS * n_devices);
    return suite_run(suite);
}
