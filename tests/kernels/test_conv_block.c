/* The convolution blocks of the CPU device against the reference device's layers, one by one. */
#include "kernels/ops.h"
#include "tests/kernels/isa_missing.h"
#include "tests/support/suite.h"

#include "base/memory.h"
#include "base/random.h"
#include "kernels/device_kind.h"
#include "kernels/pixel.h"

#include <math.h>
#include <string.h>

static void ok(status st)
{
    ck_assert_msg(st == STATUS_OK, "%s", status_text());
}

/* A block by layers. */
typedef struct block_case {
    const char *name;
    conv_block_shape shape;
    int mid, out,
        pooled; /* sides: of what the second convolution reads, and writes; of the output */
    float dropout;
} block_case;

static const block_case cases[] = {
    {"cnn",
     {.conv = {{1, 28, 28, 32, 3, .plain_input = true, .relu = true},
               {32, 26, 26, 64, 3, .plain_input = false, .relu = false}}},
     26,
     24,
     12,
     0.25f},
    {"speedrun",
     {.conv = {{1, 28, 28, 16, 5, .plain_input = true, .relu = false},
               {16, 12, 12, 32, 3, .plain_input = false, .relu = false}},
      .pool_between = true},
     12,
     10,
     5,
     0},
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

static const char *const isas[] = {"avx512", "avx2", "generic"};
enum { N_ISAS = 3, MAX_BATCH = 300 };

static const int sizes[] = {1, 3, 17, 64};
enum { N_SIZES = sizeof sizes / sizeof sizes[0] };

/* All that a block reads, in PyTorch's order. */
typedef struct inputs {
    float *x, *weight[CONV_BLOCK_CONVS], *bias[CONV_BLOCK_CONVS], *dy;
    uint8_t *keep;
} inputs;

/* The gradients, in PyTorch's order, and the output. */
typedef struct outputs {
    float *y, *dw[CONV_BLOCK_CONVS], *db[CONV_BLOCK_CONVS];
} outputs;

static float *floats(size_t count)
{
    float *memory = NULL;
    ok(memory_alloc(sizeof *memory * count, (void **)&memory));
    return memory;
}

static size_t weights(const block_case *c, int conv)
{
    const conv2d_shape *s = &c->shape.conv[conv];
    return (size_t)(s->out_channels * s->channels * s->kernel * s->kernel);
}

static size_t outs(const block_case *c)
{
    return (size_t)(c->shape.conv[1].out_channels * c->pooled * c->pooled);
}

static float *randoms(mt19937 *generator, size_t count, float scale)
{
    float *memory = floats(count);
    for (size_t i = 0; i < count; i++)
        memory[i] = scale * ((float)(mt19937_u32(generator) >> 8) * 0x1p-23f - 1.0f);
    return memory;
}

/* Images as MNIST's: the background around what is drawn, which is not always in one place. */
static float *pictures(mt19937 *generator, int n)
{
    float *x = randoms(generator, (size_t)n * 784, 1.0f);
    for (int i = 0; i < n; i++)
        for (int at = 0; at < 784; at++) {
            int row = at / 28 - i % 5, column = at % 28 - i % 7;
            if (row < 4 || row >= 24 || column < 5 || column >= 20)
                x[i * 784 + at] = pixel_normalised(0);
        }
    return x;
}

static inputs make_inputs(const block_case *c, int n)
{
    mt19937 generator;
    inputs in;
    mt19937_init(&generator, 5);
    in.x = pictures(&generator, n);
    for (int i = 0; i < CONV_BLOCK_CONVS; i++) {
        in.weight[i] = randoms(&generator, weights(c, i), i == 0 ? 0.3f : 0.06f);
        in.bias[i] = randoms(&generator, (size_t)c->shape.conv[i].out_channels, 0.1f);
    }
    in.dy = randoms(&generator, (size_t)n * outs(c), 1.0f);
    in.keep = NULL;
    ok(memory_alloc((size_t)n * outs(c), (void **)&in.keep));
    for (size_t i = 0; i < (size_t)n * outs(c); i++)
        in.keep[i] = mt19937_u32(&generator) % 4 != 0;
    return in;
}

static outputs make_outputs(const block_case *c, int n)
{
    outputs out = {.y = floats((size_t)n * outs(c))};
    for (int i = 0; i < CONV_BLOCK_CONVS; i++) {
        out.dw[i] = floats(weights(c, i));
        out.db[i] = floats((size_t)c->shape.conv[i].out_channels);
    }
    return out;
}

static void free_inputs(inputs *in)
{
    for (int i = 0; i < CONV_BLOCK_CONVS; i++) {
        free(in->weight[i]);
        free(in->bias[i]);
    }
    free(in->x);
    free(in->dy);
    free(in->keep);
}

static void free_outputs(outputs *out)
{
    for (int i = 0; i < CONV_BLOCK_CONVS; i++) {
        free(out->dw[i]);
        free(out->db[i]);
    }
    free(out->y);
}

static dropout drop_of(const block_case *c, const inputs *in)
{
    static const step_state state;
    return (dropout){.p = c->dropout, .state = &state, .keep = in->keep};
}

/* What the reference device's layers make of it. */
static void by_layers(const block_case *c, const inputs *in, int n, outputs *out)
{
    device *dev = NULL;
    device_options wanted = {.name = "reference", .threads = 1};
    ok(device_create(&wanted, &dev));
    const device_ops *ops = dev->ops;
    const conv2d_shape *s = c->shape.conv;
    conv2d *conv[CONV_BLOCK_CONVS];
    for (int i = 0; i < CONV_BLOCK_CONVS; i++)
        ok(ops->conv2d_create(dev, &s[i], n, &conv[i]));
    int first = s[0].height - s[0].kernel + 1;
    size_t z1_count = (size_t)n * (size_t)(s[0].out_channels * first * first);
    size_t z2_count = (size_t)n * (size_t)(s[1].out_channels * c->out * c->out);
    size_t mid_count = (size_t)n * (size_t)(s[0].out_channels * c->mid * c->mid);
    float *z1 = floats(z1_count), *dz1 = floats(z1_count), *mid = z1, *dmid = dz1;
    float *z2 = floats(z2_count), *dz2 = floats(z2_count);
    uint8_t *winner[2] = {0};
    ok(memory_alloc(mid_count, (void **)&winner[0]));
    ok(memory_alloc((size_t)n * outs(c), (void **)&winner[1]));
    dropout none = {0}, drop = drop_of(c, in);
    pool_shape pool1 = {s[0].out_channels, first, first, n};
    pool_shape pool2 = {s[1].out_channels, c->out, c->out, n};
    ok(ops->conv2d_forward(conv[0], n, in->x, in->weight[0], in->bias[0], z1));
    if (c->shape.pool_between) {
        mid = floats(mid_count);
        dmid = floats(mid_count);
        pool_output to = {mid, winner[0]};
        ok(ops->pool_forward(dev, &pool1, z1, &none, &to));
    }
    ok(ops->conv2d_forward(conv[1], n, mid, in->weight[1], in->bias[1], z2));
    pool_output to = {out->y, winner[1]};
    ok(ops->pool_forward(dev, &pool2, z2, &drop, &to));
    ok(ops->pool_backward(dev, &pool2, &to, in->dy, c->dropout, dz2));
    ok(ops->conv2d_backward_weights(conv[1], n, mid, z2, dz2,
                                    &(param_gradients){out->dw[1], out->db[1], true}));
    ok(ops->conv2d_backward_data(conv[1], n, in->weight[1], z2, dz2, dmid));
    if (c->shape.pool_between) {
        pool_output from = {mid, winner[0]};
        ok(ops->pool_backward(dev, &pool1, &from, dmid, 0, dz1));
        free(mid);
        free(dmid);
    }
    ok(ops->conv2d_backward_weights(conv[0], n, in->x, z1, dz1,
                                    &(param_gradients){out->dw[0], out->db[0], true}));
    for (int i = 0; i < CONV_BLOCK_CONVS; i++) {
        ops->conv2d_destroy(conv[i]);
        free(winner[i]);
    }
    free(z1);
    free(dz1);
    free(z2);
    free(dz2);
    device_destroy(dev);
}

static bool is_here(const char *isa)
{
    return isa_missing(isa) == NULL;
}

/* Channels of a vector: the order of the output is (C / block, area, block). */
static int block_of(const char *isa)
{
    return strcmp(isa, "avx512") == 0 ? 16 : strcmp(isa, "avx2") == 0 ? 8 : 4;
}

/* Between PyTorch's order of an output and the device's. */
static void reorder(const block_case *c, const char *isa, int n, const float *from, float *to,
                    bool to_device)
{
    int block = block_of(isa), channels = c->shape.conv[1].out_channels;
    int area = c->pooled * c->pooled;
    for (int i = 0; i < n; i++)
        for (int channel = 0; channel < channels; channel++)
            for (int at = 0; at < area; at++) {
                size_t image = (size_t)i * outs(c);
                size_t plain = image + (size_t)(channel * area + at);
                size_t ours =
                    image + (size_t)((channel / block * area + at) * block + channel % block);
                to[to_device ? ours : plain] = from[to_device ? plain : ours];
            }
}

/* What a block runs on. */
typedef struct block_device {
    const char *isa;
    int threads;
    precision how;
    bool dense;
} block_device;

static void by_block(const block_case *c, const block_device *on, const inputs *in, int n,
                     outputs *out)
{
    device *dev = NULL;
    conv_block *plan = NULL;
    const char *isa = on->isa;
    device_options wanted = {.name = "cpu",
                             .threads = on->threads,
                             .precision = on->how,
                             .isa = isa,
                             .dense = on->dense};
    ok(device_create(&wanted, &dev));
    const device_ops *ops = dev->ops;
    ok(ops->conv_block_create(dev, &c->shape, MAX_BATCH, &plan));
    float *y = floats((size_t)n * outs(c)), *dy = floats((size_t)n * outs(c));
    uint8_t *argmax = NULL;
    ok(memory_alloc((size_t)n * outs(c), (void **)&argmax));
    reorder(c, isa, n, in->dy, dy, true);
    conv_block_batch images = {.n = n, .x = in->x, .out = {y, argmax}};
    float *weight[CONV_BLOCK_CONVS], *dw[CONV_BLOCK_CONVS];
    param_gradients gradients[CONV_BLOCK_CONVS];
    for (int i = 0; i < CONV_BLOCK_CONVS; i++) {
        weight[i] = floats(weights(c, i));
        dw[i] = floats(weights(c, i));
        ok(ops->conv_block_import(plan, i, in->weight[i], weight[i]));
        ok(ops->conv_block_import(plan, i, out->dw[i], dw[i]));
        images.weight[i] = weight[i];
        images.bias[i] = in->bias[i];
        gradients[i] = (param_gradients){dw[i], out->db[i], true};
    }
    dropout drop = drop_of(c, in);
    ok(ops->conv_block_forward(plan, &images, &drop));
    ok(ops->conv_block_backward(plan, &images, c->dropout, dy, gradients));
    reorder(c, isa, n, y, out->y, false);
    for (int i = 0; i < CONV_BLOCK_CONVS; i++) {
        ok(ops->conv_block_export(plan, i, dw[i], out->dw[i]));
        free(weight[i]);
        free(dw[i]);
    }
    free(y);
    free(dy);
    free(argmax);
    ops->conv_block_destroy(plan);
    device_destroy(dev);
}

static double norm(const float *a, const float *b, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        double d = (double)a[i] - (b != NULL ? (double)b[i] : 0);
        sum += d * d;
    }
    return sqrt(sum);
}

/* Winograd's rounding error is some 5e-7 of a tensor's norm. A window whose two largest values are
 * closer than that may pass its gradient to the other one: the 2e-4 allow for a few of them. */
static void assert_close(const char *what, const float *got, const float *want, size_t count,
                         double allowed)
{
    double error = norm(got, want, count) / norm(want, NULL, count);
    ck_assert_msg(error < allowed, "%s: relative error %g, allowed are %g", what, error, allowed);
}

START_TEST(a_block_equals_its_layers)
{
    const block_case *c = &cases[_i / 2 / N_SIZES / N_ISAS];
    const char *isa = isas[_i / 2 / N_SIZES % N_ISAS];
    int n = sizes[_i / 2 % N_SIZES];
    if (!is_here(isa))
        return;
    inputs in = make_inputs(c, n);
    outputs want = make_outputs(c, n), got = make_outputs(c, n);
    /* `accumulate`: both begin at one. */
    for (int i = 0; i < CONV_BLOCK_CONVS; i++)
        for (size_t k = 0; k < weights(c, i); k++)
            want.dw[i][k] = got.dw[i][k] = 1;
    by_layers(c, &in, n, &want);
    block_device on = {isa, 2, PRECISION_F32, .dense = _i % 2 == 1};
    by_block(c, &on, &in, n, &got);
    assert_close("y", got.y, want.y, (size_t)n * outs(c), 2e-6);
    for (int i = 0; i < CONV_BLOCK_CONVS; i++) {
        assert_close("dw", got.dw[i], want.dw[i], weights(c, i), 2e-4);
        assert_close("db", got.db[i], want.db[i], (size_t)c->shape.conv[i].out_channels, 2e-4);
    }
    free_inputs(&in);
    free_outputs(&got);
    free_outputs(&want);
}
END_TEST

static void same_outputs(const block_case *c, int n, const outputs *a, const outputs *b)
{
    ck_assert(memcmp(a->y, b->y, sizeof *a->y * (size_t)n * outs(c)) == 0);
    for (int i = 0; i < CONV_BLOCK_CONVS; i++) {
        size_t biases = (size_t)c->shape.conv[i].out_channels;
        ck_assert(memcmp(a->dw[i], b->dw[i], sizeof *a->dw[i] * weights(c, i)) == 0);
        ck_assert(memcmp(a->db[i], b->db[i], sizeof *a->db[i] * biases) == 0);
    }
}

START_TEST(threads_do_not_change_a_bit)
{
    const block_case *c = &cases[_i / N_ISAS];
    const char *isa = isas[_i % N_ISAS];
    enum { N = 150 };
    if (!is_here(isa))
        return;
    inputs in = make_inputs(c, N);
    outputs one = make_outputs(c, N), many = make_outputs(c, N);
    block_device alone = {isa, 1, PRECISION_F32, false}, team = {isa, 3, PRECISION_F32, false};
    by_block(c, &alone, &in, N, &one);
    by_block(c, &team, &in, N, &many);
    same_outputs(c, N, &one, &many);
    free_inputs(&in);
    free_outputs(&one);
    free_outputs(&many);
}
END_TEST

/* Background that is computed once, and the sum of the second convolution's bias. */
START_TEST(lists_leave_the_bits_of_the_output)
{
    const block_case *c = &cases[_i / N_ISAS];
    const char *isa = isas[_i % N_ISAS];
    enum { N = 20 };
    static const precision precisions[] = {PRECISION_F32, PRECISION_BF16};
    inputs in = make_inputs(c, N);
    for (int how = 0; how < 2; how++) {
        outputs lists = make_outputs(c, N), dense = make_outputs(c, N);
        block_device on = {isa, 1, precisions[how], false}, off = {isa, 1, precisions[how], true};
        by_block(c, &on, &in, N, &lists);
        by_block(c, &off, &in, N, &dense);
        ck_assert(memcmp(lists.y, dense.y, sizeof(float) * N * outs(c)) == 0);
        free_outputs(&lists);
        free_outputs(&dense);
    }
    free_inputs(&in);
}
END_TEST

/* Vectors of 8 and of 16 channels. */
START_TEST(bits_are_those_of_any_vector)
{
    const block_case *c = &cases[_i];
    enum { N = 40 };
    inputs in = make_inputs(c, N);
    outputs wide = make_outputs(c, N), narrow = make_outputs(c, N);
    block_device avx512 = {"avx512", 1, PRECISION_F32, false}, avx2 = avx512;
    avx2.isa = "avx2";
    by_block(c, &avx512, &in, N, &wide);
    by_block(c, &avx2, &in, N, &narrow);
    same_outputs(c, N, &wide, &narrow);
    free_inputs(&in);
    free_outputs(&wide);
    free_outputs(&narrow);
}
END_TEST

/* A value of 8 bits is off by 2^-9 at most, 2^-10.8 in the mean square; Winograd's transforms of
 * such values make that some 1e-2 of y's norm. More gradients than with float32 go to the other one
 * of two close values of a window. */
START_TEST(bf16_is_close)
{
    const block_case *c = &cases[_i / N_ISAS];
    const char *isa = isas[_i % N_ISAS];
    enum { N = 17 };
    if (!is_here(isa))
        return;
    inputs in = make_inputs(c, N);
    outputs exact = make_outputs(c, N), got = make_outputs(c, N);
    block_device f32 = {isa, 2, PRECISION_F32, false}, bf16 = {isa, 2, PRECISION_BF16, false};
    by_block(c, &f32, &in, N, &exact);
    by_block(c, &bf16, &in, N, &got);
    assert_close("y", got.y, exact.y, (size_t)N * outs(c), 2e-2);
    double error = norm(got.y, exact.y, (size_t)N * outs(c)) / norm(exact.y, NULL, N * outs(c));
    ck_assert_msg(error > 1e-3, "relative error %g: not of bfloat16", error);
    for (int i = 0; i < CONV_BLOCK_CONVS; i++)
        assert_close("dw", got.dw[i], exact.dw[i], weights(c, i), 0.25);
    free_inputs(&in);
    free_outputs(&exact);
    free_outputs(&got);
}
END_TEST

START_TEST(other_shapes_are_refused)
{
    device *dev = NULL;
    conv_block *plan = NULL;
    device_options wanted = {.name = "cpu", .threads = 1};
    conv_block_shape shape = cases[0].shape;
    shape.conv[1].out_channels = 48;
    ok(device_create(&wanted, &dev));
    ck_assert_int_eq(dev->ops->conv_block_create(dev, &shape, 1, &plan), STATUS_INVALID);
    ck_assert_msg(strstr(status_text(), "48") != NULL, "%s", status_text());
    device_destroy(dev);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("conv_block");
    TCase *core = suite_case(suite, "core", 60);
    for (int i = 0; i < N_CASES * N_ISAS; i++) {
        const char *missing = isa_missing(isas[i % N_ISAS]);
        for (int k = 0; k < N_SIZES * 2; k++)
            suite_add(core, a_block_equals_its_layers, i * N_SIZES * 2 + k, missing);
        suite_add(core, threads_do_not_change_a_bit, i, missing);
        suite_add(core, lists_leave_the_bits_of_the_output, i, missing);
        suite_add(core, bf16_is_close, i, missing);
    }
    for (int i = 0; i < N_CASES; i++)
        suite_add(core, bits_are_those_of_any_vector, i, isa_missing("avx512"));
    suite_add(core, other_shapes_are_refused, 0, isa_missing("auto"));
    return suite_run(suite);
}
