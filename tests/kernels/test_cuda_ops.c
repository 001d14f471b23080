/* The cuda device's loss and clipping against the reference device, and what scaling a loss leaves
 * as it is. Every kernel at odd sizes: test_cuda_shapes.c. */
#include "tests/kernels/cuda_tensor.h"

static step_state *put_numbers(device *dev, const step_state *state)
{
    return put_bytes(dev, state, sizeof *state);
}

static float loss_smoothing; /* of the losses that follow */

/* One loss on one device. dlogits NULL: none wanted. */
static void run_loss(device *dev, const float *logits, const uint8_t *labels, int n, int classes,
                     const step_state *state, score *totals, float **dlogits)
{
    size_t count = (size_t)n * (size_t)classes;
    float *in = put_floats(dev, logits, count), *out = room(dev, sizeof *out * count);
    uint8_t *d_labels = put_bytes(dev, labels, (size_t)n);
    step_state *d_state = put_numbers(dev, state);
    score *d_totals = put_bytes(dev, totals, sizeof *totals);
    loss_input loss = {in, d_labels, n, classes, loss_smoothing, 0};
    ok(dev->ops->cross_entropy(dev, &loss, d_state, d_totals, dlogits != NULL ? out : NULL));
    ok(dev->ops->download(dev, totals, d_totals, sizeof *totals));
    if (dlogits != NULL)
        *dlogits = get_activations(dev, out, count);
    free_all(dev, (void *[]){in, out, d_labels, d_state, d_totals}, 5);
}

/* Softmax in float: a root of two units per exp, one per addition and one for the log of at most
 * `classes` terms, 2^-24 each: below 2e-6 for 10. The rest is the type's rounding, and in the loss
 * the sum of n such errors. */
static void check_loss(device *cuda, device *reference, int n, int classes)
{
    enum { ERROR_PER_MILLION = 2 };
    size_t count = (size_t)n * (size_t)classes;
    float *logits = random_floats((uint32_t)n, count, 16.0f), *want, *got, *again;
    uint8_t *labels = NULL;
    step_state state = {.plan = {.grad_scale = 1.0f / (float)n}}, scaled = state;
    float scale = 1.0f;
    ok(memory_alloc((size_t)n, (void **)&labels));
    for (int i = 0; i < n; i++)
        labels[i] = (uint8_t)(i * 3 % classes);
    if (cuda->precision == PRECISION_F16) {
        scaled.plan.scale_loss = true;
        scaled.scaling.scale = scale = 1024.0f;
    }
    score a = {.loss_sum = 5, .correct = 7}, b = a, c = a, d = a;
    run_loss(reference, logits, labels, n, classes, &state, &a, &want);
    run_loss(cuda, logits, labels, n, classes, &scaled, &b, &got);
    run_loss(cuda, logits, labels, n, classes, &scaled, &c, &again);
    run_loss(cuda, logits, labels, n, classes, &scaled, &d, NULL);
    ck_assert_double_eq_tol(b.loss_sum, a.loss_sum, 1e-6 * ERROR_PER_MILLION * n);
    ck_assert_double_eq_tol(b.last_loss, (b.loss_sum - 5) / n, 1e-12);
    ck_assert_int_eq(b.correct, a.correct);
    expect_same(&c, &b, sizeof b);
    expect_same(&d, &b, sizeof b);
    expect_same(again, got, sizeof *got * count);
    for (size_t i = 0; i < count; i++)
        want[i] *= scale;
    double one = (double)(scale / (float)n) * 1e-6 * ERROR_PER_MILLION;
    double smallest =
        cuda->precision == PRECISION_F16 ? 0x1p-24 : 0; /* its fixed distance near 0 */
    expect_close(got, want, count, one + smallest, (double)unit_of(cuda->precision));
    float *all[] = {logits, want, got, again};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
    free(labels);
}

START_TEST(loss_equals_reference)
{
    static const int sizes[] = {1, 2, 7, 100, 128, 129, 1000}; /* one block and several */
    device *cuda = open_device("cuda", PRECISIONS[_i]);
    device *reference = open_device("reference", PRECISION_F32);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        check_loss(cuda, reference, sizes[i], 10);
    check_loss(cuda, reference, 300, 7);
    check_loss(cuda, reference, 5, 1);
    if (_i == 0)
        check_loss(cuda, reference, 17000, 10); /* all blocks, several rows per thread */
    loss_smoothing = 0.125f; /* of a row more, an eighth of an error of its mean */
    check_loss(cuda, reference, 129, 10);
    check_loss(cuda, reference, 300, 7);
    loss_smoothing = 0;
    device_destroy(cuda);
    device_destroy(reference);
}
END_TEST

enum { COUNT = 20003, ARENAS = 4 }; /* an odd rest */

/* param, grad and two states that are not negative, as averages of squares. */
static void make_arenas(float *out[ARENAS])
{
    for (uint32_t k = 0; k < ARENAS; k++) {
        out[k] = random_floats(k + 1, COUNT, 1.0f);
        for (int i = 0; k >= 2 && i < COUNT; i++)
            out[k][i] += 0.5f;
    }
}

static void free_arenas(float *arenas[ARENAS])
{
    for (int k = 0; k < ARENAS; k++)
        free(arenas[k]);
}

/* Optimizer `which` on the arenas, which get what comes out. */
static void optimize(device *dev, int which, float *arenas[ARENAS], step_state *state)
{
    const device_ops *ops = dev->ops;
    float *a[ARENAS];
    step_state *d_state = put_numbers(dev, state);
    sgd_options plain = {.weight_decay = 0.01f}, nesterov = {0.9f, 0, true};
    adam_options adam = {0.9f, 0.999f, 1e-8f, 0.01f, which == 4};
    adadelta_options adadelta = {0.9f, 1e-6f, 0};
    for (int k = 0; k < ARENAS; k++)
        a[k] = put_floats(dev, arenas[k], COUNT);
    optimizer_slice slice = {a[0], a[1], which == 0 ? NULL : a[2], which < 2 ? NULL : a[3], COUNT};
    if (which == 0)
        ok(ops->sgd_step(dev, &slice, d_state, &plain));
    else if (which == 1)
        ok(ops->sgd_step(dev, &slice, d_state, &nesterov));
    else if (which == 2 || which == 4)
        ok(ops->adam_step(dev, &slice, d_state, &adam));
    else
        ok(ops->adadelta_step(dev, &slice, d_state, &adadelta));
    for (int k = 0; k < ARENAS; k++) {
        ok(ops->download(dev, arenas[k], a[k], sizeof(float) * COUNT));
        ops->free(dev, a[k]);
    }
    ok(ops->download(dev, state, d_state, sizeof *state));
    ops->free(dev, d_state);
}

static step_state optimizer_numbers(void)
{
    return (step_state){
        .plan = {.lr = 0.1f, .step = 7}, .adam_step_size = 1e-3f, .adam_correction2_sqrt = 0.1f};
}

/* begin_step tells the device whether losses are scaled. */
static void begin(device *dev, bool scale_loss)
{
    step_plan plan = {.step = 1, .scale_loss = scale_loss};
    step_state *state = room(dev, sizeof *state);
    ok(dev->ops->begin_step(dev, &plan, state, NULL));
    dev->ops->free(dev, state);
}

/* The scale is a power of two: what is scaled and unscaled again has the same bits. */
START_TEST(scaled_gradients_make_the_same_step)
{
    device *cuda = open_device("cuda", PRECISION_F16);
    float *want[ARENAS], *got[ARENAS];
    step_state state = optimizer_numbers(), scaled = state;
    make_arenas(want);
    make_arenas(got);
    begin(cuda, false);
    optimize(cuda, _i, want, &state);
    scaled.plan.scale_loss = true;
    scaled.scaling.scale = 65536.0f;
    for (int i = 0; i < COUNT; i++)
        got[1][i] *= scaled.scaling.scale;
    begin(cuda, true);
    optimize(cuda, _i, got, &scaled);
    ck_assert_uint_eq(scaled.scaling.overflow, 0);
    expect_same(got[0], want[0], sizeof(float) * COUNT);
    expect_same(got[2], want[2], sizeof(float) * COUNT);
    expect_same(got[3], want[3], sizeof(float) * COUNT);
    free_arenas(want);
    free_arenas(got);
    device_destroy(cuda);
}
END_TEST

/* The norm of `count` gradients, which get what comes out. */
static double clip(device *dev, float *host, size_t count, float most, const step_state *state)
{
    double norm = -1;
    float *grad = put_floats(dev, host, count);
    double *d_norm = put_bytes(dev, &norm, sizeof norm);
    step_state *d_state = put_bytes(dev, state, sizeof *state);
    gradient_clip what = {grad, count, most, d_norm};
    ok(dev->ops->clip_gradients(dev, &what, d_state));
    ok(dev->ops->download(dev, host, grad, sizeof *host * count));
    ok(dev->ops->download(dev, &norm, d_norm, sizeof norm));
    free_all(dev, (void *[]){grad, d_norm, d_state}, 3);
    return norm;
}

/* Squares are exact, and sums of doubles: the norms differ by some 2^-53 a term at most, and so the
 * factors by one rounding. With a scaled loss, gradients and what they become are scaled alike. */
START_TEST(clipping_equals_reference)
{
    static const size_t counts[] = {1, 7, 255, 257, 40001}; /* one block, several, all */
    device *cuda = open_device("cuda", PRECISION_F32);
    device *reference = open_device("reference", PRECISION_F32);
    step_state plain = {0}, scaled = {.plan.scale_loss = true, .scaling.scale = 1024.0f};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        size_t count = counts[i];
        float *want = random_floats(5, count, 1.0f), *got = random_floats(5, count, 1.0f);
        float *large = random_floats(5, count, 1024.0f), *kept = random_floats(5, count, 1.0f);
        float most = 0.01f + 0.1f * sqrtf((float)count);
        double norm = clip(reference, want, count, most, &plain);
        ck_assert_double_eq_tol(clip(cuda, got, count, most, &plain), norm, 1e-12 * norm);
        ck_assert_double_eq_tol(clip(cuda, large, count, most, &scaled), norm, 1e-12 * norm);
        ck_assert_double_eq_tol(clip(cuda, kept, count, 1e6f, &plain), norm, 1e-12 * norm);
        expect_close(got, want, count, 0, 0x1p-22);
        for (size_t j = 0; j < count; j++)
            large[j] /= 1024.0f;
        expect_same(large, got, sizeof *got * count);
        float *whole = random_floats(5, count, 1.0f);
        expect_same(kept, whole, sizeof *kept * count);
        float *all[] = {want, got, large, kept, whole};
        for (size_t j = 0; j < sizeof all / sizeof all[0]; j++)
            free(all[j]);
    }
    device_destroy(cuda);
    device_destroy(reference);
}
END_TEST

/* So that the optimizer sees the overflow. */
START_TEST(clipping_keeps_an_overflow)
{
    device *cuda = open_device("cuda", PRECISION_F16);
    const step_state scaled = {.plan.scale_loss = true, .scaling.scale = 1024.0f};
    for (int i = 0; i < 2; i++) {
        float *grad = random_floats(5, 300, 1.0f);
        grad[7] = i == 0 ? INFINITY : NAN;
        ck_assert(!isfinite(clip(cuda, grad, 300, 1.0f, &scaled)));
        ck_assert(!isfinite(grad[7]));
        free(grad);
    }
    device_destroy(cuda);
}
END_TEST

int main(void)
{
    if (!cuda_choose())
        return TEST_SKIPPED;
    setenv("MNIST_DDP_EMULATED_STRICT", "1", 1); /* a leak is a failure */
    Suite *suite = suite_create("cuda_ops");
    TCase *core = suite_case(suite, "core", 120);
    tcase_add_loop_test(core, loss_equals_reference, 0, N_PRECISIONS);
    tcase_add_loop_test(core, scaled_gradients_make_the_same_step, 0, 5);
    tcase_add_test(core, clipping_equals_reference);
    tcase_add_test(core, clipping_keeps_an_overflow);
    return suite_run(suite);
}
