/* What begin_step makes of a plan: Adam's factors, and dynamic loss scaling by GradScaler's rules.
 */
#include "kernels/step.h"
#include "tests/support/suite.h"

#include <math.h>

/* One step with loss scaling whose gradients were finite or not. */
static void scaled_step(step_state *state, int64_t step, bool overflow)
{
    step_plan plan = {.step = step, .scale_loss = true, .lr = 1, .beta1 = 0.9f, .beta2 = 0.999f};
    step_begin(&plan, state, NULL);
    ck_assert(!step_is_skipped(state));
    state->scaling.overflow = overflow;
    ck_assert(step_is_skipped(state) == overflow);
}

START_TEST(adam_factors)
{
    step_state state = {0};
    step_plan plan = {.step = 3, .lr = 0.5f, .beta1 = 0.9f, .beta2 = 0.999f};
    step_begin(&plan, &state, NULL);
    double beta1 = (double)0.9f, beta2 = (double)0.999f;
    ck_assert(state.adam_step_size == (float)(0.5 / (1 - beta1 * beta1 * beta1)));
    ck_assert(fabs((double)state.adam_correction2_sqrt - sqrt(1 - beta2 * beta2 * beta2)) < 1e-7);
    ck_assert(step_loss_scale(&state) == 1.0f);
}
END_TEST

/* 65536 at first; an overflow halves it; 2000 good steps in a row double it. */
START_TEST(scale_follows_overflows)
{
    step_state state = {0};
    int64_t step = 0;
    scaled_step(&state, ++step, true);
    ck_assert(step_loss_scale(&state) == 65536.0f);
    scaled_step(&state, ++step, true);
    ck_assert(step_loss_scale(&state) == 32768.0f);
    scaled_step(&state, ++step, false);
    ck_assert(step_loss_scale(&state) == 16384.0f);
    for (int good = 1; good < LOSS_SCALE_INTERVAL; good++)
        scaled_step(&state, ++step, false);
    ck_assert(step_loss_scale(&state) == 16384.0f); /* the 2000th has not ended yet */
    scaled_step(&state, ++step, true);
    ck_assert(step_loss_scale(&state) == 32768.0f);
    scaled_step(&state, ++step, false);
    ck_assert(step_loss_scale(&state) == 16384.0f);
    ck_assert_int_eq(state.scaling.skipped, 3);
}
END_TEST

/* A skipped step does not count for Adam. */
START_TEST(skipped_steps_do_not_count)
{
    step_state skipped = {0}, plain = {0};
    step_plan third = {.step = 3, .lr = 1, .beta1 = 0.9f, .beta2 = 0.999f};
    scaled_step(&skipped, 1, true);
    scaled_step(&skipped, 2, true);
    for (int64_t step = 3; step <= 5; step++)
        scaled_step(&skipped, step, false);
    step_begin(&third, &plain, NULL);
    ck_assert(skipped.adam_step_size == plain.adam_step_size);
    ck_assert(skipped.adam_correction2_sqrt == plain.adam_correction2_sqrt);
}
END_TEST

START_TEST(the_wish_to_stop_goes_where_it_leaves)
{
    step_state state = {0};
    float flag = -1;
    for (int i = 0; i < 3; i++) {
        step_plan plan = {.step = i + 1, .stop = i == 1 ? 1.0f : 0.0f};
        step_begin(&plan, &state, &flag);
        ck_assert(flag == plan.stop);
    }
}
END_TEST

/* An evaluation between two steps, even after an overflow, changes nothing. */
START_TEST(evaluation_keeps_the_scale)
{
    step_state state = {0};
    step_plan evaluation = {.first = 7};
    scaled_step(&state, 1, true);
    step_begin(&evaluation, &state, NULL);
    ck_assert_uint_eq(state.plan.first, 7);
    ck_assert(state.scaling.scale == 65536.0f && state.scaling.overflow != 0);
    scaled_step(&state, 2, false);
    ck_assert(step_loss_scale(&state) == 32768.0f);
}
END_TEST

/* Two ranks; `peers` is what the other one adds to the offer. */
static void offer_and_take(step_state *state, const step_vote *vote, int64_t step, double peers)
{
    step_plan plan = {.step = step, .commit_from = vote->loss_sum, .commit_anew = step == 5};
    *vote->wish = 0.25f;
    step_begin(&plan, state, NULL);
    *(double *)vote->loss_sum += 2;
    step_offer(vote, state);
    state->commit.offer[0] += 1;
    state->commit.offer[1] += peers;
    step_take(vote, state);
}

/* Steps 5 and 6 are taken. Of step 7 the other rank has offered nothing, or garbage has come, or
 * this rank was to abort: it and all that follow are not, and nobody's wish is heard. */
START_TEST(a_step_is_taken_if_all_offer_it)
{
    static const double peers[] = {0, (double)NAN, STEP_OFFERED + 6, STEP_OFFERED + 7};
    uint32_t aborted = 0;
    double loss_sum = 100;
    float wish = 0;
    step_state state = {.commit = {.loss = 9, .images = 9, .steps = 9}};
    const step_vote vote = {&aborted, &loss_sum, &wish, .images = 16, .world_size = 2};
    offer_and_take(&state, &vote, 5, STEP_OFFERED + 5);
    offer_and_take(&state, &vote, 6, STEP_OFFERED + 6);
    ck_assert(!step_is_skipped(&state) && wish > 0);
    aborted = _i == 3;
    for (int64_t step = 7; step < 9; step++) {
        offer_and_take(&state, &vote, step, step == 7 ? peers[_i] : STEP_OFFERED + 8);
        ck_assert(step_is_skipped(&state) && !(wish > 0));
        ck_assert_int_eq(state.commit.steps, 2);
        ck_assert_int_eq(state.commit.images, 32);
        ck_assert(fabs(state.commit.loss - 6) < 1e-12);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("step");
    TCase *core = suite_case(suite, "core", 10);
    tcase_add_test(core, adam_factors);
    tcase_add_test(core, scale_follows_overflows);
    tcase_add_test(core, skipped_steps_do_not_count);
    tcase_add_test(core, the_wish_to_stop_goes_where_it_leaves);
    tcase_add_test(core, evaluation_keeps_the_scale);
    tcase_add_loop_test(core, a_step_is_taken_if_all_offer_it, 0, 4);
    return suite_run(suite);
}
