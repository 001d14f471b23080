/* The fit finds the coefficients that made noisy measurements, and predicts what it has not seen.
 */
#include "app/bench/cost_fit.h"
#include "base/random.h"
#include "tests/support/facts.h"
#include "tests/support/suite.h"

#include <math.h>
#include <string.h>

/* With two cores all numbers of ranks but one share them: then some columns say the same thing. */
enum { CORES = 4, MAX_SAMPLES = 400 };

static const int RANKS[] = {1, 2, 3, 4, 5, 6, 8};
static const double IMAGES[] = {16, 64, 256};
static const double GRADIENTS[MODEL_COUNT] = {2678824, 4799528, 435496};

/* 30 us an all-reduce, 200 us where cores are too few, 4 GB/s; 100 us an image of the first model,
 * 400 us of the second and 30 us of the third. */
static const cost_fit TRUTH = {
    .cores = CORES,
    .latency_s = 3e-5,
    .s_per_byte = 2.5e-10,
    .switching_s = 2e-4,
    .image_s = {1e-4, 4e-4, 3e-5},
    .optimizer_s_per_byte = 4e-10,
    .meeting_s = 5e-4,
    .sharing_s = 3e-4,
};

typedef struct samples {
    cost_sample list[MAX_SAMPLES];
    size_t n;
} samples;

static double noise(mt19937 *random, double size)
{
    double u = (mt19937_u32(random) >> 8) / (double)(1 << 24);
    return 1 + size * (2 * u - 1);
}

static void add(samples *all, cost_sample s, mt19937 *random, double size)
{
    s.held_out = s.ranks == 3 || s.ranks == 6;
    s.seconds = cost_fit_predict(&TRUTH, &s) * noise(random, size);
    ck_assert_uint_lt(all->n, MAX_SAMPLES);
    all->list[all->n++] = s;
}

/* What a whole measurement would give, within +-size of the truth. */
static samples measured(uint64_t seed, double size)
{
    samples all = {.n = 0};
    mt19937 random;
    mt19937_init(&random, seed);
    for (size_t r = 0; r < sizeof RANKS / sizeof RANKS[0]; r++) {
        cost_sample s = {.kind = COST_SAMPLE_ALL_REDUCE, .ranks = RANKS[r]};
        for (s.bytes = 8; s.bytes < 2e7 && s.ranks > 1; s.bytes *= 8)
            add(&all, s, &random, size);
        for (int kind = COST_SAMPLE_DDP; kind < COST_SAMPLE_KINDS; kind++)
            for (int model = 0; model < MODEL_COUNT; model++)
                for (size_t i = 0; i < sizeof IMAGES / sizeof IMAGES[0]; i++) {
                    s = (cost_sample){.kind = (cost_sample_kind)kind,
                                      .model = model,
                                      .ranks = RANKS[r],
                                      .images = IMAGES[i],
                                      .parameter_bytes = GRADIENTS[model],
                                      .bytes = GRADIENTS[model]};
                    if (s.ranks > 1 || kind == COST_SAMPLE_DDP)
                        add(&all, s, &random, size);
                }
    }
    return all;
}

#define ASSERT_WITHIN(got, want, share) ck_assert_double_eq_tol((got), (want), (share) * (want))

START_TEST(finds_the_coefficients_without_noise)
{
    samples all = measured(1, 0);
    cost_fit fit;
    ck_assert_int_eq(cost_fit_make(all.list, all.n, CORES, &fit), STATUS_OK);
    for (size_t model = 0; model < MODEL_COUNT; model++)
        ASSERT_WITHIN(fit.image_s[model], TRUTH.image_s[model], 0.02);
    ASSERT_WITHIN(fit.latency_s, TRUTH.latency_s, 0.01);
    ASSERT_WITHIN(fit.s_per_byte, TRUTH.s_per_byte, 0.01);
    ASSERT_WITHIN(fit.switching_s, TRUTH.switching_s, 0.01);
    ASSERT_WITHIN(fit.optimizer_s_per_byte, TRUTH.optimizer_s_per_byte, 0.02);
    ASSERT_WITHIN(fit.meeting_s, TRUTH.meeting_s, 0.02);
    ASSERT_WITHIN(fit.sharing_s, TRUTH.sharing_s, 0.02);
}
END_TEST

/* With +-10 % of noise, evenly spread, half of the measurements are off by more than 5 %: so are
 * predictions of what was held out, and not by much more. */
START_TEST(predicts_what_was_held_out_under_noise)
{
    samples all = measured((uint64_t)_i, 0.1);
    cost_fit fit;
    ck_assert_int_eq(cost_fit_make(all.list, all.n, CORES, &fit), STATUS_OK);
    for (size_t i = 0; i < all.n; i++) /* of the truth they are nearer than the noise */
        ASSERT_WITHIN(cost_fit_predict(&fit, &all.list[i]), cost_fit_predict(&TRUTH, &all.list[i]),
                      0.15);
    unsigned all_kinds = COST_SAMPLES_OF_STEPS | 1 << COST_SAMPLE_ALL_REDUCE;
    cost_error seen = cost_fit_error(&fit, all.list, all.n, all_kinds, false);
    cost_error held_out = cost_fit_error(&fit, all.list, all.n, all_kinds, true);
    ck_assert_uint_gt(held_out.samples, 20);
    ck_assert_uint_eq(seen.samples + held_out.samples, all.n);
    ck_assert_double_lt(seen.median, 0.08);
    ck_assert_double_lt(held_out.median, 0.1);
    ck_assert_double_lt(held_out.most, 0.3);
}
END_TEST

/* The test above would say nothing if held-out samples were fitted: here they are nonsense. */
START_TEST(does_not_look_at_what_is_held_out)
{
    samples all = measured(1, 0);
    cost_fit without, with;
    ck_assert_int_eq(cost_fit_make(all.list, all.n, CORES, &without), STATUS_OK);
    for (size_t i = 0; i < all.n; i++)
        if (all.list[i].held_out)
            all.list[i].seconds *= 1000;
    ck_assert_int_eq(cost_fit_make(all.list, all.n, CORES, &with), STATUS_OK);
    ck_assert_int_eq(memcmp(&with, &without, sizeof with), 0);
    ck_assert_double_gt(cost_fit_error(&with, all.list, all.n, COST_SAMPLES_OF_STEPS, true).median,
                        0.9);
}
END_TEST

/* Steps that are the faster the more ranks there are, as only noise makes them, do not turn a cost
 * into a gain; nor does a term that the samples do not tell from another. */
START_TEST(no_cost_is_negative)
{
    samples all = measured(1, 0);
    cost_fit fit;
    for (size_t i = 0; i < all.n; i++)
        if (all.list[i].ranks > 1 && all.list[i].kind != COST_SAMPLE_ALL_REDUCE)
            all.list[i].seconds /= all.list[i].ranks * all.list[i].ranks;
    ck_assert_int_eq(cost_fit_make(all.list, all.n, CORES, &fit), STATUS_OK);
    ck_assert(fit.optimizer_s_per_byte >= 0 && fit.meeting_s >= 0 && fit.sharing_s >= 0);
    ck_assert(fit.image_s[0] >= 0 && fit.image_s[1] >= 0);
    ck_assert(fit.meeting_s + fit.sharing_s <= 0); /* their word was: less than nothing */
    size_t n = 0;
    for (size_t i = 0; i < all.n; i++) /* one batch size of one model: images or optimizer? */
        if (all.list[i].ranks == 1 && all.list[i].model == 0 && all.list[i].images < 20)
            all.list[n++] = all.list[i];
    ck_assert_int_eq(cost_fit_make(all.list, n, CORES, &fit), STATUS_OK);
    ASSERT_WITHIN(cost_fit_predict(&fit, &all.list[0]), all.list[0].seconds, 1e-6);
}
END_TEST

START_TEST(one_rank_communicates_nothing)
{
    cost_sample s = {.kind = COST_SAMPLE_ALL_REDUCE, .ranks = 1, .bytes = 1e6};
    ck_assert_double_eq(cost_fit_predict(&TRUTH, &s), 0);
    double want = 64 * TRUTH.image_s[0] + TRUTH.optimizer_s_per_byte * GRADIENTS[0];
    for (int kind = COST_SAMPLE_DDP; kind < COST_SAMPLE_KINDS; kind++) {
        s = (cost_sample){.kind = (cost_sample_kind)kind,
                          .ranks = 1,
                          .images = 64,
                          .parameter_bytes = GRADIENTS[0],
                          .bytes = GRADIENTS[0]};
        ASSERT_WITHIN(cost_fit_predict(&TRUTH, &s), want, 1e-12);
    }
}
END_TEST

/* DDP alone is enough for a fit. */
START_TEST(does_with_ddp_alone)
{
    samples all = measured(1, 0);
    size_t n = 0;
    for (size_t i = 0; i < all.n; i++)
        if (all.list[i].kind <= COST_SAMPLE_DDP)
            all.list[n++] = all.list[i];
    cost_fit fit;
    ck_assert_int_eq(cost_fit_make(all.list, n, CORES, &fit), STATUS_OK);
    ck_assert_double_lt(cost_fit_error(&fit, all.list, n, 1 << COST_SAMPLE_DDP, true).median, 0.02);
}
END_TEST

START_TEST(says_what_is_missing)
{
    samples all = measured(1, 0);
    cost_fit fit;
    size_t n = 0;
    for (size_t i = 0; i < all.n; i++)
        if (all.list[i].kind == COST_SAMPLE_ALL_REDUCE)
            all.list[n++] = all.list[i];
    ck_assert_int_eq(cost_fit_make(all.list, n, CORES, &fit), STATUS_INVALID);
    ASSERT_FACTS(status_text(), "no steps");
    ASSERT_NO_FACTS(status_text(), "all-reduce");
    cost_sample step = {.kind = COST_SAMPLE_DDP, .ranks = 2, .images = 8, .seconds = 1};
    ck_assert_int_eq(cost_fit_make(&step, 1, CORES, &fit), STATUS_INVALID);
    ASSERT_FACTS(status_text(), "no all-reduce");
    step.seconds = (double)NAN;
    ck_assert_int_eq(cost_fit_make(&step, 1, CORES, &fit), STATUS_INVALID);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cost_fit");
    TCase *core = suite_case(suite, "core", 20);
    tcase_add_test(core, finds_the_coefficients_without_noise);
    tcase_add_loop_test(core, predicts_what_was_held_out_under_noise, 0, 20);
    tcase_add_test(core, does_not_look_at_what_is_held_out);
    tcase_add_test(core, no_cost_is_negative);
    tcase_add_test(core, one_rank_communicates_nothing);
    tcase_add_test(core, does_with_ddp_alone);
    tcase_add_test(core, says_what_is_missing);
    return suite_run(suite);
}
