/* The cost model's limits: what must hold whatever the numbers are, and values worked out by hand.
 */
#include "app/bench/cost_model.h"
#include "tests/support/suite.h"

#include <math.h>

enum { TEN_TO_FIVE = 100000 };

/* Ten microseconds and 1 GB/s everywhere; flat: nothing is nearer than anything else. */
static const cost_cluster FLAT = {{1e-5, 1e-9}, {1e-5, 1e-9}, 1};
/* Eight ranks to a node; inside it, a tenth of the latency and ten times the bandwidth. */
static const cost_cluster NODES = {{1e-6, 1e-10}, {1e-5, 1e-9}, 8};

static const cost_work WORK = {.gradient_bytes = 4e6,
                               .last_bytes = 4e4,
                               .image_bytes = 3136,
                               .logit_bytes = 40,
                               .image_s = 1e-4,
                               .step_s = 1e-4,
                               .backward_share = 0.5,
                               .overlap = 1};

#define ASSERT_NEAR(got, want) ck_assert_double_eq_tol((got), (want), 1e-9 * fabs(want) + 1e-15)

static double slope(cost_kind kind, const cost_cluster *cluster, int64_t ranks, double bytes)
{
    return cost_all_reduce(kind, cluster, 2 * ranks, bytes) -
           cost_all_reduce(kind, cluster, ranks, bytes);
}

START_TEST(one_rank_has_nobody_to_talk_to)
{
    cost_step step = cost_step_of((cost_kind)_i, &NODES, &WORK, 1, 64);
    ck_assert_double_eq(step.transfer_s, 0);
    ck_assert_double_eq(step.exposed_s, 0);
    ASSERT_NEAR(step.step_s, 64 * WORK.image_s + WORK.step_s);
    ASSERT_NEAR(cost_efficiency((cost_kind)_i, &NODES, &WORK, COST_WEAK, 1, 64), 1.0);
}
END_TEST

START_TEST(a_ring_by_hand)
{
    /* 2 * 3 messages of 1 MB: 6 * (10 us + 1 ms) */
    ASSERT_NEAR(cost_all_reduce(COST_RING, &FLAT, 4, 4e6), 6 * (1e-5 + 1e-3));
    /* Two ranks: a ring and a tree send the same two messages, the tree all bytes in each. */
    ASSERT_NEAR(cost_all_reduce(COST_RING, &FLAT, 2, 4e6), 2 * (1e-5 + 2e-3));
    ASSERT_NEAR(cost_all_reduce(COST_TREE, &FLAT, 2, 4e6), 2 * (1e-5 + 4e-3));
}
END_TEST

START_TEST(latency_of_a_ring_grows_with_ranks_and_of_a_tree_with_their_logarithm)
{
    for (int64_t ranks = 2; ranks <= 65536; ranks *= 2) {
        double depth = log2((double)ranks);
        ASSERT_NEAR(cost_all_reduce(COST_RING, &FLAT, ranks, 0), 2e-5 * (double)(ranks - 1));
        ASSERT_NEAR(cost_all_reduce(COST_TREE, &FLAT, ranks, 0), 2e-5 * depth);
        ASSERT_NEAR(slope(COST_TREE, &FLAT, ranks, 0), 2e-5);
    }
}
END_TEST

START_TEST(bandwidth_of_an_all_reduce_does_not_depend_on_ranks)
{
    cost_cluster no_latency = {{0, 1e-9}, {0, 1e-9}, 1};
    for (int64_t ranks = 64; ranks <= 65536; ranks *= 2) {
        double part = (double)(ranks - 1) / (double)ranks;
        ASSERT_NEAR(cost_all_reduce(COST_RING, &no_latency, ranks, 1e6), 2 * part * 1e-3);
        ASSERT_NEAR(cost_all_reduce(COST_TREE, &no_latency, ranks, 1e6), 2e-3);
    }
}
END_TEST

/* The closed form is the least over the number of chunks. */
START_TEST(a_tree_cuts_its_data_into_the_best_number_of_chunks)
{
    double once = 1e8 * 1e-9, depth = 10, least = HUGE_VAL;
    for (double chunks = 1; chunks < 1e5; chunks++)
        least = fmin(least, 2 * depth * (1e-5 + once / chunks) +
                                (chunks - 1) * (1e-5 + 2 * once / chunks));
    double got = cost_all_reduce(COST_TREE, &FLAT, 1024, 1e8);
    ck_assert_double_eq_tol(got, least, 1e-6 * least);
    ck_assert_double_lt(got, 2 * depth * (1e-5 + once)); /* in one piece */
}
END_TEST

START_TEST(nodes_shorten_what_goes_between_them)
{
    for (int64_t ranks = 16; ranks <= 65536; ranks *= 4) {
        double flat = cost_all_reduce(COST_RING, &NODES, ranks, 4e6);
        ck_assert_double_lt(cost_all_reduce(COST_HIERARCHICAL, &NODES, ranks, 4e6), flat);
    }
    /* Inside one node all is a ring there. */
    ASSERT_NEAR(cost_all_reduce(COST_HIERARCHICAL, &NODES, 8, 4e6),
                cost_all_reduce(COST_RING, &NODES, 8, 4e6));
    /* 16 ranks: 14 messages of 0.5 MB inside; two nodes' ring: 2 messages of 2 MB. */
    ASSERT_NEAR(cost_all_reduce(COST_HIERARCHICAL, &NODES, 16, 4e6),
                14 * (1e-6 + 5e-5) + 2 * (1e-5 + 2e-3));
}
END_TEST

START_TEST(server_and_master_are_linear_in_ranks)
{
    static const cost_kind stars[] = {COST_SERVER, COST_MASTER};
    cost_kind kind = stars[_i];
    double two = cost_step_of(kind, &FLAT, &WORK, 2, 64).transfer_s;
    for (int64_t ranks = 3; ranks <= TEN_TO_FIVE; ranks *= 3) {
        cost_step step = cost_step_of(kind, &FLAT, &WORK, ranks, 64);
        ASSERT_NEAR(step.transfer_s, (double)(ranks - 1) * two);
        ASSERT_NEAR(step.exposed_s, step.transfer_s);
    }
    /* Parameters and gradients; DP's images and logits come on top. */
    double star = 2 * (1e-5 + 4e-3);
    if (kind == COST_MASTER)
        star += 1e-5 + 64 * 3136e-9 + 2 * (1e-5 + 64 * 40e-9);
    ASSERT_NEAR(two, star);
}
END_TEST

START_TEST(overlap_hides_all_but_the_last_bucket)
{
    cost_work work = WORK;
    double all = cost_all_reduce(COST_RING, &FLAT, 4, work.gradient_bytes);
    double last = cost_all_reduce(COST_RING, &FLAT, 4, work.last_bytes);
    work.image_s = 1; /* ages of backward pass */
    ASSERT_NEAR(cost_step_of(COST_RING, &FLAT, &work, 4, 64).exposed_s, last);
    work.overlap = 0;
    ASSERT_NEAR(cost_step_of(COST_RING, &FLAT, &work, 4, 64).exposed_s, all);
    work = WORK; /* a backward pass of 0.5 * 64 * 100 us */
    ASSERT_NEAR(cost_step_of(COST_RING, &FLAT, &work, 4, 64).exposed_s, fmax(all - 3.2e-3, last));
}
END_TEST

/* W b / (c + (W - 1) d) images per second: a half of W b / c where (W - 1) d > c, and twice the
 * ranks bring less than a tenth where 2 (c + (W - 1) d) < 1.1 (c + (2 W - 1) d). */
START_TEST(a_server_saturates_early_and_a_tree_does_not)
{
    cost_work work = WORK;
    work.image_s = 1e-3;
    double c = 64 * work.image_s + work.step_s, d = 2 * (1e-5 + 4e-3);
    ck_assert_int_eq(cost_half_efficiency(COST_SERVER, &FLAT, &work, COST_WEAK, 64, TEN_TO_FIVE),
                     1 + (int64_t)ceil(c / d));
    int64_t server = cost_saturation(COST_SERVER, &FLAT, &work, COST_WEAK, 64, TEN_TO_FIVE);
    int64_t master = cost_saturation(COST_MASTER, &FLAT, &work, COST_WEAK, 64, TEN_TO_FIVE);
    int64_t ring = cost_saturation(COST_RING, &FLAT, &work, COST_WEAK, 64, TEN_TO_FIVE);
    ck_assert_int_eq(server, (int64_t)ceil(4.5 * (c / d - 1)));
    ck_assert_int_le(master, server);
    ck_assert_int_gt(ring, 10 * server);
    ck_assert_int_eq(cost_saturation(COST_TREE, &FLAT, &work, COST_WEAK, 64, TEN_TO_FIVE), 0);
}
END_TEST

START_TEST(saturation_is_the_first_place_that_lasts)
{
    for (int kind = 0; kind < COST_KINDS; kind++) {
        int64_t at = cost_saturation((cost_kind)kind, &FLAT, &WORK, COST_WEAK, 64, TEN_TO_FIVE);
        if (at <= 1)
            continue;
        for (int64_t ranks = at - 1; ranks <= 2 * at; ranks++) {
            double now = cost_images_per_s((cost_kind)kind, &FLAT, &WORK, COST_WEAK, ranks, 64);
            double twice =
                cost_images_per_s((cost_kind)kind, &FLAT, &WORK, COST_WEAK, 2 * ranks, 64);
            ck_assert_msg((twice < 1.1 * now) == (ranks >= at), "%s, %lld ranks (at %lld)",
                          cost_kind_name((cost_kind)kind), (long long)ranks, (long long)at);
        }
    }
}
END_TEST

START_TEST(a_fixed_global_batch_ends_with_its_images)
{
    double at = cost_images_per_s(COST_TREE, &FLAT, &WORK, COST_STRONG, 512, 512);
    ASSERT_NEAR(cost_images_per_s(COST_TREE, &FLAT, &WORK, COST_STRONG, 4096, 512), at);
    int64_t stops = cost_saturation(COST_TREE, &FLAT, &WORK, COST_STRONG, 512, TEN_TO_FIVE);
    ck_assert_int_gt(stops, 1);
    ck_assert_int_le(stops, 512);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cost_model");
    TCase *core = suite_case(suite, "core", 20);
    tcase_add_loop_test(core, one_rank_has_nobody_to_talk_to, 0, COST_KINDS);
    tcase_add_test(core, a_ring_by_hand);
    tcase_add_test(core, latency_of_a_ring_grows_with_ranks_and_of_a_tree_with_their_logarithm);
    tcase_add_test(core, bandwidth_of_an_all_reduce_does_not_depend_on_ranks);
    tcase_add_test(core, a_tree_cuts_its_data_into_the_best_number_of_chunks);
    tcase_add_test(core, nodes_shorten_what_goes_between_them);
    tcase_add_loop_test(core, server_and_master_are_linear_in_ranks, 0, 2);
    tcase_add_test(core, overlap_hides_all_but_the_last_bucket);
    tcase_add_test(core, a_server_saturates_early_and_a_tree_does_not);
    tcase_add_test(core, saturation_is_the_first_place_that_lasts);
    tcase_add_test(core, a_fixed_global_batch_ends_with_its_images);
    return suite_run(suite);
}
