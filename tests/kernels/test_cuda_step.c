/* Whole steps on the cuda device: the same bits from run to run, recorded or not; and every call of
 * CUDA and cuBLASLt made to fail. */
#include "kernels/device_kind.h"
#include "tests/kernels/cuda_tensor.h"
#include "tests/support/facts.h"

enum { IN = 40, HIDDEN = 48, CLASSES = 10, IMAGES = 60, BATCH = 20, SMALL_BATCH = 7, STEPS = 12 };

/* A network of two layers with all that a step does; places in its arena. */
enum {
    LOW_BIAS = IN * HIDDEN,
    HIGH_WEIGHT = LOW_BIAS + HIDDEN,
    HIGH_BIAS = HIGH_WEIGHT + HIDDEN * CLASSES,
    COUNT = HIGH_BIAS + CLASSES
};

enum { MEMORIES = 16 };

typedef struct trainee {
    device *dev;
    linear *low, *high;
    device_graph *graphs[2];
    gather_source source;
    uint8_t *images, *labels, *batch_labels;
    uint32_t *order, *samples;
    step_state *state;
    score *totals;
    float *parameters, *gradients, *first_moment, *second_moment;
    float *x, *y, *dy, *logits, *dlogits;
    void *memory[MEMORIES]; /* all of the above */
    int n_memory;
} trainee;

static status take(trainee *t, size_t size_bytes, void *out)
{
    void *memory = NULL;
    TRY(t->dev->ops->alloc(t->dev, size_bytes, &memory));
    t->memory[t->n_memory++] = memory;
    memcpy(out, &memory, sizeof memory);
    return STATUS_OK;
}

static status take_buffers(trainee *t)
{
    struct {
        size_t size_bytes;
        void *out;
    } all[] = {
        {IMAGES * IN, &t->images},
        {IMAGES, &t->labels},
        {sizeof(uint32_t) * IMAGES, &t->order},
        {BATCH, &t->batch_labels},
        {sizeof(uint32_t) * BATCH, &t->samples},
        {sizeof(step_state), &t->state},
        {sizeof(score), &t->totals},
        {sizeof(float) * COUNT, &t->parameters},
        {sizeof(float) * COUNT, &t->gradients},
        {sizeof(float) * COUNT, &t->first_moment},
        {sizeof(float) * COUNT, &t->second_moment},
        {sizeof(float) * BATCH * IN, &t->x},
        {sizeof(float) * BATCH * HIDDEN, &t->y},
        {sizeof(float) * BATCH * HIDDEN, &t->dy},
        {sizeof(float) * BATCH * CLASSES, &t->logits},
        {sizeof(float) * BATCH * CLASSES, &t->dlogits},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        TRY(take(t, all[i].size_bytes, all[i].out));
    t->source =
        (gather_source){.images = t->images, .labels = t->labels, .order = t->order, .pixels = IN};
    return STATUS_OK;
}

static status trainee_open(trainee *t, precision p)
{
    device_options wanted = {.name = "cuda", .threads = 1, .precision = p};
    linear_shape low = {.in_features = IN, .out_features = HIDDEN};
    linear_shape high = {.in_features = HIDDEN, .out_features = CLASSES, .logits = true};
    uint8_t images[IMAGES * IN], labels[IMAGES];
    uint32_t order[IMAGES];
    TRY(device_create(&wanted, &t->dev));
    const device_ops *ops = t->dev->ops;
    TRY(take_buffers(t));
    TRY(ops->linear_create(t->dev, &low, BATCH, &t->low));
    TRY(ops->linear_create(t->dev, &high, BATCH, &t->high));
    for (int i = 0; i < IMAGES * IN; i++)
        images[i] = (uint8_t)(i * i % 251);
    for (int i = 0; i < IMAGES; i++) {
        labels[i] = (uint8_t)(i % CLASSES);
        order[i] = (uint32_t)(i * 7 % IMAGES);
    }
    TRY(ops->upload(t->dev, t->images, images, sizeof images));
    TRY(ops->upload(t->dev, t->labels, labels, sizeof labels));
    TRY(ops->upload(t->dev, t->order, order, sizeof order));
    float *parameters = random_floats(4, COUNT, 0.25f);
    status st = ops->upload(t->dev, t->parameters, parameters, sizeof *parameters * COUNT);
    free(parameters);
    return st;
}

/* Also of one that was opened in part. */
static void trainee_close(trainee *t)
{
    if (t->dev == NULL)
        return;
    const device_ops *ops = t->dev->ops;
    for (int i = 0; i < 2; i++)
        ops->accelerator->graph_destroy(t->graphs[i]);
    ops->linear_destroy(t->low);
    ops->linear_destroy(t->high);
    free_all(t->dev, t->memory, (size_t)t->n_memory);
    device_destroy(t->dev);
}

static status begin(trainee *t, int step, int n)
{
    step_plan plan = {.first = (uint32_t)(step * 3),
                      .epoch = 1,
                      .grad_scale = 1.0f / (float)n,
                      .lr = 0.01f / (float)(step + 1),
                      .beta1 = 0.9f,
                      .beta2 = 0.999f,
                      .step = step + 1,
                      .scale_loss = t->dev->precision == PRECISION_F16};
    return t->dev->ops->begin_step(t->dev, &plan, t->state, NULL);
}

/* What a recording holds. */
static status enqueue(trainee *t, int n)
{
    device *dev = t->dev;
    const device_ops *ops = dev->ops;
    float *g = t->gradients, *p = t->parameters;
    dropout drop = {.p = 0.5f, .seed = 3, .layer = 0, .samples = t->samples, .state = t->state};
    adam_options adam = {0.9f, 0.999f, 1e-8f, 0.01f, false};
    gather_output gathered = {t->x, t->batch_labels, t->samples};
    linear_epilogue low = {p + LOW_BIAS, true, &drop}, high = {p + HIGH_BIAS, false, NULL};
    loss_input loss = {t->logits, t->batch_labels, n, CLASSES, 0.1f, 0};
    param_gradients low_gradients = {g, g + LOW_BIAS, false};
    param_gradients high_gradients = {g + HIGH_WEIGHT, g + HIGH_BIAS, false};
    relu_output hidden = {t->y, 0.5f};
    optimizer_slice slice = {p, g, t->first_moment, t->second_moment, COUNT};
    TRY(ops->gather(dev, &t->source, t->state, 1, n, &gathered));
    TRY(ops->begin_forward(dev, p, COUNT));
    TRY(ops->linear_forward(t->low, n, t->x, p, &low, t->y));
    TRY(ops->linear_forward(t->high, n, t->y, p + HIGH_WEIGHT, &high, t->logits));
    TRY(ops->cross_entropy(dev, &loss, t->state, t->totals, t->dlogits));
    TRY(ops->linear_backward_weights(t->high, n, t->y, t->dlogits, &high_gradients));
    TRY(ops->linear_backward_data(t->high, n, p + HIGH_WEIGHT, t->dlogits, &hidden, t->dy));
    TRY(ops->linear_backward_weights(t->low, n, t->x, t->dy, &low_gradients));
    return ops->adam_step(dev, &slice, t->state, &adam);
}

static status record(trainee *t, int n, device_graph **out)
{
    const accelerator_ops *ops = t->dev->ops->accelerator;
    TRY(ops->capture_begin(t->dev));
    status st = enqueue(t, n);
    if (st == STATUS_OK)
        return ops->capture_end(t->dev, out);
    (void)ops->capture_end(t->dev, NULL);
    return st;
}

typedef struct outcome {
    float parameters[COUNT], moments[COUNT];
    score totals;
    step_state state;
} outcome;

static status read_outcome(trainee *t, outcome *out)
{
    const device_ops *ops = t->dev->ops;
    TRY(ops->download(t->dev, out->parameters, t->parameters, sizeof out->parameters));
    TRY(ops->download(t->dev, out->moments, t->second_moment, sizeof out->moments));
    TRY(ops->download(t->dev, &out->totals, t->totals, sizeof out->totals));
    return ops->download(t->dev, &out->state, t->state, sizeof out->state);
}

/* Some steps, every fourth with a smaller batch; with `recorded`, each batch size's first step
 * eagerly and the others from recordings. */
static status train(trainee *t, bool recorded, outcome *out)
{
    bool seen[2] = {false};
    for (int step = 0; step < STEPS; step++) {
        int which = step % 4 == 3, n = which ? SMALL_BATCH : BATCH;
        TRY(begin(t, step, n));
        if (!recorded || !seen[which]) {
            TRY(enqueue(t, n));
            seen[which] = true;
            continue;
        }
        if (t->graphs[which] == NULL)
            TRY(record(t, n, &t->graphs[which]));
        TRY(t->dev->ops->accelerator->graph_launch(t->dev, t->graphs[which]));
    }
    return read_outcome(t, out);
}

typedef enum way { EAGER, RECORDED } way;

static outcome trained(precision p, way how)
{
    outcome out = {0};
    trainee t = {0};
    ok(trainee_open(&t, p));
    ok(train(&t, how == RECORDED, &out));
    trainee_close(&t);
    return out;
}

START_TEST(recordings_equal_eager_steps)
{
    precision p = PRECISIONS[_i];
    outcome eager = trained(p, EAGER), again = trained(p, EAGER), recorded = trained(p, RECORDED);
    expect_same(again.parameters, eager.parameters, sizeof eager.parameters);
    expect_same(recorded.parameters, eager.parameters, sizeof eager.parameters);
    expect_same(recorded.moments, eager.moments, sizeof eager.moments);
    ck_assert(recorded.totals.loss_sum == eager.totals.loss_sum);
    ck_assert(recorded.totals.last_loss == eager.totals.last_loss);
    ck_assert_int_eq(recorded.totals.correct, eager.totals.correct);
    ck_assert_uint_eq(recorded.state.scaling.overflow, 0);
    ck_assert_int_eq(recorded.state.plan.step, STEPS);
    double samples = STEPS / 4 * (3 * BATCH + SMALL_BATCH), mean = eager.totals.loss_sum / samples;
    ck_assert_msg(mean > 1 && mean < 3, "%g", mean); /* it begins near log 10 */
    expect_close(eager.parameters, (const float[COUNT]){0}, COUNT, 2, 0);
}
END_TEST

/* A wait inside a recording is refused, the recording thrown away, and the device works on. */
START_TEST(recordings_do_not_wait)
{
    trainee t = {0};
    outcome out;
    float value = 0;
    void *memory = NULL;
    ok(trainee_open(&t, PRECISION_F32));
    const device_ops *ops = t.dev->ops;
    ok(begin(&t, 0, BATCH));
    ok(enqueue(&t, BATCH));
    ok(ops->accelerator->capture_begin(t.dev));
    ck_assert_int_eq(ops->download(t.dev, &value, t.x, sizeof value), STATUS_INVALID);
    ASSERT_FACTS(status_text(), "download");
    ck_assert_int_eq(ops->synchronize(t.dev), STATUS_INVALID);
    ck_assert_int_eq(ops->alloc(t.dev, 64, &memory), STATUS_INVALID);
    ok(ops->accelerator->capture_end(t.dev, NULL));
    ok(ops->synchronize(t.dev));
    ok(train(&t, true, &out));
    trainee_close(&t);
}
END_TEST

/* The n-th call of a function answers `code`: what was asked for fails with the function's name in
 * the message, and everything is given back (MNIST_DDP_EMULATED_STRICT). */
typedef struct failure {
    const char *call;
    int nth, code;
} failure;

static const failure FAILURES[] = {
    {"cudaGetDeviceCount", 1, 35},
    {"cudaGetDeviceCount", 1, 100},
    {"cudaGetDeviceProperties", 1, 999},
    {"cudaSetDevice", 1, 46},
    {"cudaSetDevice", 3, 999},
    {"cudaStreamCreateWithFlags", 1, 2},
    {"cudaStreamCreateWithFlags", 2, 2},
    {"cudaEventCreateWithFlags", 1, 2},
    {"cublasLtCreate", 1, 3},
    {"cudaMalloc", 1, 2},
    {"cudaMalloc", 2, 2},
    {"cudaMalloc", 7, 2},
    {"cudaMalloc", 19, 2},
    {"cudaMemsetAsync", 4, 1},
    {"cudaMemcpyAsync", 2, 700},
    {"cudaMemcpyAsync", 5, 700},
    {"cudaStreamQuery", 4, 700},
    {"cudaGetLastError", 3, 209},
    {"cudaGetLastError", 40, 719},
    {"cublasLtMatmulDescCreate", 2, 3},
    {"cublasLtMatmulDescSetAttribute", 1, 14},
    {"cublasLtMatmulDescSetAttribute", 5, 14},
    {"cublasLtMatrixLayoutCreate", 1, 3},
    {"cublasLtMatrixLayoutCreate", 5, 3},
    {"cublasLtMatmulPreferenceCreate", 1, 3},
    {"cublasLtMatmulPreferenceSetAttribute", 3, 7},
    {"cublasLtMatmulAlgoGetHeuristic", 1, 14},
    {"cublasLtMatmul", 1, 13},
    {"cublasLtMatmul", 8, 13},
    {"cudaStreamBeginCapture", 1, 900},
    {"cudaStreamEndCapture", 1, 901},
    {"cudaGraphInstantiate", 1, 2},
    {"cudaGraphUpload", 2, 999},
    {"cudaGraphLaunch", 3, 719},
};
enum { N_FAILURES = sizeof FAILURES / sizeof FAILURES[0] };

START_TEST(failures_are_clean)
{
    const failure *f = &FAILURES[_i];
    char text[128];
    trainee t = {0};
    outcome out;
    snprintf(text, sizeof text, "%s:%d:%d", f->call, f->nth, f->code);
    setenv("MNIST_DDP_EMULATED_FAIL", text, 1);
    status st = trainee_open(&t, PRECISION_BF16);
    if (st == STATUS_OK)
        st = train(&t, true, &out);
    ck_assert_msg(st == STATUS_DEVICE || st == STATUS_NO_MEMORY, "%s: %s", text, status_text());
    if (strcmp(f->call, "cudaGetLastError") != 0) /* asked for more than launches */
        ck_assert_msg(strstr(status_text(), f->call) != NULL, "%s: %s", text, status_text());
    snprintf(text, sizeof text, "(%d)", f->code);
    ck_assert_msg(strstr(status_text(), text) != NULL, "%s", status_text());
    trainee_close(&t);
}
END_TEST

int main(void)
{
    if (!cuda_choose())
        return TEST_SKIPPED;
    setenv("MNIST_DDP_EMULATED_STRICT", "1", 1); /* a leak is a failure */
    Suite *suite = suite_create("cuda_step");
    TCase *core = suite_case(suite, "core", 60);
    tcase_add_loop_test(core, recordings_equal_eager_steps, 0, N_PRECISIONS);
    tcase_add_test(core, recordings_do_not_wait);
    suite_add_all(core, failures_are_clean, N_FAILURES,
                  cuda_is_real() ? "a GPU cannot be told to fail" : cuda_wants_forks());
    return suite_run(suite);
}
