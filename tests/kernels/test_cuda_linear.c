/* The cuda device's linear layers against the reference device: every product, epilogue, fallback
 * and precision. */
#include "tests/kernels/cuda_tensor.h"

static const int BATCHES[] = {1, 2, 7, 32, 64, 100};
enum { N_BATCHES = sizeof BATCHES / sizeof BATCHES[0], BATCH_MAX = 260 };

/* A hidden layer and the one in front of it, a flattened activation, the network's last layer with
 * own kernels (few outputs) for even and odd sizes and several splits of the batch, and one with
 * the library's. */
static const linear_shape SHAPES[] = {
    {.in_features = 72, .out_features = 136},
    {.in_features = 144, .out_features = 40, .channels = 16, .height = 3, .width = 3},
    {.in_features = 128, .out_features = 10, .logits = true},
    {.in_features = 51, .out_features = 7, .logits = true},
    {.in_features = 64, .out_features = 24, .logits = true},
};
enum { N_SHAPES = sizeof SHAPES / sizeof SHAPES[0] };

/* What cuBLASLt is to refuse, so that own kernels take over; only the emulated one does. In every
 * way that it has: CUBLAS_STATUS_INVALID_VALUE (7), ARCH_MISMATCH (8), NOT_SUPPORTED (15), no
 * algorithm, or at the call itself. */
static const char *const REFUSALS[] = {
    "", "RELU_AUX_BIAS:7,DRELU,BGRADB:0",
    "RELU_AUX_BIAS:15@call,RELU_BIAS:7@call,BIAS:8@call,DRELU:7@call,BGRADB:15@call", "DRELU:7"};
enum { N_REFUSALS = sizeof REFUSALS / sizeof REFUSALS[0] };

/* One layer on one device: parameters and their gradient as arenas, weight first. */
typedef struct bench {
    device *dev;
    linear_shape s;
    linear *plan;
    size_t weights, count; /* of the arena */
    float *parameters, *gradients;
} bench;

static bench bench_open(device *dev, const linear_shape *shape, const float *parameters)
{
    bench b = {.dev = dev, .s = *shape};
    float *own = NULL;
    b.weights = (size_t)shape->in_features * (size_t)shape->out_features;
    b.count = b.weights + (size_t)shape->out_features;
    ok(dev->ops->linear_create(dev, shape, BATCH_MAX, &b.plan));
    ok(memory_alloc(sizeof *own * b.count, (void **)&own));
    ok(dev->ops->linear_import(b.plan, parameters, own));
    memcpy(own + b.weights, parameters + b.weights, sizeof *own * (b.count - b.weights));
    b.parameters = put_floats(dev, own, b.count);
    b.gradients = room(dev, sizeof *own * b.count);
    free(own);
    return b;
}

static void bench_close(bench *b)
{
    free_all(b->dev, (void *[]){b->parameters, b->gradients}, 2);
    b->dev->ops->linear_destroy(b->plan);
}

/* The layer's input: an activation (n, C, H, W) or rows. */
static float *put_input(const bench *b, const float *x, int n)
{
    if (b->s.channels == 0)
        return put_activations(b->dev, x, (size_t)n * (size_t)b->s.in_features);
    return put_images(b->dev, x, n, b->s.channels, b->s.height * b->s.width);
}

static float *get_input_gradient(const bench *b, const float *dx, int n)
{
    if (b->s.channels == 0)
        return get_activations(b->dev, dx, (size_t)n * (size_t)b->s.in_features);
    return get_images(b->dev, dx, n, b->s.channels, b->s.height * b->s.width);
}

static float *get_output(const bench *b, const float *y, int n)
{
    size_t count = (size_t)n * (size_t)b->s.out_features;
    return b->s.logits ? get_floats(b->dev, y, count) : get_activations(b->dev, y, count);
}

/* Gradients of the parameters in PyTorch's order. */
static float *get_gradients(const bench *b)
{
    float *own = get_floats(b->dev, b->gradients, b->count), *out = NULL;
    ok(memory_alloc(sizeof *out * b->count, (void **)&out));
    ok(b->dev->ops->linear_export(b->plan, own, out));
    memcpy(out + b->weights, own + b->weights, sizeof *out * (b->count - b->weights));
    free(own);
    return out;
}

/* What a sum of `terms` products of values in [-1/2, 1/2), exact in all types, may differ by
 * between two orders of adding: one rounding to float each, of partial sums below sqrt(terms); they
 * add up like a random walk. Four for tensor cores, which cut off instead of rounding. */
static double sum_tolerance(int terms)
{
    return 4 * 0x1p-24 * (double)terms;
}

/* Beside that a result in a 16-bit type is rounded once; before dropout and after it: twice. Where
 * the library leaves the bias to us, also before that is added: by half a unit of y - b, |b| <=
 * 1/2.
 */
static double type_tolerance(const bench *b)
{
    return is_half(b->dev->precision) ? (double)unit_of(b->dev->precision) : 1e-6;
}

static double bias_tolerance(const bench *b)
{
    return is_half(b->dev->precision) && !b->s.logits ? type_tolerance(b) / 4 : 0;
}

typedef enum forward_way { AT_ONCE, THEN_FINISHED } forward_way;

static float *run_forward_as(bench *b, int n, const float *x, bool relu, const dropout *drop,
                             forward_way way)
{
    float *d_x = put_input(b, x, n), *y = room(b->dev, sizeof *y * (size_t)(n * b->s.out_features));
    ok(b->dev->ops->begin_forward(b->dev, b->parameters, b->count));
    linear_epilogue epilogue = {b->parameters + b->weights, relu, drop};
    ok(b->dev->ops->linear_forward(b->plan, n, d_x, b->parameters,
                                   way == AT_ONCE ? &epilogue : NULL, y));
    if (way == THEN_FINISHED)
        ok(b->dev->ops->linear_finish(b->plan, n, &epilogue, y));
    float *out = get_output(b, y, n);
    free_all(b->dev, (void *[]){d_x, y}, 2);
    return out;
}

static float *run_forward(bench *b, int n, const float *x, bool relu, const dropout *drop)
{
    return run_forward_as(b, n, x, relu, drop, AT_ONCE);
}

static float *run_backward_data(bench *b, int n, const float *dy)
{
    size_t in = (size_t)n * (size_t)b->s.in_features;
    float *d_dy = put_activations(b->dev, dy, (size_t)(n * b->s.out_features));
    float *dx = room(b->dev, sizeof *dx * in);
    ok(b->dev->ops->begin_forward(b->dev, b->parameters, b->count));
    ok(b->dev->ops->linear_backward_data(b->plan, n, b->parameters, d_dy, NULL, dx));
    float *out = get_input_gradient(b, dx, n);
    free_all(b->dev, (void *[]){d_dy, dx}, 2);
    return out;
}

static float *run_backward_weights(bench *b, int n, const float *x, const float *dy,
                                   bool accumulate)
{
    float *d_x = put_input(b, x, n);
    float *d_dy = put_activations(b->dev, dy, (size_t)(n * b->s.out_features));
    param_gradients out = {b->gradients, b->gradients + b->weights, accumulate};
    ok(b->dev->ops->linear_backward_weights(b->plan, n, d_x, d_dy, &out));
    free_all(b->dev, (void *[]){d_x, d_dy}, 2);
    return get_gradients(b);
}

typedef struct data {
    int n;
    float *x, *dy, *parameters;
} data;

static data make_data(const linear_shape *s, int n)
{
    size_t weights = (size_t)s->in_features * (size_t)s->out_features;
    return (data){n, random_floats(1, (size_t)n * (size_t)s->in_features, 1.0f),
                  random_floats(2, (size_t)n * (size_t)s->out_features, 1.0f),
                  random_floats(3, weights + (size_t)s->out_features, 1.0f)};
}

static void free_data(data *d)
{
    free(d->x);
    free(d->dy);
    free(d->parameters);
}

static void compare(float *got, float *want, size_t count, double absolute, double relative)
{
    expect_close(got, want, count, absolute, relative);
    free(got);
    free(want);
}

static void check_forward(bench *cuda, bench *reference, const data *d, bool relu)
{
    float *got = run_forward(cuda, d->n, d->x, relu, NULL);
    float *want = run_forward(reference, d->n, d->x, relu, NULL);
    compare(got, want, (size_t)(d->n * cuda->s.out_features),
            sum_tolerance(cuda->s.in_features) + bias_tolerance(cuda),
            cuda->s.logits ? 0 : type_tolerance(cuda));
}

/* All products of one layer for one batch size. */
static void check_layer(bench *cuda, bench *reference, const data *d)
{
    const linear_shape *s = &cuda->s;
    check_forward(cuda, reference, d, false);
    check_forward(cuda, reference, d, true);
    compare(run_backward_data(cuda, d->n, d->dy), run_backward_data(reference, d->n, d->dy),
            (size_t)(d->n * s->in_features), sum_tolerance(s->out_features), type_tolerance(cuda));
    for (int turn = 0; turn < 3; turn++) { /* set, added once, set again */
        float *got = run_backward_weights(cuda, d->n, d->x, d->dy, turn == 1);
        float *want = run_backward_weights(reference, d->n, d->x, d->dy, turn == 1);
        compare(got, want, cuda->count, sum_tolerance(2 * d->n), 0);
    }
}

/* All batch sizes if the library refuses nothing, else some. */
static void check_layers(device *cuda, device *reference, const linear_shape *shape, bool thorough)
{
    int largest = shape->logits && thorough ? BATCH_MAX : 100;
    data d = make_data(shape, largest);
    bench got = bench_open(cuda, shape, d.parameters);
    bench want = bench_open(reference, shape, d.parameters);
    check_layer(&got, &want, &d);
    for (int i = 0; i < N_BATCHES; i += thorough ? 1 : 2) {
        d.n = BATCHES[i];
        check_layer(&got, &want, &d);
    }
    bench_close(&got);
    bench_close(&want);
    free_data(&d);
}

START_TEST(layers_equal_reference)
{
    device *cuda = open_device("cuda", PRECISIONS[_i % N_PRECISIONS]);
    device *reference = open_device("reference", PRECISION_F32);
    for (int refusal = 0; refusal < N_REFUSALS; refusal++) {
        setenv("MNIST_DDP_EMULATED_REFUSE", REFUSALS[refusal], 1);
        check_layers(cuda, reference, &SHAPES[_i / N_PRECISIONS], refusal == 0);
    }
    device_destroy(cuda);
    device_destroy(reference);
}
END_TEST

/* A refusal is noted once for an epilogue and its types, and goes on being known. */
START_TEST(refusals_are_noted)
{
    static const char *const epilogues[] = {"RELU_AUX_BIAS", "RELU_BIAS", "BGRADB"};
    device *cuda = open_device("cuda", PRECISION_BF16);
    data d = make_data(&SHAPES[0], 7);
    device_choice note;
    int notes = 0;
    setenv("MNIST_DDP_EMULATED_REFUSE", "RELU_AUX_BIAS:0,RELU_BIAS:7,BGRADB:15@call", 1);
    for (int turn = 0; turn < 4; turn++) {
        bench b = bench_open(cuda, &SHAPES[0], d.parameters);
        d.n = turn % 2 == 0 ? 7 : 2;
        free(run_forward(&b, d.n, d.x, true, NULL));
        free(run_backward_weights(&b, d.n, d.x, d.dy, false));
        bench_close(&b);
    }
    for (; cuda->ops->choice(cuda, notes, &note); notes++) {
        ck_assert_int_lt(notes, 3);
        ck_assert_str_eq(note.library, "cublaslt");
        ck_assert_str_eq(note.pass, epilogues[notes]);
        ck_assert_str_eq(note.subject, notes < 2 ? "bf16 to bf16" : "bf16 to f32");
        ck_assert_int_eq(note.engine, -1);
    }
    ck_assert_int_eq(notes, 3);
    free_data(&d);
    device_destroy(cuda);
}
END_TEST

/* relu and dropout after the matmul: the same elements are dropped, and the others are equal but
 * for rounding. The last sizes are no multiple of a block of 16, nor of one access. */
static void check_dropout(device *cuda, device *reference, const linear_shape *shape, int n,
                          const uint8_t *keep)
{
    data d = make_data(shape, n);
    bench benches[] = {bench_open(cuda, shape, d.parameters),
                       bench_open(reference, shape, d.parameters)};
    size_t count = (size_t)(n * shape->out_features);
    uint32_t samples[BATCH_MAX];
    float *y[2];
    for (int i = 0; i < n; i++)
        samples[i] = (uint32_t)(i * 31 + 5);
    for (int k = 0; k < 2; k++) {
        device *dev = benches[k].dev;
        step_state state = {.plan = {.epoch = 3}};
        dropout drop = {.p = 0.5f, .seed = 17, .layer = 1, .first_block = 3};
        void *d_samples = put_bytes(dev, samples, sizeof samples);
        void *d_state = put_bytes(dev, &state, sizeof state);
        void *d_keep = keep != NULL ? put_bytes(dev, keep, count) : NULL;
        drop.samples = d_samples;
        drop.state = d_state;
        drop.keep = d_keep;
        y[k] = run_forward(&benches[k], n, d.x, true, &drop);
        free_all(dev, (void *[]){d_samples, d_state, d_keep}, 3);
        bench_close(&benches[k]);
    }
    expect_close(y[0], y[1], count,
                 2 * (sum_tolerance(shape->in_features) + bias_tolerance(&benches[0])),
                 2 * type_tolerance(&benches[0]));
    size_t dropped = 0;
    for (size_t i = 0; i < count; i++) {
        dropped += y[1][i] == 0.0f;
        if ((y[1][i] == 0.0f || y[0][i] == 0.0f) && !(fabsf(y[1][i] - y[0][i]) <= 1e-2f))
            ck_abort_msg("[%zu]: dropped in one, not in the other", i); /* nor at relu's edge */
    }
    ck_assert(dropped > count / 2 && dropped < count);
    free(y[0]);
    free(y[1]);
    free_data(&d);
}

START_TEST(dropout_equals_reference)
{
    static const linear_shape shapes[] = {{.in_features = 64, .out_features = 128},
                                          {.in_features = 40, .out_features = 24},
                                          {.in_features = 40, .out_features = 21}};
    device *cuda = open_device("cuda", PRECISIONS[_i % N_PRECISIONS]);
    device *reference = open_device("reference", PRECISION_F32);
    uint8_t keep[100 * 128];
    for (size_t i = 0; i < sizeof keep; i++)
        keep[i] = (i / 7 + i * i) % 3 == 0;
    setenv("MNIST_DDP_EMULATED_REFUSE", REFUSALS[_i / N_PRECISIONS], 1);
    for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++) {
        check_dropout(cuda, reference, &shapes[k], 100, NULL);
        check_dropout(cuda, reference, &shapes[k], 7, NULL);
        check_dropout(cuda, reference, &shapes[k], 100, keep);
    }
    device_destroy(cuda);
    device_destroy(reference);
}
END_TEST

/* A product without its epilogue, and that alone. */
START_TEST(a_product_is_finished_later)
{
    static const linear_shape shapes[] = {
        {.in_features = 64, .out_features = 128},
        {.in_features = 48, .out_features = 10, .logits = true}, /* kernels of our own */
        {.in_features = 48, .out_features = 40, .logits = true}};
    device *cuda = open_device("cuda", PRECISIONS[_i]);
    for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++) {
        const linear_shape *s = &shapes[k];
        data d = make_data(s, 33);
        bench b = bench_open(cuda, s, d.parameters);
        float *later = run_forward_as(&b, 33, d.x, !s->logits, NULL, THEN_FINISHED);
        float *at_once = run_forward(&b, 33, d.x, !s->logits, NULL);
        expect_close(later, at_once, (size_t)(33 * s->out_features),
                     2 * (sum_tolerance(s->in_features) + bias_tolerance(&b)),
                     2 * type_tolerance(&b));
        free(later);
        free(at_once);
        bench_close(&b);
        free_data(&d);
    }
    device_destroy(cuda);
}
END_TEST

/* A layer whose relu gets no 0: what cuBLASLt's mask lets through there is not documented. Products
 * are multiples of 2^-12; the biases here are odd ones of 2^-13, exact in every type. */
static data make_data_without_zero(device *reference, const linear_shape *s, int n)
{
    data d = make_data(s, n);
    float *biases = d.parameters + s->in_features * s->out_features;
    for (int i = 0; i < s->out_features; i++) {
        biases[i] = biases[i] / 64 + 0x1p-13f;
        for (int p = 0; p < N_PRECISIONS; p++)
            if (rounded(PRECISIONS[p], biases[i]) != biases[i])
                ck_abort_msg("bias %d is %.9g, not exact", i, (double)biases[i]);
    }
    bench b = bench_open(reference, s, d.parameters);
    float *into_relu = run_forward(&b, n, d.x, false, NULL);
    for (int i = 0; i < n * s->out_features; i++)
        if (into_relu[i] == 0.0f)
            ck_abort_msg("[%d] is 0", i);
    free(into_relu);
    bench_close(&b);
    return d;
}

/* Two layers in a row: the upper one's input gradient is masked by the lower one's relu, by the
 * library's mask (p = 0) or by the output itself (dropout). */
static void check_chain(device *cuda, device *reference, int n, int outputs, float p)
{
    linear_shape lower = {.in_features = 48, .out_features = 136};
    linear_shape upper = {.in_features = 136, .out_features = outputs, .logits = outputs < 100};
    data low = make_data_without_zero(reference, &lower, n), up = make_data(&upper, n);
    bench l = bench_open(cuda, &lower, low.parameters), u = bench_open(cuda, &upper, up.parameters);
    bench r = bench_open(reference, &upper, up.parameters);
    size_t hidden = (size_t)(n * lower.out_features);
    float *x = put_input(&l, low.x, n), *y = room(cuda, sizeof *y * hidden);
    float *dy = put_activations(cuda, up.dy, (size_t)(n * outputs));
    float *dx = room(cuda, sizeof *dx * hidden), *want = room(reference, sizeof *want * hidden);
    ok(cuda->ops->begin_forward(cuda, l.parameters, l.count));
    ok(cuda->ops->begin_forward(cuda, u.parameters, u.count));
    linear_epilogue epilogue = {l.parameters + l.weights, true, NULL};
    relu_output input = {y, p};
    ok(cuda->ops->linear_forward(l.plan, n, x, l.parameters, &epilogue, y));
    ok(cuda->ops->linear_backward_data(u.plan, n, u.parameters, dy, &input, dx));
    float *passed = get_activations(cuda, y, hidden), *got = get_activations(cuda, dx, hidden);
    relu_output input_back = {passed, p};
    ok(reference->ops->linear_backward_data(r.plan, n, r.parameters, up.dy, &input_back, want));
    expect_close(got, want, hidden, 2 * sum_tolerance(outputs), 2 * type_tolerance(&u));
    free_all(cuda, (void *[]){x, y, dy, dx}, 4);
    reference->ops->free(reference, want);
    bench_close(&l);
    bench_close(&u);
    bench_close(&r);
    free(passed);
    free(got);
    free_data(&low);
    free_data(&up);
}

START_TEST(relu_backward_equals_reference)
{
    device *cuda = open_device("cuda", PRECISIONS[_i % N_PRECISIONS]);
    device *reference = open_device("reference", PRECISION_F32);
    setenv("MNIST_DDP_EMULATED_REFUSE", REFUSALS[_i / N_PRECISIONS], 1);
    for (int i = 0; i < N_BATCHES; i++) {
        check_chain(cuda, reference, BATCHES[i], 104, 0);
        check_chain(cuda, reference, BATCHES[i], 104, 0.5f);
        check_chain(cuda, reference, BATCHES[i], 10, 0);
        check_chain(cuda, reference, BATCHES[i], 10, 0.5f);
    }
    device_destroy(cuda);
    device_destroy(reference);
}
END_TEST

/* New weights in the arena are what the next pass sees, in every precision. */
START_TEST(weights_are_read_anew)
{
    linear_shape shape = {.in_features = 32, .out_features = 48};
    device *cuda = open_device("cuda", PRECISIONS[_i]);
    data d = make_data(&shape, 4);
    bench b = bench_open(cuda, &shape, d.parameters);
    float *first = run_forward(&b, 4, d.x, false, NULL);
    for (size_t i = 0; i < b.count; i++)
        d.parameters[i] *= -2.0f;
    ok(cuda->ops->upload(cuda, b.parameters, d.parameters, sizeof(float) * b.count));
    float *second = run_forward(&b, 4, d.x, false, NULL);
    for (size_t i = 0; i < 4 * 48; i++)
        first[i] *= -2.0f;
    expect_close(second, first, 4 * 48, 0, 0);
    free(first);
    free(second);
    bench_close(&b);
    free_data(&d);
    device_destroy(cuda);
}
END_TEST

int main(void)
{
    if (!cuda_choose())
        return TEST_SKIPPED;
    setenv("MNIST_DDP_EMULATED_STRICT", "1", 1); /* a leak is a failure */
    Suite *suite = suite_create("cuda_linear");
    TCase *core = suite_case(suite, "core", 120);
    tcase_add_loop_test(core, layers_equal_reference, 0, N_SHAPES * N_PRECISIONS);
    if (!cuda_is_real())
        tcase_add_test(core, refusals_are_noted);
    tcase_add_loop_test(core, dropout_equals_reference, 0, N_REFUSALS * N_PRECISIONS);
    tcase_add_loop_test(core, a_product_is_finished_later, 0, N_PRECISIONS);
    tcase_add_loop_test(core, relu_backward_equals_reference, 0, N_REFUSALS * N_PRECISIONS);
    tcase_add_loop_test(core, weights_are_read_anew, 0, N_PRECISIONS);
    return suite_run(suite);
}
