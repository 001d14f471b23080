/* Single operations of the devices: known answers, and the fast device against the reference. */
#include "kernels/ops.h"
#include "tests/kernels/isa_missing.h"
#include "tests/support/facts.h"
#include "tests/support/suite.h"

#include "base/memory.h"
#include "base/random.h"
#include "kernels/device_kind.h"
#include "kernels/dropout.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void ok(status st)
{
    ck_assert_msg(st == STATUS_OK, "%s", status_text());
}

/* Those of the host. */
/* "generic": the cpu device, with these instructions. */
static const char *const devices[] = {"reference", "cpu", "generic"};
enum { N_DEVICES = sizeof devices / sizeof devices[0] };

static device *open_device(const char *name)
{
    device *dev = NULL;
    device_options wanted = {.name = name, .threads = 2};
    if (strcmp(name, "generic") == 0)
        wanted = (device_options){.name = "cpu", .threads = 2, .isa = name};
    ok(device_create(&wanted, &dev));
    return dev;
}

/* The known answers that come with the generator's first implementation (Random123). */
START_TEST(philox_known_answers)
{
    philox_words zero = philox4x32_10(0, 0, 0, 0, 0);
    static const uint32_t want_zero[] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    ck_assert(memcmp(zero.w, want_zero, sizeof want_zero) == 0);
    philox_words ones = philox4x32_10(~0u, ~0u, ~0u, ~0u, ~(uint64_t)0);
    static const uint32_t want_ones[] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
    ck_assert(memcmp(ones.w, want_ones, sizeof want_ones) == 0);
}
END_TEST

/* p of the elements are dropped: 100,000 bytes, five standard deviations. */
START_TEST(dropout_drops_its_share)
{
    static const float shares[] = {0.25f, 0.5f};
    enum { BLOCKS = 6250 };
    uint32_t sample = 7;
    step_state state = {.plan = {.epoch = 1}};
    dropout drop = {.p = shares[_i], .seed = 3, .layer = 1, .samples = &sample, .state = &state};
    int dropped = 0;
    for (uint32_t block = 0; block < BLOCKS; block++) {
        uint8_t bytes[DROPOUT_BLOCK];
        dropout_bytes(&drop, 0, block, bytes);
        for (int j = 0; j < DROPOUT_BLOCK; j++)
            dropped += bytes[j] < dropout_threshold(drop.p);
    }
    double n = BLOCKS * DROPOUT_BLOCK, p = (double)drop.p;
    ck_assert_msg(fabs(dropped - n * p) < 5 * sqrt(n * p * (1 - p)), "%d of %g at p %g", dropped, n,
                  p);
}
END_TEST

START_TEST(gather_normalises)
{
    const uint8_t images[] = {0, 255, 128, 1, 2, 3}, labels[] = {4, 9, 0};
    const uint32_t order[] = {1, 1, 0, 2, 0};
    const gather_source source = {.images = images, .labels = labels, .order = order, .pixels = 2};
    const step_state state = {.plan = {.first = 2}};
    float x[4];
    uint8_t out[2];
    uint32_t samples[2];
    device *dev = open_device(devices[_i]);
    gather_output gathered = {x, out, samples};
    ok(dev->ops->gather(dev, &source, &state, 1, 2, &gathered));
    const uint8_t want[] = {2, 3, 0, 255};
    for (int i = 0; i < 4; i++)
        ck_assert(x[i] == ((float)want[i] / 255.0f - 0.1307f) / 0.3081f);
    ck_assert(out[0] == 0 && out[1] == 4);
    ck_assert(samples[0] == 2 && samples[1] == 0);
    device_destroy(dev);
}
END_TEST

/* More images than a thread takes at a time, and no vector's multiple of pixels. */
START_TEST(gather_normalises_every_value)
{
    enum { PIXELS = 37, COUNT = 21, FIRST = 2 };
    uint8_t images[COUNT * PIXELS], labels[COUNT], out[COUNT];
    uint32_t order[FIRST + COUNT], samples[COUNT];
    float x[COUNT * PIXELS];
    for (int i = 0; i < COUNT * PIXELS; i++)
        images[i] = (uint8_t)i;
    for (int i = 0; i < COUNT; i++) {
        labels[i] = (uint8_t)(i % 10);
        order[FIRST + i] = (uint32_t)(i * 5 % COUNT);
    }
    const gather_source source = {
        .images = images, .labels = labels, .order = order, .pixels = PIXELS};
    const step_state state = {.plan = {.first = 1}};
    device *dev = open_device(devices[_i]);
    ok(dev->ops->gather(dev, &source, &state, 1, COUNT, &(gather_output){x, out, samples}));
    for (int i = 0; i < COUNT; i++) {
        uint32_t from = order[FIRST + i];
        ck_assert(samples[i] == from && out[i] == labels[from]);
        for (int j = 0; j < PIXELS; j++) {
            float pixel = (float)images[from * PIXELS + (uint32_t)j];
            ck_assert(x[i * PIXELS + j] == (pixel / 255.0f - 0.1307f) / 0.3081f);
        }
    }
    device_destroy(dev);
}
END_TEST

/* Two classes with logits 0 and log 3: softmax 1/4 and 3/4. */
START_TEST(cross_entropy_by_hand)
{
    const float logits[] = {0, logf(3.0f), 2, 2};
    const uint8_t labels[] = {0, 0};
    float dlogits[4];
    step_state state = {.plan = {.grad_scale = 0.5f}};
    score total = {.loss_sum = 1, .correct = 10};
    device *dev = open_device(devices[_i]);
    loss_input loss = {logits, labels, 2, 2, 0, 0};
    ok(dev->ops->cross_entropy(dev, &loss, &state, &total, dlogits));
    ck_assert_double_eq_tol(total.loss_sum, 1 + log(4) + log(2), 1e-6);
    ck_assert_double_eq_tol(total.last_loss, (log(4) + log(2)) / 2, 1e-6);
    ck_assert_int_eq(total.correct, 11); /* equal logits: the first one wins */
    loss.n = 1;                          /* the same in two calls */
    ok(dev->ops->cross_entropy(dev, &loss, &state, &total, dlogits));
    ck_assert_double_eq_tol(total.last_loss, log(4), 1e-6);
    loss = (loss_input){logits + 2, labels + 1, 1, 2, 0, 1};
    ok(dev->ops->cross_entropy(dev, &loss, &state, &total, dlogits + 2));
    ck_assert_double_eq_tol(total.last_loss, (log(4) + log(2)) / 2, 1e-6);
    const float want[] = {-0.375f, 0.375f, -0.25f, 0.25f};
    for (int i = 0; i < 4; i++)
        ck_assert_double_eq_tol((double)dlogits[i], (double)want[i], 1e-6);
    device_destroy(dev);
}
END_TEST

/* The same with a fifth of each label for both classes: 0.9 and 0.1 are the targets. */
START_TEST(smoothed_cross_entropy_by_hand)
{
    const float logits[] = {0, logf(3.0f), 2, 2};
    const uint8_t labels[] = {0, 1};
    float dlogits[4];
    step_state state = {.plan = {.grad_scale = 0.5f}};
    score total = {0};
    device *dev = open_device(devices[_i]);
    loss_input loss = {logits, labels, 2, 2, 0.2f, 0};
    ok(dev->ops->cross_entropy(dev, &loss, &state, &total, dlogits));
    double first = 0.9 * log(4) + 0.1 * log(4.0 / 3), second = log(2);
    ck_assert_double_eq_tol(total.loss_sum, first + second, 1e-6);
    ck_assert_double_eq_tol(total.last_loss, (first + second) / 2, 1e-6);
    ck_assert_int_eq(total.correct, 0);
    const float want[] = {-0.325f, 0.325f, 0.2f, -0.2f};
    for (int i = 0; i < 4; i++)
        ck_assert_double_eq_tol((double)dlogits[i], (double)want[i], 1e-6);
    device_destroy(dev);
}
END_TEST

enum { COUNT = 200001, N_RULES = 5 }; /* several pieces and an odd rest; optimizers */

typedef struct arenas {
    float *param, *grad, *state1, *state2;
} arenas;

static arenas make_arenas(void)
{
    arenas a;
    mt19937 generator;
    mt19937_init(&generator, 11);
    float **all[] = {&a.param, &a.grad, &a.state1, &a.state2};
    for (int k = 0; k < 4; k++) {
        ok(memory_alloc(sizeof(float) * COUNT, (void **)all[k]));
        for (int i = 0; i < COUNT; i++) {
            float unit = (float)(mt19937_u32(&generator) >> 8) * 0x1p-24f;
            (*all[k])[i] = k < 2 ? unit - 0.5f : unit; /* averages of squares are not negative */
        }
    }
    return a;
}

static void free_arenas(arenas *a)
{
    free(a->param);
    free(a->grad);
    free(a->state1);
    free(a->state2);
}

static void optimize(const char *name, int which, arenas *a)
{
    device *dev = open_device(name);
    const device_ops *ops = dev->ops;
    adam_options adam = {0.9f, 0.999f, 1e-8f, 0.01f, which == 4};
    adadelta_options adadelta = {0.9f, 1e-6f, 0};
    sgd_options plain = {0, 0.01f, false}, nesterov = {0.9f, 0, true};
    step_plan plan = {.lr = 1e-3f, .beta1 = adam.beta1, .beta2 = adam.beta2, .step = 7};
    step_state state = {0};
    plan.lr = which < 2 || which == 4 ? 0.1f : which == 2 ? 1e-3f : 1.0f;
    ok(ops->begin_step(dev, &plan, &state, NULL));
    optimizer_slice slice = {a->param, a->grad, which == 0 ? NULL : a->state1,
                             which < 2 ? NULL : a->state2, COUNT};
    switch (which) {
    case 0:
        ok(ops->sgd_step(dev, &slice, &state, &plain));
        break;
    case 1:
        ok(ops->sgd_step(dev, &slice, &state, &nesterov));
        break;
    case 2:
    case 4:
        ok(ops->adam_step(dev, &slice, &state, &adam));
        break;
    default:
        ok(ops->adadelta_step(dev, &slice, &state, &adadelta));
    }
    device_destroy(dev);
}

static void close_to(const float *got, const float *want, const char *what)
{
    for (int i = 0; i < COUNT; i++)
        if (!(fabs((double)got[i] - (double)want[i]) < 1e-6)) /* ck_assert costs a call */
            ck_abort_msg("%s[%d] is %.9g, not %.9g", what, i, (double)got[i], (double)want[i]);
}

/* One fused multiply-add instead of two roundings, and one root instead of two: a few units in the
 * last place of values below 2. */
START_TEST(optimizers_equal_reference)
{
    arenas want = make_arenas(), got = make_arenas();
    optimize(devices[0], _i % N_RULES, &want);
    optimize(devices[1 + _i / N_RULES], _i % N_RULES, &got);
    close_to(got.param, want.param, "param");
    close_to(got.state1, want.state1, "state1");
    close_to(got.state2, want.state2, "state2");
    free_arenas(&want);
    free_arenas(&got);
}
END_TEST

/* A state that decays is never subnormal, and what is not a number stays so. */
START_TEST(what_decays_is_never_subnormal)
{
    int rule = _i % N_RULES;
    arenas a = make_arenas();
    for (int i = 0; i < COUNT; i++) {
        a.grad[i] = a.param[i] = 0;
        a.state1[i] = a.state2[i] = i % 2 == 0 ? 1.3e-38f : 0x1p-140f;
    }
    a.grad[0] = NAN;
    for (int step = 0; step < 200; step++)
        optimize(devices[_i / N_RULES], rule, &a);
    ck_assert(isnan(a.param[0]));
    for (int i = 1; i < COUNT && rule > 0; i++) {
        if (fpclassify(a.state1[i]) == FP_SUBNORMAL)
            ck_abort_msg("state1[%d] is %g", i, (double)a.state1[i]);
        if (rule != 1 && fpclassify(a.state2[i]) == FP_SUBNORMAL)
            ck_abort_msg("state2[%d] is %g", i, (double)a.state2[i]);
    }
    free_arenas(&a);
}
END_TEST

/* The norm of elements [first, COUNT) after which clip_gradients has clipped them to `most`. */
static double clip(device *dev, arenas *a, size_t first, float most)
{
    double norm = -1;
    const step_state state = {0};
    gradient_clip what = {a->grad + first, COUNT - first, most, &norm};
    ok(dev->ops->clip_gradients(dev, &what, &state));
    return norm;
}

/* The squares are exact, and their sum is off by some 2^-53 a term at most. Each element is rounded
 * once after it is scaled, and so is the factor. */
START_TEST(gradients_are_clipped)
{
    device *dev = open_device(devices[_i]);
    for (size_t first = 0; first < COUNT; first += COUNT - 7) { /* many, and few */
        arenas whole = make_arenas(), a = make_arenas();
        double sum = 0;
        for (size_t i = first; i < COUNT; i++)
            sum += (double)whole.grad[i] * (double)whole.grad[i];
        double norm = sqrt(sum), factor = 0.5 * norm / (norm + 1e-6);
        ck_assert_double_eq_tol(clip(dev, &a, first, (float)(2 * norm)), norm, 1e-11 * norm);
        ck_assert(memcmp(a.grad, whole.grad, sizeof(float) * COUNT) == 0);
        ck_assert_double_eq_tol(clip(dev, &a, first, (float)(norm / 2)), norm, 1e-11 * norm);
        for (size_t i = 0; i < COUNT; i++) {
            double want = (double)whole.grad[i] * (i >= first ? factor : 1);
            if (!(fabs((double)a.grad[i] - want) <= 3 * 0x1p-24 * fabs(want)))
                ck_abort_msg("[%zu]: %.9g, want %.9g", i, (double)a.grad[i], want);
        }
        free_arenas(&whole);
        free_arenas(&a);
    }
    device_destroy(dev);
}
END_TEST

START_TEST(what_is_not_finite_stays_so_when_clipped)
{
    device *dev = open_device(devices[_i]);
    arenas a = make_arenas();
    a.grad[COUNT / 2] = INFINITY;
    ck_assert(isinf(clip(dev, &a, 0, 1.0f)));
    ck_assert(!isfinite(a.grad[COUNT / 2]));
    a.grad[COUNT / 2] = NAN;
    ck_assert(isnan(clip(dev, &a, 0, 1.0f)));
    ck_assert(!isfinite(a.grad[COUNT / 2]));
    free_arenas(&a);
    device_destroy(dev);
}
END_TEST

/* Neither the number of threads nor the width of vectors changes a bit. */
START_TEST(clipped_gradients_have_the_same_bits)
{
    const struct {
        int threads;
        const char *isa;
    } ways[] = {{1, "auto"}, {2, "auto"}, {3, "auto"}, {2, "avx2"}, {2, "generic"}};
    arenas first = make_arenas();
    double norm = 0;
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        if (isa_missing(ways[i].isa) != NULL)
            continue;
        device *dev = NULL;
        device_options wanted = {.name = "cpu", .threads = ways[i].threads, .isa = ways[i].isa};
        arenas a = make_arenas();
        ok(device_create(&wanted, &dev));
        double found = clip(dev, i == 0 ? &first : &a, 0, 1.0f);
        norm = i == 0 ? found : norm;
        ck_assert(found == norm);
        ck_assert(i == 0 || memcmp(a.grad, first.grad, sizeof(float) * COUNT) == 0);
        free_arenas(&a);
        device_destroy(dev);
    }
    free_arenas(&first);
}
END_TEST

START_TEST(unknown_device_is_refused)
{
    device *dev = NULL;
    device_options wanted = {.name = "tpu", .threads = 1};
    ck_assert_int_eq(device_create(&wanted, &dev), STATUS_INVALID);
    ASSERT_FACTS(status_text(), "tpu", "auto", "cpu", "cuda", "reference");
    wanted = (device_options){.name = "cpu", .threads = 1, .precision = PRECISION_F16};
    ck_assert_int_eq(device_create(&wanted, &dev), STATUS_INVALID);
    ASSERT_FACTS(status_text(), "fp16", "--device=cuda");
}
END_TEST

/* The cpu device always opens, with kernels of its own. */
START_TEST(cpu_says_what_it_computes_with)
{
    device *dev = open_device("cpu");
    ck_assert_str_eq(dev->description, device_libraries());
    ck_assert_str_ne(dev->description, "reference kernels");
    device_destroy(dev);
}
END_TEST

/* Of a page: where each of the device's next large blocks begins. */
enum { BLOCKS = 3, BLOCK_BYTES = 4 << 20, LINE_BYTES = 64 };

static void take_places(device *dev, size_t out[BLOCKS])
{
    void *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        ok(dev->ops->alloc(dev, BLOCK_BYTES, &blocks[i]));
        out[i] = (size_t)(uintptr_t)blocks[i] % 4096;
        ck_assert_uint_eq(out[i] % LINE_BYTES, 0);
    }
    for (int i = 0; i < BLOCKS; i++)
        dev->ops->free(dev, blocks[i]);
}

/* What one device allocates moves no block of another. */
START_TEST(large_blocks_begin_at_different_places)
{
    size_t places[2][BLOCKS];
    device *first = open_device(devices[_i]), *second = open_device(devices[_i]);
    take_places(first, places[0]);
    take_places(second, places[1]);
    for (int i = 0; i < BLOCKS; i++) {
        ck_assert_uint_eq(places[1][i], places[0][i]);
        ck_assert_uint_ne(places[0][i], places[0][(i + 1) % BLOCKS]);
    }
    device_destroy(first);
    device_destroy(second);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ops");
    TCase *core = suite_case(suite, "core", 30);
    tcase_add_test(core, philox_known_answers);
    tcase_add_loop_test(core, dropout_drops_its_share, 0, 2);
    tcase_add_loop_test(core, gather_normalises, 0, N_DEVICES);
    tcase_add_loop_test(core, large_blocks_begin_at_different_places, 0, N_DEVICES);
    tcase_add_loop_test(core, gather_normalises_every_value, 0, N_DEVICES);
    tcase_add_loop_test(core, cross_entropy_by_hand, 0, N_DEVICES);
    tcase_add_loop_test(core, smoothed_cross_entropy_by_hand, 0, N_DEVICES);
    tcase_add_loop_test(core, what_decays_is_never_subnormal, 0, N_RULES * N_DEVICES);
    tcase_add_loop_test(core, optimizers_equal_reference, 0, N_RULES * (N_DEVICES - 1));
    tcase_add_loop_test(core, gradients_are_clipped, 0, N_DEVICES);
    tcase_add_loop_test(core, what_is_not_finite_stays_so_when_clipped, 0, N_DEVICES);
    tcase_add_test(core, clipped_gradients_have_the_same_bits);
    tcase_add_test(core, cpu_says_what_it_computes_with);
    tcase_add_test(core, unknown_device_is_refused);
    return suite_run(suite);
}
