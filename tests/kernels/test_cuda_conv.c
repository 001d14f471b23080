/* The cuda device's convolutions against the reference device. */
#include "tests/kernels/conv_bench.h"
#include "tests/support/facts.h"

static const int BATCHES[] = {1, 2, 7, 32};
enum { N_BATCHES = sizeof BATCHES / sizeof BATCHES[0] };

/* The networks', and small ones of unlike sizes. */
static const conv2d_shape FIRST[] = {
    {1, 28, 28, 32, 3, .plain_input = true, .relu = true},
    {1, 12, 7, 8, 3, .plain_input = true, .relu = true},
    {1, 4, 16, 64, 3, .plain_input = true, .relu = true},
    {1, 28, 28, 16, 5, .plain_input = true, .relu = false},
    {1, 9, 12, 4, 5, .plain_input = true, .relu = false},
    {1, 5, 4, 16, 3, .plain_input = true, .relu = true},
    {1, 32, 28, 8, 3, .plain_input = true, .relu = true}, /* the most pixels that there may be */
    {1, 7, 16, 8, 5, .plain_input = true, .relu = false},
    {1, 8, 10, 2, 5, .plain_input = true, .relu = false},
};
static const conv2d_shape NETWORK = {32, 26, 26, 64, 3, .plain_input = false, .relu = false};
static const conv2d_shape INNER[] = {
    {8, 9, 7, 24, 3, .plain_input = false, .relu = false},
    {16, 5, 12, 8, 3, .plain_input = false, .relu = false},
    {8, 6, 6, 8, 1, .plain_input = false, .relu = false},
    {16, 12, 12, 32, 3, .plain_input = false, .relu = false},
    {8, 5, 3, 40, 1, .plain_input = false, .relu = false},
    {8, 3, 3, 88, 1, .plain_input = false, .relu = false},
    {8, 1, 3, 1024, 1, .plain_input = false, .relu = false},
};
enum {
    N_FIRST = sizeof FIRST / sizeof FIRST[0],
    N_INNER = sizeof INNER / sizeof INNER[0],
};

static const char REFUSE[] = "MNIST_DDP_EMULATED_REFUSE", AUTOTUNE[] = "MNIST_DDP_CUDA_AUTOTUNE";

static void compare(device *cuda, device *reference, const conv2d_shape *s, int n)
{
    data want = run_on(reference, s, n), got = run_on(cuda, s, n);
    expect_equal(s, cuda->precision, &got, &want);
    free_data(&want);
    free_data(&got);
}

static void compare_batches(precision p, const conv2d_shape *s)
{
    device *cuda = open_device("cuda", p), *reference = open_device("reference", PRECISION_F32);
    for (int i = 0; i < N_BATCHES; i++)
        compare(cuda, reference, s, BATCHES[i]);
    device_destroy(cuda);
    device_destroy(reference);
}

START_TEST(first_equals_reference)
{
    compare_batches(PRECISIONS[_i % N_PRECISIONS], &FIRST[_i / N_PRECISIONS]);
}
END_TEST

START_TEST(inner_equals_reference)
{
    compare_batches(PRECISIONS[_i % N_PRECISIONS], &INNER[_i / N_PRECISIONS]);
}
END_TEST

/* The network's own is slow on the emulated device. */
START_TEST(network_equals_reference)
{
    device *cuda = open_device("cuda", PRECISIONS[_i]);
    device *reference = open_device("reference", PRECISION_F32);
    compare(cuda, reference, &NETWORK, 2);
    device_destroy(cuda);
    device_destroy(reference);
}
END_TEST

/* More images than blocks run at once, and batches that an engine may take in pieces. */
START_TEST(large_batches_equal_reference)
{
    static const int batches[] = {37, 64, BATCH_MAX};
    device *cuda = open_device("cuda", PRECISIONS[_i % N_PRECISIONS]);
    device *reference = open_device("reference", PRECISION_F32);
    for (int i = 0; i < 3; i++)
        compare(cuda, reference, _i < N_PRECISIONS ? &INNER[0] : &FIRST[1], batches[i]);
    device_destroy(cuda);
    device_destroy(reference);
}
END_TEST

/* What the emulated cuDNN can be told to refuse has another way; and any engine will do. */
START_TEST(other_ways_equal_reference)
{
    static const char *const refusals[] = {"conv_fused", "dw_f32", "conv_fused,dw_f32"};
    setenv(REFUSE, refusals[_i / N_PRECISIONS], 1);
    setenv(AUTOTUNE, _i % 2 == 0 ? "1" : "4", 1);
    compare_batches(PRECISIONS[_i % N_PRECISIONS], &INNER[0]);
    unsetenv(REFUSE); /* the next test may run in this process */
    unsetenv(AUTOTUNE);
}
END_TEST

START_TEST(weights_come_back)
{
    device *cuda = open_device("cuda", PRECISION_F32);
    const conv2d_shape *s = _i == 0 ? &FIRST[0] : &NETWORK;
    size_t count = weight_count(s);
    float *plain_order = random_floats(4, count, 1.0f), *own = NULL, *back = NULL;
    ok(memory_alloc(sizeof *own * count, (void **)&own));
    ok(memory_alloc(sizeof *back * count, (void **)&back));
    conv2d *plan = NULL;
    ok(cuda->ops->conv2d_create(cuda, s, 1, &plan));
    ok(cuda->ops->conv2d_import(plan, plain_order, own));
    ok(cuda->ops->conv2d_export(plan, own, back));
    expect_same(back, plain_order, sizeof *back * count);
    /* (o, c, h, w) = (2, c, 1, 2) lies channels innermost */
    int c = s->channels - 1;
    ck_assert(own[((2 * 3 + 1) * 3 + 2) * s->channels + c] ==
              plain_order[((2 * s->channels + c) * 3 + 1) * 3 + 2]);
    cuda->ops->conv2d_destroy(plan);
    free(plain_order);
    free(own);
    free(back);
    device_destroy(cuda);
}
END_TEST

/* Numbers whose sums do round, so that the order shows. */
static data make_uneven(const conv2d_shape *s, int n)
{
    data d = make_data(s, n);
    for (size_t i = 0; i < weight_count(s) + (size_t)s->out_channels; i++)
        d.parameters[i] *= 1.1f;
    for (size_t i = 0; i < (size_t)(n * s->channels * s->height * s->width); i++)
        d.x[i] *= 0.7f;
    for (size_t i = 0; i < (size_t)(n * s->out_channels * out_area(s)); i++)
        d.dy[i] *= 0.3f;
    return d;
}

/* How far float32 sums of so many products of this size may be apart; tf32 rounds both factors of
 * each to 2^-11 of themselves first. */
static double sum_slack(precision p, int terms, double product)
{
    double all = terms * product;
    return p == PRECISION_TF32 ? 0x1p-10 * all : 0x1p-24 * terms * all;
}

/* Factors with more digits than tf32 has: f32 must keep them. */
START_TEST(digits_are_kept)
{
    enum { N = 2 };
    const conv2d_shape *s = &INNER[0];
    precision p = PRECISIONS[_i];
    device *cuda = open_device("cuda", p), *reference = open_device("reference", PRECISION_F32);
    data got = make_uneven(s, N), want = make_uneven(s, N);
    size_t xs = (size_t)(N * s->channels * s->height * s->width);
    size_t ys = (size_t)(N * s->out_channels * out_area(s)), weights = weight_count(s);
    for (size_t i = 0; i < weights + (size_t)s->out_channels; i++)
        want.parameters[i] = rounded(p, want.parameters[i]);
    for (size_t i = 0; i < xs; i++)
        want.x[i] = rounded(p, want.x[i]);
    for (size_t i = 0; i < ys; i++)
        want.dy[i] = rounded(p, want.dy[i]);
    bench b = bench_open(cuda, s, &got), r = bench_open(reference, s, &want);
    ok(enqueue(&b, N, false));
    ok(enqueue(&r, N, false));
    collect(&b, &got);
    collect(&r, &want);
    double half = is_half(p) ? (double)unit_of(p) / 2 : 0;
    int taps = s->kernel * s->kernel;
    expect_close(got.y, want.y, ys, sum_slack(p, s->channels * taps, 0.35 * 0.55) + half, 2 * half);
    expect_close(got.dx, want.dx, xs, sum_slack(p, s->out_channels * taps, 0.55 * 0.15), half);
    expect_close(got.gradients, want.gradients, weights, sum_slack(p, N * out_area(s), 0.35 * 0.15),
                 half);
    expect_close(got.gradients + weights, want.gradients + weights, (size_t)s->out_channels,
                 sum_slack(PRECISION_F32, N * out_area(s), 0.15), 0);
    bench_close(&b);
    bench_close(&r);
    free_data(&got);
    free_data(&want);
    device_destroy(cuda);
    device_destroy(reference);
}
END_TEST

static data run_uneven(precision p, const conv2d_shape *s, int n)
{
    device *cuda = open_device("cuda", p);
    data d = make_uneven(s, n);
    bench b = bench_open(cuda, s, &d);
    ok(enqueue(&b, n, false));
    ok(enqueue(&b, n, false));
    collect(&b, &d);
    bench_close(&b);
    device_destroy(cuda);
    return d;
}

START_TEST(bits_are_the_same_again)
{
    const conv2d_shape *s = _i < N_PRECISIONS ? &FIRST[1] : &INNER[0];
    precision p = PRECISIONS[_i % N_PRECISIONS];
    enum { N = 19 };
    size_t ys = (size_t)(N * s->out_channels * out_area(s));
    size_t xs = (size_t)(N * s->channels * s->height * s->width);
    data one = run_uneven(p, s, N), other = run_uneven(p, s, N);
    expect_same(one.y, other.y, sizeof(float) * ys);
    expect_same(one.gradients, other.gradients,
                sizeof(float) * (weight_count(s) + (size_t)s->out_channels));
    if (!s->plain_input)
        expect_same(one.dx, other.dx, sizeof(float) * xs);
    free_data(&one);
    free_data(&other);
}
END_TEST

/* A recorded pass adds, exactly, what an eager one did; but the first batch of a size cannot be
 * recorded. */
START_TEST(passes_are_recorded)
{
    const conv2d_shape *s = _i < N_PRECISIONS ? &FIRST[1] : &INNER[0];
    device *cuda = open_device("cuda", PRECISIONS[_i % N_PRECISIONS]);
    const accelerator_ops *ops = cuda->ops->accelerator;
    device_graph *graph = NULL;
    data d = make_data(s, 7);
    bench b = bench_open(cuda, s, &d);
    ok(cuda->ops->begin_forward(cuda, b.parameters, b.count));
    if (!s->plain_input) {
        ok(ops->capture_begin(cuda));
        ck_assert_int_eq(enqueue(&b, 7, false), STATUS_INVALID);
        ASSERT_FACTS(status_text(), "batch", "recorded");
        ok(ops->capture_end(cuda, NULL));
    }
    ok(enqueue(&b, 7, false));
    collect(&b, &d);
    float *eager = get_floats(cuda, b.gradients, b.count);
    ok(ops->capture_begin(cuda));
    ok(enqueue(&b, 7, true));
    ok(ops->capture_end(cuda, &graph));
    for (int i = 0; i < 3; i++)
        ok(ops->graph_launch(cuda, graph));
    float *four = get_floats(cuda, b.gradients, b.count);
    for (size_t i = 0; i < b.count; i++)
        ck_assert(four[i] == 4 * eager[i]);
    ops->graph_destroy(graph);
    free(eager);
    free(four);
    bench_close(&b);
    free_data(&d);
    device_destroy(cuda);
}
END_TEST

/* Where cuDNN adds the bias for one batch size and not for another, either is recorded as it was
 * run. */
START_TEST(batch_sizes_choose_for_themselves)
{
    static const int batches[] = {7, 5};
    device *cuda = open_device("cuda", PRECISIONS[_i]);
    const accelerator_ops *ops = cuda->ops->accelerator;
    data d = make_data(&INNER[0], 7);
    bench b = bench_open(cuda, &INNER[0], &d);
    float *eager[2];
    for (int i = 0; i < 2; i++) {
        setenv(REFUSE, i == 0 ? "" : "conv_fused", 1);
        ok(enqueue(&b, batches[i], false));
        collect(&b, &d);
        eager[i] = d.y;
        d.y = NULL;
    }
    unsetenv(REFUSE);
    for (int i = 0; i < 2; i++) {
        device_graph *graph = NULL;
        ok(ops->capture_begin(cuda));
        ok(enqueue(&b, batches[i], false));
        ok(ops->capture_end(cuda, &graph));
        ok(ops->graph_launch(cuda, graph));
        collect(&b, &d);
        size_t count = (size_t)(batches[i] * INNER[0].out_channels * out_area(&INNER[0]));
        expect_same(d.y, eager[i], sizeof *d.y * count);
        ops->graph_destroy(graph);
        free(eager[i]);
    }
    bench_close(&b);
    free_data(&d);
    device_destroy(cuda);
}
END_TEST

/* db of dy, which lies in b->y: exactly the sums of what is there. */
static void check_bias_gradient(const bench *b, const data *d)
{
    const conv2d_shape *s = &b->s;
    int area = out_area(s);
    float *db = b->gradients + b->weights;
    param_gradients out = {b->gradients, db, false};
    ok(b->dev->ops->conv2d_backward_weights(b->plan, d->n, b->x, b->y, b->y, &out));
    float *dz = get_images(b->dev, b->y, d->n, s->out_channels, area);
    float *got = get_floats(b->dev, db, (size_t)s->out_channels);
    for (int c = 0; c < s->out_channels; c++) {
        float sum = 0;
        for (int i = 0; i < d->n; i++)
            for (int at = 0; at < area; at++)
                sum += dz[(i * s->out_channels + c) * area + at];
        ck_assert_msg(got[c] == sum, "%d images, channel %d: %g, not %g", d->n, c, (double)got[c],
                      (double)sum);
    }
    free(dz);
    free(got);
}

/* The pool after a convolution sums the gradient that it writes. If that is overwritten later, or
 * dy is not a pool's, dy itself is summed. */
START_TEST(bias_gradient_comes_from_the_pool)
{
    static const conv2d_shape shapes[] = {{8, 6, 10, 32, 3, .plain_input = false, .relu = false},
                                          {8, 8, 4, 48, 3, .plain_input = false, .relu = false}};
    static const int batches[] = {1, 7, 70};
    const conv2d_shape *s = &shapes[_i / N_PRECISIONS];
    device *cuda = open_device("cuda", PRECISIONS[_i % N_PRECISIONS]);
    const device_ops *ops = cuda->ops;
    for (int k = 0; k < 3; k++) {
        data d = make_data(s, batches[k]);
        bench b = bench_open(cuda, s, &d);
        pool_shape pool = {s->out_channels, s->height - 2, s->width - 2, d.n};
        size_t out = (size_t)(d.n * s->out_channels * out_area(s) / 4);
        dropout drop = {.p = 0};
        float *y = room(cuda, sizeof *y * out);
        float *dy = put_images(cuda, d.dy, d.n, s->out_channels, out_area(s) / 4);
        uint8_t *argmax = room(cuda, out);
        ok(enqueue(&b, d.n, false));
        pool_output pooled = {y, argmax};
        ok(ops->pool_forward(cuda, &pool, b.y, &drop, &pooled));
        for (int turn = 0; turn < 3; turn++) {
            ok(ops->pool_backward(cuda, &pool, &pooled, dy, 0.5f, b.y));
            if (turn == 1)
                ok(ops->copy(cuda, b.y, b.dy, device_element_bytes(cuda) * 4 * out));
            if (turn == 2)
                ok(enqueue(&b, d.n, false)); /* a forward pass takes its place */
            check_bias_gradient(&b, &d);
            check_bias_gradient(&b, &d);
        }
        free_all(cuda, (void *[]){y, dy, argmax}, 3);
        bench_close(&b);
        free_data(&d);
    }
    device_destroy(cuda);
}
END_TEST

/* The engine that cuDNN expects to be fastest is taken, even if it is compiled at run time; but not
 * only to add a bias. Engines that must be refused come before it in the emulated heuristics. */
START_TEST(heuristics_order_decides)
{
    device *cuda = open_device("cuda", PRECISIONS[_i]);
    bool half = is_half(PRECISIONS[_i]);
    data d = run_on(cuda, &INNER[0], 7);
    device_choice c;
    int n = 0;
    for (; cuda->ops->choice(cuda, n, &c); n++) {
        bool compiled = strstr(c.notes, "runtime_compilation") != NULL;
        ck_assert_str_eq(c.library, "cudnn");
        ck_assert_int_eq(c.batch, 7);
        ck_assert_ptr_null(strstr(c.notes, "nondeterministic"));
        ck_assert_msg(compiled == ((half || PRECISIONS[_i] == PRECISION_TF32) &&
                                   strcmp(c.pass, "forward_bias") != 0),
                      "%s: engine %d, %s", c.pass, (int)c.engine, c.notes);
    }
    ck_assert_int_eq(n, 3);
    free_data(&d);
    device_destroy(cuda);
}
END_TEST

/* cuDNN's workspace is larger on a GPU of 8 GiB. */
START_TEST(large_gpus_give_more_workspace)
{
    setenv("MNIST_DDP_EMULATED_MEMORY_MIB", _i == 0 ? "8191" : "8192", 1);
    device *cuda = open_device("cuda", PRECISION_F32);
    int64_t before = cuda->memory_bytes;
    conv2d *plan = NULL;
    ok(cuda->ops->conv2d_create(cuda, &INNER[0], 1, &plan));
    ck_assert_int_eq(cuda->memory_bytes - before > 256 << 20, _i == 1);
    cuda->ops->conv2d_destroy(plan);
    device_destroy(cuda);
}
END_TEST

int main(void)
{
    if (!cuda_choose())
        return TEST_SKIPPED;
    unsetenv(AUTOTUNE);
    Suite *suite = suite_create("cuda_conv");
    TCase *core = suite_case(suite, "core", 120);
    tcase_add_loop_test(core, first_equals_reference, 0, N_FIRST * N_PRECISIONS);
    tcase_add_loop_test(core, inner_equals_reference, 0, N_INNER * N_PRECISIONS);
    tcase_add_loop_test(core, network_equals_reference, 0, N_PRECISIONS);
    tcase_add_loop_test(core, large_batches_equal_reference, 0, 2 * N_PRECISIONS);
    tcase_add_loop_test(core, other_ways_equal_reference, 0, 3 * N_PRECISIONS);
    tcase_add_loop_test(core, digits_are_kept, 0, N_PRECISIONS);
    tcase_add_loop_test(core, weights_come_back, 0, 2);
    tcase_add_loop_test(core, bits_are_the_same_again, 0, 2 * N_PRECISIONS);
    tcase_add_loop_test(core, passes_are_recorded, 0, 2 * N_PRECISIONS);
    tcase_add_loop_test(core, batch_sizes_choose_for_themselves, 0, N_PRECISIONS);
    tcase_add_loop_test(core, bias_gradient_comes_from_the_pool, 0, 2 * N_PRECISIONS);
    if (!cuda_is_real()) {
        tcase_add_loop_test(core, heuristics_order_decides, 0, N_PRECISIONS);
        suite_add_all(core, large_gpus_give_more_workspace, 2, cuda_wants_forks());
    }
    return suite_run(suite);
}
