/* The cpu device's linear layers: against the reference device with numbers that no sum rounds,
 * against double, and with equal bits whatever the threads and the rest of the batch. */
#include "kernels/ops.h"
#include "tests/kernels/isa_missing.h"
#include "tests/support/facts.h"
#include "tests/support/suite.h"

#include "base/memory.h"
#include "base/random.h"
#include "kernels/device_kind.h"
#include "kernels/dropout.h"
#include "kernels/pixel.h"

#include <math.h>
#include <string.h>

/* One panel, several, and widths that no power of two divides; few outputs and many; a flattened
 * activation. */
static const linear_shape SHAPES[] = {
    {.in_features = 16, .out_features = 128},
    {.in_features = 128, .out_features = 10, .logits = true},
    {.in_features = 144, .out_features = 7, .channels = 16, .height = 3, .width = 3},
    {.in_features = 512, .out_features = 512},
    {.in_features = 784, .out_features = 512},
    {.in_features = 800, .out_features = 64, .channels = 32, .height = 5, .width = 5},
    {.in_features = 9216, .out_features = 128, .channels = 64, .height = 12, .width = 12},
};
enum { N_SHAPES = sizeof SHAPES / sizeof SHAPES[0] };

/* Around a vector, a block of samples, and a round of them. */
static const int BATCHES[] = {1, 15, 16, 17, 63, 64, 65, 200, 257};
enum { N_BATCHES = sizeof BATCHES / sizeof BATCHES[0], MAX_N = 257 };

/* The largest batch of a test: few samples of many inputs take as long as many of few. */
static int largest_batch(const linear_shape *s)
{
    return s->in_features > 1000 ? 65 : MAX_N;
}

static void ok(status st)
{
    ck_assert_msg(st == STATUS_OK, "%s", status_text());
}

static const char *const ISAS[] = {"avx512", "avx2", "generic"};
enum { N_ISAS = sizeof ISAS / sizeof ISAS[0] };

static device *open_reference(void)
{
    device *dev = NULL;
    device_options wanted = {.name = "reference", .threads = 1};
    ok(device_create(&wanted, &dev));
    return dev;
}

/* The cpu device of test case `i`. */
static device *open_precision(int i, int threads, precision how)
{
    device *dev = NULL;
    device_options wanted = {
        .name = "cpu", .threads = threads, .precision = how, .isa = ISAS[i / N_SHAPES]};
    ok(device_create(&wanted, &dev));
    return dev;
}

static device *open_dense(int i)
{
    device *dev = NULL;
    device_options wanted = {.name = "cpu", .threads = 1, .isa = ISAS[i / N_SHAPES], .dense = true};
    ok(device_create(&wanted, &dev));
    return dev;
}

static device *open_cpu(int i, int threads)
{
    return open_precision(i, threads, PRECISION_F32);
}

static const linear_shape *shape_of(int i)
{
    return &SHAPES[i % N_SHAPES];
}

static float *floats(size_t count)
{
    float *out = NULL;
    ok(memory_alloc(sizeof *out * count, (void **)&out));
    return out;
}

/* Whole numbers from -3 to 3: a sum of 9216 products and all its parts are exact in float. */
static float small_integer(mt19937 *generator)
{
    return (float)(mt19937_u32(generator) % 7) - 3.0f;
}

static float fraction(mt19937 *generator)
{
    return (float)(mt19937_u32(generator) >> 8) * 0x1p-24f - 0.5f;
}

/* All that a layer reads, in PyTorch's order. */
typedef struct tensors {
    linear_shape s;
    size_t weights;
    float *x, *weight, *bias, *dy, *gradient; /* gradient: what dw holds before, bias last */
} tensors;

static tensors tensors_make(const linear_shape *shape, int n, float (*draw)(mt19937 *))
{
    size_t in = (size_t)shape->in_features, out = (size_t)shape->out_features;
    tensors t = {.s = *shape, .weights = in * out};
    mt19937 generator;
    mt19937_init(&generator, 3);
    struct {
        float **array;
        size_t count;
    } all[] = {{&t.x, (size_t)n * in},
               {&t.weight, t.weights},
               {&t.bias, out},
               {&t.dy, (size_t)n * out},
               {&t.gradient, t.weights + out}};
    for (size_t k = 0; k < sizeof all / sizeof all[0]; k++) {
        *all[k].array = floats(all[k].count);
        for (size_t i = 0; i < all[k].count; i++)
            (*all[k].array)[i] = draw(&generator);
    }
    return t;
}

enum { BATCH_KINDS = 3 };

/* Makes x a batch of kind 1, of which a tenth is not 0, or 2, a picture: a fifth is not the
 * background. Kind 0 stays. */
static void thin_out(tensors *t, int n, int kind)
{
    mt19937 generator;
    mt19937_init(&generator, 11);
    for (size_t i = 0; i < (size_t)n * (size_t)t->s.in_features && kind > 0; i++) {
        bool stays = mt19937_u32(&generator) % 10 < (kind == 1 ? 1 : 2);
        if (!stays)
            t->x[i] = kind == 1 ? 0 : pixel_normalised(0);
    }
}

static void tensors_free(tensors *t)
{
    free(t->x);
    free(t->weight);
    free(t->bias);
    free(t->dy);
    free(t->gradient);
}

/* What a layer leaves, in PyTorch's order. */
typedef struct results {
    float *y, *gradient, *dx, *dx_relu;
} results;

static void results_free(results *r)
{
    free(r->y);
    free(r->gradient);
    free(r->dx);
    free(r->dx_relu);
}

/* Which plain column is each private one: import moves a row of one output as an activation
 * lies. */
static int *private_order(device *dev, const linear_shape *shape)
{
    linear_shape row = *shape;
    row.out_features = 1;
    linear *plan = NULL;
    ok(dev->ops->linear_create(dev, &row, 1, &plan));
    size_t count = (size_t)shape->in_features;
    float *plain = floats(count), *private = floats(count);
    int *out = NULL;
    ok(memory_alloc(sizeof *out * count, (void **)&out));
    for (size_t j = 0; j < count; j++)
        plain[j] = (float)j;
    ok(dev->ops->linear_import(plan, plain, private));
    for (size_t j = 0; j < count; j++)
        out[j] = (int)private[j];
    dev->ops->linear_destroy(plan);
    free(plain);
    free(private);
    return out;
}

static float *rows_to_private(const float *plain, const int *order, int n, size_t columns)
{
    float *out = floats((size_t)n * columns);
    for (size_t i = 0; i < (size_t)n; i++)
        for (size_t j = 0; j < columns; j++)
            out[i * columns + j] = plain[i * columns + (size_t)order[j]];
    return out;
}

static float *rows_to_plain(const float *private, const int *order, int n, size_t columns)
{
    float *out = floats((size_t)n * columns);
    for (size_t i = 0; i < (size_t)n; i++)
        for (size_t j = 0; j < columns; j++)
            out[i * columns + (size_t)order[j]] = private[i * columns + j];
    return out;
}

static const step_state STATE = {.plan = {.epoch = 2}};

/* Forward with relu and dropout, but for logits; then both backward passes. */
static results run(device *dev, const tensors *t, int n, bool accumulate)
{
    const device_ops *ops = dev->ops;
    size_t in = (size_t)t->s.in_features, out = (size_t)t->s.out_features;
    int *order = private_order(dev, &t->s);
    float *x = rows_to_private(t->x, order, n, in), *dx = floats((size_t)n * in);
    float *weight = floats(t->weights), *dw = floats(t->weights);
    results r = {.y = floats((size_t)n * out), .gradient = floats(t->weights + out)};
    uint32_t samples[MAX_N];
    for (int i = 0; i < n; i++)
        samples[i] = (uint32_t)i * 77;
    dropout drop = {.p = 0.5f, .seed = 5, .samples = samples, .state = &STATE};
    linear_epilogue epilogue = {t->bias, !t->s.logits, t->s.logits ? NULL : &drop};
    linear *plan = NULL;
    ok(ops->linear_create(dev, &t->s, n, &plan));
    ok(ops->linear_import(plan, t->weight, weight));
    ok(ops->linear_forward(plan, n, x, weight, NULL, r.y));
    ok(ops->linear_finish(plan, n, &epilogue, r.y));
    float *at_once = floats((size_t)n * out);
    ok(ops->linear_forward(plan, n, x, weight, &epilogue, at_once));
    ck_assert(memcmp(at_once, r.y, sizeof *at_once * (size_t)n * out) == 0);
    free(at_once);

    float *db = r.gradient + t->weights;
    memcpy(db, t->gradient + t->weights, sizeof *db * out);
    ok(ops->linear_import(plan, t->gradient, dw));
    param_gradients gradients = {dw, db, accumulate};
    ok(ops->linear_backward_weights(plan, n, x, t->dy, &gradients));
    ok(ops->linear_export(plan, dw, r.gradient));

    ok(ops->linear_backward_data(plan, n, weight, t->dy, NULL, dx));
    r.dx = rows_to_plain(dx, order, n, in);
    relu_output input = {x, 0.5f};
    ok(ops->linear_backward_data(plan, n, weight, t->dy, &input, dx));
    r.dx_relu = rows_to_plain(dx, order, n, in);

    ops->linear_destroy(plan);
    free(order);
    free(x);
    free(dx);
    free(weight);
    free(dw);
    return r;
}

static void same_values(const float *got, const float *want, size_t count, const char *what, int n)
{
    for (size_t i = 0; i < count; i++)
        if (got[i] != want[i])
            ck_abort_msg("%s of %d samples: [%zu] is %g, not %g", what, n, i, (double)got[i],
                         (double)want[i]);
}

static const char *isa_missing(const char *isa);

/* The device in float32 and, since small integers and their sums are exact there, in bfloat16; each
 * ISA; against one run of the reference, which is slow. */
START_TEST(sums_of_integers_are_exact)
{
    int shape = _i / 2;
    static const precision precisions[] = {PRECISION_F32, PRECISION_BF16};
    device *reference = open_reference(), *cpu[2 * N_ISAS];
    int devices = 0, most = largest_batch(&SHAPES[shape]);
    int step = SHAPES[shape].in_features > 500 ? 2 : 1;
    for (int isa = 0; isa < N_ISAS; isa++)
        for (int how = 0; how < 2 && isa_missing(ISAS[isa]) == NULL; how++)
            cpu[devices++] = open_precision(isa * N_SHAPES + shape, 2, precisions[how]);
    tensors t = tensors_make(&SHAPES[shape], most, small_integer);
    thin_out(&t, most, _i % 2);
    size_t in = (size_t)t.s.in_features, out = (size_t)t.s.out_features;
    for (int k = 0; k < N_BATCHES && BATCHES[k] <= most; k += step) {
        int n = BATCHES[k];
        results want = run(reference, &t, n, k % 4 == 2);
        for (int d = 0; d < devices; d++) {
            results got = run(cpu[d], &t, n, k % 4 == 2);
            same_values(got.y, want.y, (size_t)n * out, "y", n);
            same_values(got.gradient, want.gradient, t.weights + out, "gradient", n);
            same_values(got.dx, want.dx, (size_t)n * in, "dx", n);
            same_values(got.dx_relu, want.dx_relu, (size_t)n * in, "dx before a relu", n);
            results_free(&got);
        }
        results_free(&want);
    }
    tensors_free(&t);
    for (int d = 0; d < devices; d++)
        device_destroy(cpu[d]);
    device_destroy(reference);
}
END_TEST

/* The second half of a layer's outputs, alone: the same elements are dropped. All of them are 1
 * before. */
START_TEST(a_shard_drops_what_the_whole_layer_does)
{
    enum { OUTPUTS = 640, FIRST = 336, N = 3, INPUTS = 16 };
    device *dev = _i < N_ISAS ? open_cpu(_i * N_SHAPES, 1) : open_reference();
    static const float weight[INPUTS * OUTPUTS], x[N * INPUTS];
    float bias[OUTPUTS], y[2][N * OUTPUTS];
    uint32_t samples[N] = {7, 7000, 3};
    dropout drop = {.p = 0.5f, .seed = 5, .layer = 1, .samples = samples, .state = &STATE};
    linear_epilogue epilogue = {bias, true, &drop};
    int outputs[] = {OUTPUTS, OUTPUTS - FIRST}, kept = 0;
    for (int i = 0; i < OUTPUTS; i++)
        bias[i] = 1;
    for (int k = 0; k < 2; k++, drop.first_block = FIRST / DROPOUT_BLOCK) {
        linear_shape shape = {.in_features = INPUTS, .out_features = outputs[k]};
        linear *plan = NULL;
        ok(dev->ops->linear_create(dev, &shape, N, &plan));
        ok(dev->ops->linear_forward(plan, N, x, weight, &epilogue, y[k]));
        dev->ops->linear_destroy(plan);
    }
    for (int i = 0; i < N; i++)
        for (int j = 0; j < outputs[1]; j++) {
            float got = y[1][i * outputs[1] + j];
            ck_assert(got == y[0][i * OUTPUTS + FIRST + j]);
            kept += got > 0;
        }
    ck_assert_int_gt(kept, N * outputs[1] / 3);
    ck_assert_int_lt(kept, N * outputs[1] * 2 / 3);
    device_destroy(dev);
}
END_TEST

/* A sum of `terms` products of values in [-1/2, 1/2) stays below sqrt(terms), 12 of its standard
 * deviations. Each of its roundings is at most 2^-24 of that, and they add up like a random
 * walk. */
static void close_to(float got, double want, int terms, const char *what)
{
    double bound = terms * 0x1p-24;
    if (!(fabs((double)got - want) <= bound)) /* a check that passes costs a system call */
        ck_abort_msg("%s: %.9g, not %.9g: more than %g off", what, (double)got, want, bound);
}

START_TEST(sums_are_those_of_double)
{
    enum { N = 65, LOOKS = 2000 };
    device *cpu = open_cpu(_i / BATCH_KINDS, 2);
    tensors t = tensors_make(shape_of(_i / BATCH_KINDS), N, fraction);
    thin_out(&t, N, _i % BATCH_KINDS);
    t.s.logits = true; /* neither relu nor dropout */
    results got = run(cpu, &t, N, false);
    mt19937 generator;
    mt19937_init(&generator, 9);
    size_t in = (size_t)t.s.in_features, out = (size_t)t.s.out_features;
    for (int look = 0; look < LOOKS; look++) {
        size_t i = mt19937_u32(&generator) % N, o = mt19937_u32(&generator) % out;
        size_t j = mt19937_u32(&generator) % in;
        double y = (double)t.bias[o], dw = 0, dx = 0;
        for (size_t k = 0; k < in; k++)
            y += (double)t.x[i * in + k] * (double)t.weight[o * in + k];
        for (size_t k = 0; k < N; k++)
            dw += (double)t.dy[k * out + o] * (double)t.x[k * in + j];
        for (size_t k = 0; k < out; k++)
            dx += (double)t.dy[i * out + k] * (double)t.weight[k * in + j];
        close_to(got.y[i * out + o], y, (int)in + 1, "y");
        close_to(got.gradient[o * in + j], dw, N, "dw");
        close_to(got.dx[i * in + j], dx, (int)out, "dx");
    }
    results_free(&got);
    tensors_free(&t);
    device_destroy(cpu);
}
END_TEST

static void same_bits(const float *got, const float *want, size_t count, const char *what)
{
    ck_assert_msg(memcmp(got, want, sizeof *got * count) == 0, "%s has other bits", what);
}

START_TEST(bits_depend_on_values_alone)
{
    enum { FEW = 17 };
    device *one = open_cpu(_i / BATCH_KINDS, 1), *three = open_cpu(_i / BATCH_KINDS, 3);
    int n = largest_batch(shape_of(_i / BATCH_KINDS));
    tensors t = tensors_make(shape_of(_i / BATCH_KINDS), n, fraction);
    thin_out(&t, n, _i % BATCH_KINDS);
    size_t in = (size_t)t.s.in_features, out = (size_t)t.s.out_features;
    results want = run(one, &t, n, true), got = run(three, &t, n, true);
    same_bits(got.y, want.y, (size_t)n * out, "y of three threads");
    same_bits(got.gradient, want.gradient, t.weights + out, "gradient of three threads");
    same_bits(got.dx, want.dx, (size_t)n * in, "dx of three threads");
    results few = run(one, &t, FEW, false);
    same_bits(few.y, want.y, FEW * out, "y in a smaller batch");
    same_bits(few.dx, want.dx, FEW * in, "dx in a smaller batch");
    results_free(&want);
    results_free(&got);
    results_free(&few);
    tensors_free(&t);
    device_destroy(one);
    device_destroy(three);
}
END_TEST

/* Of zeros that are left out; what is computed where a relu lets through is another sum. */
START_TEST(lists_leave_the_bits_of_sums)
{
    device *lists = open_cpu(_i, 1), *dense = open_dense(_i);
    int n = largest_batch(shape_of(_i));
    tensors t = tensors_make(shape_of(_i), n, fraction);
    thin_out(&t, n, 1);
    size_t in = (size_t)t.s.in_features, out = (size_t)t.s.out_features;
    results want = run(dense, &t, n, true), got = run(lists, &t, n, true);
    same_bits(got.y, want.y, (size_t)n * out, "y");
    same_bits(got.gradient, want.gradient, t.weights + out, "gradient");
    for (size_t i = 0; i < (size_t)n * in; i++)
        close_to(got.dx_relu[i], (double)want.dx_relu[i], 4 * (int)out, "dx before a relu");
    results_free(&want);
    results_free(&got);
    tensors_free(&t);
    device_destroy(lists);
    device_destroy(dense);
}
END_TEST

/* Vectors of 8 and of 16 floats. Where an activation is flattened, its channels lie in another
 * order. */
START_TEST(bits_are_those_of_any_vector)
{
    const linear_shape *s = &SHAPES[_i / BATCH_KINDS];
    if (s->channels > 0)
        return;
    device *wide = open_cpu(_i / BATCH_KINDS, 1);
    device *narrow = open_cpu(N_SHAPES + _i / BATCH_KINDS, 1);
    int n = largest_batch(s);
    tensors t = tensors_make(s, n, fraction);
    thin_out(&t, n, _i % BATCH_KINDS);
    size_t in = (size_t)s->in_features, out = (size_t)s->out_features;
    results want = run(wide, &t, n, true), got = run(narrow, &t, n, true);
    same_bits(got.y, want.y, (size_t)n * out, "y");
    same_bits(got.gradient, want.gradient, t.weights + out, "gradient");
    same_bits(got.dx, want.dx, (size_t)n * in, "dx");
    same_bits(got.dx_relu, want.dx_relu, (size_t)n * in, "dx before a relu");
    results_free(&want);
    results_free(&got);
    tensors_free(&t);
    device_destroy(wide);
    device_destroy(narrow);
}
END_TEST

/* One of them in the weight, in a column where x is 0, then in dy: zero times either is not a
 * number. */
START_TEST(what_is_not_finite_travels)
{
    static const float values[] = {INFINITY, -INFINITY, NAN};
    device *cpu = open_cpu(_i / 3, 1);
    tensors t = tensors_make(shape_of(_i / 3), 64, fraction);
    t.s.logits = true;
    thin_out(&t, 64, 1);
    size_t in = (size_t)t.s.in_features, out = (size_t)t.s.out_features, last = out - 1;
    for (int i = 0; i < 64; i++)
        t.x[(size_t)i * in + 3] = 0;
    t.weight[last * in + 3] = values[_i % 3];
    t.dy[5 * out + last] = values[_i % 3];
    results got = run(cpu, &t, 64, false);
    for (size_t i = 0; i < 64; i++)
        ck_assert(isnan(got.y[i * out + last]));
    for (size_t k = 0; k < in; k++)
        if (isfinite(got.gradient[last * in + k]))
            ck_abort_msg("gradient [%zu] is %g", k, (double)got.gradient[last * in + k]);
    ck_assert(isfinite(got.y[0]));
    ck_assert(isfinite(got.gradient[0]));
    results_free(&got);
    tensors_free(&t);
    device_destroy(cpu);
}
END_TEST

/* Bits, so that a weight of -0 counts, too. */
START_TEST(weights_come_back_as_they_were)
{
    device *dev = open_cpu(_i, 1);
    tensors t = tensors_make(shape_of(_i), 1, small_integer);
    for (size_t i = 0; i < t.weights; i++)
        t.weight[i] = -t.weight[i];
    float *weight = floats(t.weights), *plain = floats(t.weights);
    linear *plan = NULL;
    ok(dev->ops->linear_create(dev, &t.s, 1, &plan));
    ok(dev->ops->linear_import(plan, t.weight, weight));
    ok(dev->ops->linear_export(plan, weight, plain));
    same_bits(plain, t.weight, t.weights, "the exported weight");
    dev->ops->linear_destroy(plan);
    free(weight);
    free(plain);
    tensors_free(&t);
    device_destroy(dev);
}
END_TEST

START_TEST(other_widths_are_refused)
{
    device *dev = open_cpu(0, 1);
    linear_shape narrow = {.in_features = 24, .out_features = 10};
    linear_shape channels = {
        .in_features = 48, .out_features = 10, .channels = 12, .height = 2, .width = 2};
    linear *plan = NULL;
    ck_assert_int_eq(dev->ops->linear_create(dev, &narrow, 1, &plan), STATUS_INVALID);
    ASSERT_FACTS(status_text(), "cpu", "multiple of 16 inputs", "24");
    ck_assert_int_eq(dev->ops->linear_create(dev, &channels, 1, &plan), STATUS_INVALID);
    ASSERT_FACTS(status_text(), "cpu", "channels", "12");
    device_destroy(dev);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("linear");
    TCase *core = suite_case(suite, "core", 100);
    tcase_add_loop_test(core, sums_of_integers_are_exact, 0, 2 * N_SHAPES);
    for (int i = 0; i < N_ISAS * N_SHAPES; i++) {
        const char *missing = isa_missing(ISAS[i / N_SHAPES]);
        for (int kind = 0; kind < BATCH_KINDS; kind++) {
            suite_add(core, sums_are_those_of_double, i * BATCH_KINDS + kind, missing);
            suite_add(core, bits_depend_on_values_alone, i * BATCH_KINDS + kind, missing);
        }
        suite_add(core, lists_leave_the_bits_of_sums, i, missing);
        for (int value = 0; value < 3; value++)
            suite_add(core, what_is_not_finite_travels, i * 3 + value, missing);
        suite_add(core, weights_come_back_as_they_were, i, missing);
    }
    for (int i = 0; i < N_ISAS; i++)
        suite_add(core, a_shard_drops_what_the_whole_layer_does, i, isa_missing(ISAS[i]));
    suite_add(core, a_shard_drops_what_the_whole_layer_does, N_ISAS, NULL);
    for (int i = 0; i < N_SHAPES * BATCH_KINDS; i++)
        suite_add(core, bits_are_those_of_any_vector, i, isa_missing(ISAS[0]));
    suite_add(core, other_widths_are_refused, 0, isa_missing(ISAS[0]));
    return suite_run(suite);
}
