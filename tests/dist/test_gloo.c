/* The gloo backend, through its module: what test_shm.c asks of shm. SKIP if the module is not
 * built. */
#include "base/clock.h"
#include "base/module.h"
#include "tests/support/aborts.h"
#include "tests/support/collectives.h"
#include "tests/support/deaths.h"
#include "tests/support/facts.h"
#include "tests/support/suite.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int WORLDS[] = {1, 2, 3, 5};
enum { N_WORLDS = sizeof WORLDS / sizeof WORLDS[0] };

static status run(int world_size, rank_fn fn, void *arg)
{
    ranks_options options = {
        .world_size = world_size, .backend = "gloo", .shared_bytes = COLLECTIVES_SHARED_BYTES};
    return run_ranks_with(&options, fn, arg);
}

START_TEST(all_reduce_is_exact)
{
    memory_kind kind = _i % 2 == 0 ? MEMORY_PLAIN : MEMORY_OUT_OF_PLACE;
    ck_assert_int_eq(run(WORLDS[_i / 2], collectives_all_reduce, &kind), STATUS_OK);
}
END_TEST

START_TEST(broadcast_is_exact)
{
    memory_kind kind = MEMORY_SYMMETRIC;
    ck_assert_int_eq(run(WORLDS[_i], collectives_broadcast, &kind), STATUS_OK);
}
END_TEST

START_TEST(reduce_is_exact)
{
    memory_kind kind = _i % 2 == 0 ? MEMORY_PLAIN : MEMORY_OUT_OF_PLACE;
    ck_assert_int_eq(run(WORLDS[_i / 2], collectives_reduce, &kind), STATUS_OK);
}
END_TEST

START_TEST(further_kinds_are_exact)
{
    memory_kind kind = MEMORY_OUT_OF_PLACE;
    ck_assert_int_eq(run(WORLDS[_i], collectives_further, &kind), STATUS_OK);
}
END_TEST

START_TEST(bytes_are_counted)
{
    ck_assert_int_eq(run(WORLDS[_i], collectives_traffic, NULL), STATUS_OK);
}
END_TEST

/* Several chunks a rank, the last one short. */
enum { BITS_COUNT = 1500001, MOST_RANKS = 4 };

static float sums[2][2][BITS_COUNT]; /* of shm and gloo: all_reduce, reduce */

static status sum_fractions(process_group *group, int rank, int world_size, void *arg)
{
    float(*out)[BITS_COUNT] = arg;
    float *in = malloc(BITS_COUNT * sizeof *in);
    if (in == NULL)
        return FAIL(STATUS_NO_MEMORY, "test buffers");
    for (size_t i = 0; i < BITS_COUNT; i++)
        in[i] = 1.0f / (float)(i % 977 + 3 * (size_t)rank + 1) * (i % 2 == 0 ? 1.0f : -1e4f);
    collective what = {.kind = COLLECTIVE_REDUCE, .in = in, .out = out[1], .count = BITS_COUNT};
    what.root = world_size - 1;
    what.prescale = 1.0f / 3.0f;
    status st = process_group_run(group, &what, NULL);
    if (st == STATUS_OK)
        st = process_group_all_reduce(group, in, BITS_COUNT, DTYPE_F32, REDUCE_AVG, NULL);
    if (st == STATUS_OK && rank == 0)
        memcpy(out[0], in, sizeof out[0]);
    free(in);
    return st;
}

START_TEST(bits_are_those_of_shm)
{
    ranks_options shm = {.world_size = _i, .shared_bytes = COLLECTIVES_SHARED_BYTES};
    ck_assert_int_eq(run_ranks_with(&shm, sum_fractions, sums[0]), STATUS_OK);
    ck_assert_int_eq(run(_i, sum_fractions, sums[1]), STATUS_OK);
    ck_assert_msg(memcmp(sums[0][0], sums[1][0], sizeof sums[0][0]) == 0, "all_reduce");
    ck_assert_msg(memcmp(sums[0][1], sums[1][1], sizeof sums[0][1]) == 0, "reduce");
}
END_TEST

/* Rank 0 sends before its collectives, and rank 1 takes it after them, the latest tag first. */
static status send_past_collectives(process_group *group, int rank, int world_size, void *arg)
{
    enum { MESSAGES = 3, COUNT = 200000 };
    static int64_t data[MESSAGES][COUNT], got[MESSAGES][COUNT];
    work *works[MESSAGES];
    int64_t one = 1;
    (void)world_size, (void)arg;
    for (int i = 0; rank == 0 && i < MESSAGES; i++) {
        for (int k = 0; k < COUNT; k++)
            data[i][k] = i * COUNT + k;
        TRY(process_group_launch(group,
                                 &(collective){.kind = COLLECTIVE_SEND,
                                               .type = DTYPE_I64,
                                               .in = data[i],
                                               .count = COUNT,
                                               .root = 1,
                                               .tag = i},
                                 NULL, &works[i]));
    }
    work *sum = NULL;
    TRY(process_group_launch(
        group,
        &(collective){
            .kind = COLLECTIVE_ALL_REDUCE, .in = &one, .out = &one, .count = 1, .type = DTYPE_I64},
        NULL, &sum));
    if (rank == 0)
        for (int i = 0; i < MESSAGES; i++)
            TRY(process_group_wait(group, works[i], NULL));
    TRY(process_group_wait(group, sum, NULL));
    for (int i = MESSAGES - 1; rank == 1 && i >= 0; i--) {
        collective recv = {
            .kind = COLLECTIVE_RECV, .type = DTYPE_I64, .out = got[i], .count = COUNT, .tag = i};
        TRY(process_group_run(group, &recv, NULL));
        for (int k = 0; k < COUNT; k++)
            if (got[i][k] != i * COUNT + k)
                return FAIL(STATUS_INVALID, "tag %d: [%d] is %lld", i, k, (long long)got[i][k]);
    }
    return one == 2 ? STATUS_OK : FAIL(STATUS_INVALID, "the sum is %lld", (long long)one);
}

START_TEST(sends_pass_collectives)
{
    ck_assert_int_eq(run(2, send_past_collectives, NULL), STATUS_OK);
}
END_TEST

/* Ranks that do not agree on a size find nothing to match; gloo itself would end the process. */
static status differ_in_size(process_group *group, int rank, int world_size, void *arg)
{
    static _Thread_local float data[8];
    (void)world_size, (void)arg;
    return process_group_all_reduce(group, data, rank == 0 ? 4 : 8, DTYPE_F32, REDUCE_SUM, NULL);
}

START_TEST(different_sizes_are_a_failure)
{
    ranks_options options = {.world_size = 2, .backend = "gloo", .timeout_ms = 300};
    rank_result results[2];
    ck_assert_int_eq(run_rank_processes(&options, differ_in_size, NULL, results), STATUS_OK);
    for (int rank = 0; rank < 2; rank++)
        ck_assert_msg(results[rank].reported && results[rank].st != STATUS_OK, "rank %d", rank);
}
END_TEST

static void check_survivors(int dead, const rank_result *results, int n, status want)
{
    char who[32];
    snprintf(who, sizeof who, "rank %d", dead);
    for (int rank = 0; rank < n; rank++) {
        const rank_result *result = &results[rank];
        if (rank == dead)
            continue;
        ck_assert_msg(result->reported && result->st == want, "rank %d: %s: %s", rank,
                      status_name(result->st), result->message);
        if (want == STATUS_PEER)
            ASSERT_FACTS(result->message, who, "pid");
        ck_assert_double_lt(result->seconds, 2);
    }
}

START_TEST(a_killed_rank_is_named)
{
    ranks_options options = {.world_size = 3, .backend = "gloo"};
    rank_result results[3];
    death d = {.rank = _i, .signal = SIGKILL, .before = true};
    ck_assert_int_eq(run_rank_processes(&options, deaths_in_all_reduce, &d, results), STATUS_OK);
    check_survivors(_i, results, 3, STATUS_PEER);
}
END_TEST

START_TEST(a_stopped_rank_is_a_timeout)
{
    ranks_options options = {.world_size = 2, .backend = "gloo", .timeout_ms = 700};
    rank_result results[2];
    death d = {.rank = _i, .signal = SIGSTOP, .before = true};
    ck_assert_int_eq(run_rank_processes(&options, deaths_in_all_reduce, &d, results), STATUS_OK);
    check_survivors(_i, results, 2, STATUS_TIMEOUT);
    ASSERT_FACTS(results[1 - _i].message, "(pid ", "stopped");
}
END_TEST

static status leave_at_once(process_group *group, int rank, int world_size, void *arg)
{
    (void)rank;
    (void)world_size;
    (void)arg;
    static _Thread_local float data[20000];
    return process_group_all_reduce(group, data, 20000, DTYPE_F32, REDUCE_SUM, NULL);
}

START_TEST(leaving_after_the_last_disturbs_nobody)
{
    ranks_options options = {.world_size = 4, .backend = "gloo"};
    rank_result results[4];
    ck_assert_int_eq(run_rank_processes(&options, leave_at_once, NULL, results), STATUS_OK);
    for (int rank = 0; rank < 4; rank++)
        ck_assert_msg(results[rank].st == STATUS_OK, "rank %d: %s", rank, results[rank].message);
}
END_TEST

/* Where the kernel delays acknowledgements, most of these calls would take 40 ms without small
 * segments, which gloo/connect.cc finds out. */
static status time_80_kb(process_group *group, int rank, int world_size, void *arg)
{
    (void)rank;
    (void)world_size;
    (void)arg;
    enum { ROUNDS = 41, COUNT = 20000, MOST_MS = 20 };
    static _Thread_local float data[COUNT];
    int slow = 0;
    for (int i = 0; i < ROUNDS; i++) {
        int64_t start_ns = clock_now_ns();
        TRY(process_group_all_reduce(group, data, COUNT, DTYPE_F32, REDUCE_SUM, NULL));
        slow += clock_now_ns() - start_ns > (int64_t)MOST_MS * 1000000;
    }
    if (slow > ROUNDS / 3)
        return FAIL(STATUS_INVALID, "%d of %d calls took more than %d ms", slow, ROUNDS, MOST_MS);
    return STATUS_OK;
}

START_TEST(loopback_does_not_stall)
{
    if (_i == 1)
        setenv("MNIST_DDP_GLOO_CLAMP", "1", 1); /* this test's process only */
    ck_assert_int_eq(run(2, time_80_kb, NULL), STATUS_OK);
}
END_TEST

START_TEST(an_abort_ends_waits)
{
    ck_assert_int_eq(run(2 + _i, aborts_end_waits, NULL), STATUS_OK);
}
END_TEST

int main(void)
{
    const module *gloo = NULL;
#ifdef __SANITIZE_THREAD__
    printf("SKIP: libgloo is opaque to the thread sanitizer, which then sees races in it\n");
    return TEST_SKIPPED;
#endif
    if (module_open("gloo", &gloo) != STATUS_OK) {
        printf("SKIP: %s\n", status_text());
        return TEST_SKIPPED;
    }
    Suite *suite = suite_create("gloo");
    TCase *results = suite_case(suite, "results", 60);
    tcase_add_loop_test(results, all_reduce_is_exact, 0, 2 * N_WORLDS);
    tcase_add_loop_test(results, broadcast_is_exact, 0, N_WORLDS);
    tcase_add_loop_test(results, reduce_is_exact, 0, 2 * N_WORLDS);
    tcase_add_loop_test(results, further_kinds_are_exact, 0, N_WORLDS);
    tcase_add_loop_test(results, bytes_are_counted, 0, N_WORLDS);
    tcase_add_loop_test(results, bits_are_those_of_shm, 2, MOST_RANKS + 1);
    tcase_add_test(results, sends_pass_collectives);
    tcase_add_loop_test(results, loopback_does_not_stall, 0, 2);
    TCase *deaths = suite_case(suite, "deaths", 80);
    tcase_add_loop_test(deaths, a_killed_rank_is_named, 0, 3);
    tcase_add_loop_test(deaths, a_stopped_rank_is_a_timeout, 0, 2);
    tcase_add_test(deaths, different_sizes_are_a_failure);
    tcase_add_test(deaths, leaving_after_the_last_disturbs_nobody);
    tcase_add_loop_test(deaths, an_abort_ends_waits, 0, 2);
    return suite_run(suite);
}
