/* The benchmark of operations between ranks: its sizes, its results and its columns. */
#include "app/bench/collective_bench.h"
#include "tests/support/ranks.h"
#include "tests/support/suite.h"

static const int WORLDS[] = {1, 2, 3, 5};
static const collective_plan PLAN = {
    .min_bytes = 4, .max_bytes = 300000, .factor = 7, .iterations = 3, .warmup = 1, .check = true};

static status check_time(const collective_time *t, const char *how)
{
    if (t->wrong != 0)
        return FAIL(STATUS_INVALID, "%s: %lld wrong elements", how, (long long)t->wrong);
    if (!(t->mean_s > 0) || t->least_s < 0 || t->median_s < t->least_s ||
        t->mean_s < 0.99 * t->least_s)
        return FAIL(STATUS_INVALID, "%s: mean %g s, median %g s, least %g s", how, t->mean_s,
                    t->median_s, t->least_s);
    return STATUS_OK;
}

static status measures(process_group *group, int rank, int world_size, void *arg)
{
    (void)rank;
    (void)world_size;
    (void)arg;
    collective_bench *bench = NULL;
    TRY(collective_bench_create(group, NULL, &PLAN, &bench));
    status st = STATUS_OK;
    size_t size = 0;
    while (st == STATUS_OK && (size = collective_next_size(&PLAN, world_size, size)) > 0) {
        collective_row row;
        st = collective_measure(bench, size, &row);
        if (st == STATUS_OK && row.size_bytes != size)
            st = FAIL(STATUS_INVALID, "%zu bytes of %zu", row.size_bytes, size);
        if (st == STATUS_OK)
            st = check_time(&row.out_of_place, "out of place");
        if (st == STATUS_OK)
            st = check_time(&row.in_place, "in place");
    }
    collective_bench_destroy(bench);
    return st;
}

START_TEST(sums_and_times_every_size)
{
    ranks_options options = {.world_size = WORLDS[_i], .shared_bytes = PLAN.max_bytes};
    ck_assert_int_eq(run_ranks_with(&options, measures, NULL), STATUS_OK);
}
END_TEST

static status refuses(process_group *group, int rank, int world_size, void *arg)
{
    (void)rank;
    (void)world_size;
    (void)arg;
    collective_bench *bench = NULL;
    collective_row row;
    TRY(collective_bench_create(group, NULL, &PLAN, &bench));
    bool refused = collective_measure(bench, PLAN.max_bytes + 4, &row) == STATUS_INVALID &&
                   collective_measure(bench, 3, &row) == STATUS_INVALID;
    collective_bench_destroy(bench);
    return refused ? STATUS_OK : FAIL(STATUS_INVALID, "a size beyond the plan was measured");
}

START_TEST(refuses_a_size_that_it_has_no_memory_for)
{
    ranks_options options = {.world_size = 2, .shared_bytes = PLAN.max_bytes};
    ck_assert_int_eq(run_ranks_with(&options, refuses, NULL), STATUS_OK);
}
END_TEST

/* Nothing shared was asked for: the benchmark says so instead of measuring something else. */
START_TEST(fails_without_shared_memory)
{
    ranks_options options = {.world_size = 2};
    ck_assert_int_eq(run_ranks_with(&options, measures, NULL), STATUS_NO_MEMORY);
}
END_TEST

START_TEST(sizes_go_up_to_the_last)
{
    collective_plan plan = {.min_bytes = 8, .max_bytes = 64, .factor = 2};
    ck_assert_uint_eq(collective_next_size(&plan, 2, 0), 8);
    ck_assert_uint_eq(collective_next_size(&plan, 2, 8), 16);
    ck_assert_uint_eq(collective_next_size(&plan, 2, 32), 64);
    ck_assert_uint_eq(collective_next_size(&plan, 2, 64), 0);
    plan = (collective_plan){.min_bytes = 1, .max_bytes = 11, .factor = 1.01};
    ck_assert_uint_eq(collective_next_size(&plan, 2, 0), 4); /* whole floats */
    ck_assert_uint_eq(collective_next_size(&plan, 2, 4), 8); /* always on */
    ck_assert_uint_eq(collective_next_size(&plan, 2, 8), 0);
}
END_TEST

START_TEST(bandwidths_are_those_of_nccl_tests)
{
    /* 4 MB in 1 ms: 4 GB/s; over each link of a ring of 4 go 2 * 3/4 of it. */
    ck_assert_double_eq_tol(collective_algbw(4000000, 1e-3), 4, 1e-12);
    ck_assert_double_eq_tol(collective_busbw(COLLECTIVE_ALL_REDUCE, 4000000, 1e-3, 4), 6, 1e-12);
    ck_assert_double_eq_tol(collective_busbw(COLLECTIVE_ALL_REDUCE, 4000000, 1e-3, 1), 0, 1e-12);
    ck_assert_double_eq_tol(collective_busbw(COLLECTIVE_ALL_GATHER, 4000000, 1e-3, 4), 3, 1e-12);
    ck_assert_double_eq_tol(collective_busbw(COLLECTIVE_BROADCAST, 4000000, 1e-3, 4), 4, 1e-12);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("collective_bench");
    TCase *core = suite_case(suite, "core", 60);
    tcase_add_loop_test(core, sums_and_times_every_size, 0, sizeof WORLDS / sizeof WORLDS[0]);
    tcase_add_test(core, refuses_a_size_that_it_has_no_memory_for);
    tcase_add_test(core, fails_without_shared_memory);
    tcase_add_test(core, sizes_go_up_to_the_last);
    tcase_add_test(core, bandwidths_are_those_of_nccl_tests);
    return suite_run(suite);
}
