/* The cuda device's own kernels against the reference device: batches, pooling, loss, optimizers.
 */
#include "tests/kernels/cuda_tensor.h"

#include "kernels/dropout.h"
#include "kernels/pixel.h"

static const int BATCHES[] = {1, 2, 7, 32, 64, 100};
enum { N_BATCHES = sizeof BATCHES / sizeof BATCHES[0], BATCH_MAX = 100 };

/* Loop tests run over precisions, and batches within. */
static precision precision_of(int i)
{
    return PRECISIONS[i / N_BATCHES];
}

static int batch_of(int i)
{
    return BATCHES[i % N_BATCHES];
}

enum { LOOP = N_PRECISIONS * N_BATCHES };

static step_state *put_numbers(device *dev, const step_state *state)
{
    return put_bytes(dev, state, sizeof *state);
}

/* Every pixel value occurs. The result is exact: the float of the host's formula, rounded once. */
static void check_gather(device *dev, int n, int pixels)
{
    enum { IMAGES = 40, OFFSET = 3, FIRST = 5, PIXELS_MAX = 784 };
    const device_ops *ops = dev->ops;
    uint8_t *images = NULL, labels[IMAGES], got_labels[BATCH_MAX];
    float want[PIXELS_MAX];
    uint32_t order[FIRST + OFFSET + BATCH_MAX], got_samples[BATCH_MAX];
    size_t count = (size_t)n * (size_t)pixels;
    ok(memory_alloc((size_t)(IMAGES * pixels), (void **)&images));
    for (int i = 0; i < IMAGES * pixels; i++)
        images[i] = (uint8_t)(i * 7 + i / 256);
    for (int i = 0; i < IMAGES; i++)
        labels[i] = (uint8_t)(i % 10);
    for (int i = 0; i < FIRST + OFFSET + BATCH_MAX; i++)
        order[i] = (uint32_t)(i * 11 % IMAGES);
    step_state state = {.plan = {.first = FIRST}};
    void *d_images = put_bytes(dev, images, (size_t)(IMAGES * pixels));
    void *d_labels = put_bytes(dev, labels, sizeof labels);
    void *d_order = put_bytes(dev, order, sizeof order), *d_state = put_numbers(dev, &state);
    gather_source source = {
        .images = d_images, .labels = d_labels, .order = d_order, .pixels = pixels};
    float *x = room(dev, sizeof *x * count);
    void *out_labels = room(dev, BATCH_MAX), *samples = room(dev, sizeof got_samples);
    gather_output gathered = {x, out_labels, samples};
    ok(ops->gather(dev, &source, d_state, OFFSET, n, &gathered));
    float *got = get_activations(dev, x, count);
    ok(ops->download(dev, got_labels, out_labels, (size_t)n));
    ok(ops->download(dev, got_samples, samples, sizeof *got_samples * (size_t)n));
    for (int i = 0; i < n; i++) {
        uint32_t index = order[FIRST + OFFSET + i];
        ck_assert_uint_eq(got_samples[i], index);
        ck_assert_uint_eq(got_labels[i], labels[index]);
        for (int j = 0; j < pixels; j++)
            want[j] = ((float)images[(int)index * pixels + j] / 255.0f - 0.1307f) / 0.3081f;
        expect_rounded(dev->precision, got + i * pixels, want, (size_t)pixels);
    }
    free_all(dev, (void *[]){d_images, d_labels, d_order, d_state, x, out_labels, samples}, 7);
    free(images);
    free(got);
}

START_TEST(gather_is_exact)
{
    device *dev = open_device("cuda", precision_of(_i));
    check_gather(dev, batch_of(_i), 784);
    check_gather(dev, batch_of(_i), 27); /* no whole words */
    device_destroy(dev);
}
END_TEST

/* What was drawn depends on the host's mathematics and the GPU's: places differ by a few
 * roundings. */
START_TEST(gather_augments)
{
    enum { IMAGES = 7, PIXELS = AUGMENTATION_SIDE * AUGMENTATION_SIDE };
    device *dev = open_device("cuda", PRECISIONS[_i]);
    uint8_t images[IMAGES * PIXELS], labels[IMAGES] = {0};
    uint32_t order[IMAGES], got_samples[IMAGES];
    float want[PIXELS];
    for (int i = 0; i < IMAGES * PIXELS; i++)
        images[i] = (uint8_t)(i * 7 + i / 256);
    for (uint32_t i = 0; i < IMAGES; i++)
        order[i] = IMAGES - 1 - i;
    step_state state = {.plan = {.epoch = 2}};
    gather_source source = {.images = put_bytes(dev, images, sizeof images),
                            .labels = put_bytes(dev, labels, sizeof labels),
                            .order = put_bytes(dev, order, sizeof order),
                            .pixels = PIXELS,
                            .augment = {.shift = 4, .rotate = 30, .scale = 0.3f, .seed = 3}};
    void *d_state = put_numbers(dev, &state);
    float *x = room(dev, sizeof *x * IMAGES * PIXELS);
    gather_output gathered = {x, room(dev, IMAGES), room(dev, sizeof got_samples)};
    ok(dev->ops->gather(dev, &source, d_state, 0, IMAGES, &gathered));
    float *got = get_activations(dev, x, IMAGES * PIXELS);
    ok(dev->ops->download(dev, got_samples, gathered.samples, sizeof got_samples));
    for (uint32_t i = 0; i < IMAGES; i++) {
        affine drawn = augmentation_draw(&source.augment, order[i], 2);
        affine_map map = augmentation_map(&drawn);
        for (int j = 0; j < PIXELS; j++)
            want[j] = pixel_normalised(augmentation_sample(
                images + order[i] * PIXELS, &map, j % AUGMENTATION_SIDE, j / AUGMENTATION_SIDE));
        expect_close(got + i * PIXELS, want, PIXELS, 1e-4, (double)unit_of(dev->precision));
        ck_assert_uint_eq(got_samples[i], order[i]);
    }
    free_all(dev,
             (void *[]){(void *)source.images, (void *)source.labels, (void *)source.order, d_state,
                        x, gathered.labels, gathered.samples},
             7);
    free(got);
    device_destroy(dev);
}
END_TEST

/* One pool layer on one device, in plain order on the host. */
typedef struct pool_case {
    pool_shape shape;
    int n;
    float p;
    const float *z, *dy;
    const uint8_t *keep;
    const uint32_t *samples;
} pool_case;

static void run_pool(device *dev, const pool_case *c, float **y_out, float **dz_out)
{
    const pool_shape *s = &c->shape;
    int area = s->height * s->width, channels = s->channels;
    size_t out = (size_t)(c->n * channels * area / 4);
    step_state state = {.plan = {.epoch = 2}};
    step_state *d_state = put_numbers(dev, &state);
    uint32_t *samples = put_bytes(dev, c->samples, sizeof *c->samples * (size_t)c->n);
    uint8_t *keep = c->keep != NULL ? put_bytes(dev, c->keep, out) : NULL;
    dropout drop = {c->p, 9, 1, 0, samples, d_state, keep};
    float *z = put_images(dev, c->z, c->n, channels, area);
    float *dy = put_images(dev, c->dy, c->n, channels, area / 4);
    float *y = room(dev, sizeof *y * out);
    uint8_t *argmax = room(dev, out);
    pool_shape shape = *s;
    shape.n = c->n;
    pool_output pooled = {y, argmax};
    ok(dev->ops->pool_forward(dev, &shape, z, &drop, &pooled));
    /* The gradient takes the place of what was pooled, as in the network. */
    ok(dev->ops->pool_backward(dev, &shape, &pooled, dy, c->p, z));
    *y_out = get_images(dev, y, c->n, channels, area / 4);
    *dz_out = get_images(dev, z, c->n, channels, area);
    free_all(dev, (void *[]){d_state, samples, keep, z, dy, y, argmax}, 7);
}

/* A maximum, a factor and one rounding: equal in every bit, and so are dropout's choices. The
 * inputs are multiples of 1/64, so windows have equal values now and then: the first one wins. */
static void check_pool(device *cuda, device *reference, pool_case *c)
{
    size_t in = (size_t)(c->n * c->shape.channels * c->shape.height * c->shape.width);
    float *z = random_floats(1, in, 1.0f), *dy = random_floats(2, in / 4, 1.0f);
    float *want_y, *want_dz, *got_y, *got_dz;
    uint32_t samples[BATCH_MAX];
    for (int i = 0; i < c->n; i++)
        samples[i] = (uint32_t)(i * 977 + 3);
    c->z = z;
    c->dy = dy;
    c->samples = samples;
    run_pool(reference, c, &want_y, &want_dz);
    run_pool(cuda, c, &got_y, &got_dz);
    expect_rounded(cuda->precision, got_y, want_y, in / 4);
    expect_rounded(cuda->precision, got_dz, want_dz, in);
    float *all[] = {z, dy, want_y, want_dz, got_y, got_dz};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

START_TEST(pool_equals_reference)
{
    device *cuda = open_device("cuda", precision_of(_i));
    device *reference = open_device("reference", PRECISION_F32);
    uint8_t keep[BATCH_MAX * 32 * 2 * 3];
    for (size_t i = 0; i < sizeof keep; i++)
        keep[i] = (i * i + i / 3) % 3 != 0;
    pool_case plain = {.shape = {.channels = 32, .height = 4, .width = 6}, .n = batch_of(_i)};
    check_pool(cuda, reference, &plain);
    pool_case dropped = {
        .shape = {.channels = 32, .height = 4, .width = 6}, .n = batch_of(_i), .p = 0.25f};
    check_pool(cuda, reference, &dropped);
    pool_case injected = {.shape = {.channels = 32, .height = 4, .width = 6},
                          .n = batch_of(_i),
                          .p = 0.5f,
                          .keep = keep};
    check_pool(cuda, reference, &injected);
    device_destroy(cuda);
    device_destroy(reference);
}
END_TEST

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

/* Optimizer `which` on elements [first, COUNT) of the arenas, which get what comes out. */
static void optimize(device *dev, int which, float *arenas[ARENAS], size_t first, step_state *state)
{
    const device_ops *ops = dev->ops;
    size_t count = COUNT - first;
    float *a[ARENAS];
    step_state *d_state = put_numbers(dev, state);
    sgd_options plain = {.weight_decay = 0.01f}, nesterov = {0.9f, 0, true};
    adam_options adam = {0.9f, 0.999f, 1e-8f, 0.01f, which == 4};
    adadelta_options adadelta = {0.9f, 1e-6f, 0};
    for (int k = 0; k < ARENAS; k++)
        a[k] = put_floats(dev, arenas[k], COUNT);
    float *p = a[0] + first, *g = a[1] + first, *s = a[2] + first, *t = a[3] + first;
    optimizer_slice slice = {p, g, which == 0 ? NULL : s, which < 2 ? NULL : t, count};
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

/* One fused multiply-add instead of two roundings, a few per element: units in the last place of
 * values below 2. */
START_TEST(optimizers_equal_reference)
{
    device *cuda = open_device("cuda", PRECISION_F32);
    device *reference = open_device("reference", PRECISION_F32);
    for (size_t first = 0; first < 3; first += 2) { /* aligned to 16 bytes, and not */
        float *want[ARENAS], *got[ARENAS];
        step_state state = optimizer_numbers();
        make_arenas(want);
        make_arenas(got);
        optimize(reference, _i, want, first, &state);
        begin(cuda, false);
        optimize(cuda, _i, got, first, &state);
        for (int k = 0; k < ARENAS; k++)
            expect_close(got[k], want[k], COUNT, 1e-6, 0);
        free_arenas(want);
        free_arenas(got);
    }
    device_destroy(cuda);
    device_destroy(reference);
}
END_TEST

/* The scale is a power of two: what is scaled and unscaled again has the same bits. */
START_TEST(scaled_gradients_make_the_same_step)
{
    device *cuda = open_device("cuda", PRECISION_F16);
    float *want[ARENAS], *got[ARENAS];
    step_state state = optimizer_numbers(), scaled = state;
    make_arenas(want);
    make_arenas(got);
    begin(cuda, false);
    optimize(cuda, _i, want, 0, &state);
    scaled.plan.scale_loss = true;
    scaled.scaling.scale = 65536.0f;
    for (int i = 0; i < COUNT; i++)
        got[1][i] *= scaled.scaling.scale;
    begin(cuda, true);
    optimize(cuda, _i, got, 0, &scaled);
    ck_assert_uint_eq(scaled.scaling.overflow, 0);
    expect_same(got[0], want[0], sizeof(float) * COUNT);
    expect_same(got[2], want[2], sizeof(float) * COUNT);
    expect_same(got[3], want[3], sizeof(float) * COUNT);
    free_arenas(want);
    free_arenas(got);
    device_destroy(cuda);
}
END_TEST

/* An infinity or a NaN anywhere: nothing is changed, and the step is marked. */
START_TEST(overflow_skips_the_step)
{
    static const int places[] = {0, COUNT / 2, COUNT - 1};
    device *cuda = open_device("cuda", PRECISION_F16);
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        float *want[ARENAS], *got[ARENAS];
        step_state state = optimizer_numbers();
        state.plan.scale_loss = true;
        state.scaling.scale = 2.0f;
        make_arenas(want);
        make_arenas(got);
        want[1][places[i]] = got[1][places[i]] = i == 1 ? NAN : INFINITY;
        begin(cuda, true);
        optimize(cuda, _i, got, 0, &state);
        ck_assert_uint_ne(state.scaling.overflow, 0);
        for (int k = 0; k < ARENAS; k++)
            expect_same(got[k], want[k], sizeof(float) * COUNT);
        free_arenas(want);
        free_arenas(got);
    }
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
    tcase_add_loop_test(core, gather_is_exact, 0, LOOP);
    tcase_add_loop_test(core, gather_augments, 0, N_PRECISIONS);
    tcase_add_loop_test(core, pool_equals_reference, 0, LOOP);
    tcase_add_loop_test(core, loss_equals_reference, 0, N_PRECISIONS);
    tcase_add_loop_test(core, optimizers_equal_reference, 0, 5);
    tcase_add_loop_test(core, scaled_gradients_make_the_same_step, 0, 5);
    tcase_add_loop_test(core, overflow_skips_the_step, 0, 5);
    tcase_add_test(core, clipping_equals_reference);
    tcase_add_test(core, clipping_keeps_an_overflow);
    return suite_run(suite);
}
