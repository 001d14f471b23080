/* The shm backend: exact results for every world size and kind of memory, dead and silent peers. */
#include "base/clock.h"
#include "dist/collective/collective.h"
#include "tests/support/aborts.h"
#include "tests/support/collectives.h"
#include "tests/support/deaths.h"
#include "tests/support/exchange_cases.h"
#include "tests/support/facts.h"
#include "tests/support/suite.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { MAX_WORLD = 5 };

static status run(int world_size, rank_fn fn, void *arg)
{
    ranks_options options = {.world_size = world_size, .shared_bytes = COLLECTIVES_SHARED_BYTES};
    return run_ranks_with(&options, fn, arg);
}

START_TEST(all_reduce_is_exact)
{
    memory_kind kind = (memory_kind)(_i % MEMORY_HOST_KINDS);
    ck_assert_int_eq(run(1 + _i / MEMORY_HOST_KINDS, collectives_all_reduce, &kind), STATUS_OK);
}
END_TEST

START_TEST(broadcast_is_exact)
{
    memory_kind kind = (memory_kind)(_i % MEMORY_HOST_KINDS);
    ck_assert_int_eq(run(1 + _i / MEMORY_HOST_KINDS, collectives_broadcast, &kind), STATUS_OK);
}
END_TEST

START_TEST(reduce_is_exact)
{
    memory_kind kind = (memory_kind)(_i % MEMORY_HOST_KINDS);
    ck_assert_int_eq(run(1 + _i / MEMORY_HOST_KINDS, collectives_reduce, &kind), STATUS_OK);
}
END_TEST

START_TEST(bytes_are_counted)
{
    ck_assert_int_eq(run(_i, collectives_traffic, NULL), STATUS_OK);
}
END_TEST

/* The order is fixed by rank: large values cancel in one order only. */
static status sums_in_rank_order(process_group *group, int rank, int world_size, void *arg)
{
    (void)arg;
    static const float values[] = {1e8f, 3.0f, -1e8f, 5.0f, 0.25f};
    float data[40];
    for (int i = 0; i < 40; i++)
        data[i] = values[rank];
    volatile float want = values[0];
    for (int r = 1; r < world_size; r++)
        want = want + values[r];
    TRY(process_group_all_reduce(group, data, 40, DTYPE_F32, REDUCE_SUM, NULL));
    for (int i = 0; i < 40; i++)
        if (data[i] < want || data[i] > want)
            return FAIL(STATUS_INVALID, "[%d] is %g, want %g", i, (double)data[i], (double)want);
    return STATUS_OK;
}

START_TEST(sums_go_by_rank)
{
    ck_assert_int_eq(run(_i, sums_in_rank_order, NULL), STATUS_OK);
}
END_TEST

enum { FEW = 24, MANY_SMALL = 400 };

/* Numbers that travel in the announcement, up to 96 bytes and so in its annex, too. All are
 * launched ahead: the last rank looks at the first ones when the others have long got what they
 * could. */
static status sums_few(process_group *group, int rank, int world_size, void *arg)
{
    (void)arg;
    static const float values[] = {1e8f, 3.0f, -1e8f, 5.0f, 0.25f};
    float data[MANY_SMALL][FEW];
    work *works[MANY_SMALL];
    volatile float want = values[0];
    for (int r = 1; r < world_size; r++)
        want = want + values[r];
    for (int k = 0; k < MANY_SMALL; k++) {
        for (int i = 0; i < FEW; i++)
            data[k][i] = values[rank] * (float)(1 << k % 8);
        TRY(process_group_launch(group,
                                 &(collective){.kind = COLLECTIVE_ALL_REDUCE,
                                               .in = data[k],
                                               .out = data[k],
                                               .count = (size_t)(1 + k % FEW)},
                                 NULL, &works[k]));
    }
    if (rank == world_size - 1)
        clock_sleep_ms(20);
    for (int k = 0; k < MANY_SMALL; k++)
        TRY(process_group_wait(group, works[k], NULL));
    for (int k = 0; k < MANY_SMALL; k++)
        for (int i = 0; i < FEW; i++) {
            float factor = (float)(1 << k % 8), found = data[k][i];
            float right = (i <= k % FEW ? want : values[rank]) * factor;
            if (found < right || found > right)
                return FAIL(STATUS_INVALID, "%d[%d] is %g, want %g", k, i, (double)found,
                            (double)right);
        }
    return STATUS_OK;
}

START_TEST(small_sums_do_not_overtake)
{
    ck_assert_int_eq(run(_i, sums_few, NULL), STATUS_OK);
}
END_TEST

enum { LATE_TIMES = 40, LATE_MS = 3 };

/* The others sleep when the last rank comes. Nobody who looks in time is to wait for the end of a
 * slice of sleep. */
static status come_late(process_group *group, int rank, int world_size, void *arg)
{
    (void)arg;
    int64_t began_ns = clock_now_ns();
    for (int i = 0; i < LATE_TIMES; i++) {
        if (rank == i % world_size)
            clock_sleep_ms(LATE_MS);
        TRY(process_group_barrier(group));
    }
    int64_t each_ms = (clock_now_ns() - began_ns) / 1000000 / LATE_TIMES;
    return each_ms < 25 ? STATUS_OK
                        : FAIL(STATUS_INVALID, "a barrier took %lld ms", (long long)each_ms);
}

START_TEST(the_last_to_come_wakes_the_others)
{
    ck_assert_int_eq(run(_i, come_late, NULL), STATUS_OK);
}
END_TEST

/* Ranks of a job are processes; results are the same. */
START_TEST(processes_agree)
{
    ranks_options options = {.world_size = 3, .shared_bytes = COLLECTIVES_SHARED_BYTES};
    memory_kind kind = (memory_kind)_i;
    rank_result results[3];
    ck_assert_int_eq(run_rank_processes(&options, collectives_all_reduce, &kind, results),
                     STATUS_OK);
    for (int rank = 0; rank < 3; rank++)
        ck_assert_msg(results[rank].reported && results[rank].st == STATUS_OK, "rank %d: %s", rank,
                      results[rank].message);
}
END_TEST

/* Whoever notices first closes its group, and the others may learn it from there. */
static void run_death(death d)
{
    ranks_options options = {.world_size = 3, .timeout_ms = 10000};
    rank_result results[3];
    char who[32];
    snprintf(who, sizeof who, "rank %d", d.rank);
    ck_assert_int_eq(run_rank_processes(&options, deaths_in_all_reduce, &d, results), STATUS_OK);
    for (int rank = 0; rank < 3; rank++) {
        const rank_result *result = &results[rank];
        if (rank == d.rank)
            continue;
        ck_assert_msg(result->reported && result->st == STATUS_PEER, "rank %d: %s: %s", rank,
                      status_name(result->st), result->message);
        ASSERT_FACTS(result->message, "all_reduce #4", who, "pid");
        ck_assert_double_lt(result->seconds, 2);
    }
}

START_TEST(a_killed_rank_is_named)
{
    run_death((death){.rank = _i, .signal = SIGKILL});
}
END_TEST

START_TEST(a_stopped_rank_is_a_timeout)
{
    ranks_options options = {.world_size = 2, .timeout_ms = 500};
    rank_result results[2];
    death d = {.rank = _i, .signal = SIGSTOP};
    ck_assert_int_eq(run_rank_processes(&options, deaths_in_all_reduce, &d, results), STATUS_OK);
    const rank_result *other = &results[1 - _i];
    ck_assert_int_eq(other->st, STATUS_TIMEOUT);
    ASSERT_FACTS(other->message, _i == 0 ? "rank 0" : "rank 1", "pid");
    ck_assert_double_gt(other->seconds, 0.4);
    ck_assert_double_lt(other->seconds, 2);
}
END_TEST

/* Rank 0 gives up first, and rank 2 learns it from there before its own deadline. */
START_TEST(a_stopped_rank_is_a_timeout_for_all)
{
    ranks_options options = {.world_size = 3, .timeout_ms = 500};
    rank_result results[3];
    death d = {.rank = 1, .signal = SIGSTOP, .late_rank = 2};
    ck_assert_int_eq(run_rank_processes(&options, deaths_in_all_reduce, &d, results), STATUS_OK);
    for (int rank = 0; rank < 3; rank += 2) {
        ck_assert_msg(results[rank].st == STATUS_TIMEOUT, "rank %d: %s", rank,
                      results[rank].message);
        ASSERT_FACTS(results[rank].message, "rank 1", "pid");
    }
}
END_TEST

START_TEST(a_rank_that_leaves_is_named)
{
    run_death((death){.rank = _i});
}
END_TEST

/* Rank 1 ends, is stopped or leaves before its part of a message of many bytes with rank 0; rank 2
 * has no part in it. */
static status loses_its_peer(process_group *group, int rank, int world_size, void *arg)
{
    enum { COUNT = 1 << 20 };
    static unsigned char data[COUNT];
    const death *d = arg;
    (void)world_size;
    TRY(process_group_barrier(group));
    if (rank == 1 && d->signal != 0)
        raise(d->signal);
    if (rank != 0)
        return STATUS_OK;
    return d->late_rank != 0 ? process_group_send(group, data, COUNT, DTYPE_U8, 1, NULL)
                             : process_group_recv(group, data, COUNT, DTYPE_U8, 1, NULL);
}

START_TEST(a_lost_peer_of_a_message_is_named)
{
    static const int signals[] = {SIGKILL, SIGSTOP, 0};
    int signal = signals[_i / 2];
    death d = {.signal = signal, .late_rank = _i % 2};
    ranks_options options = {.world_size = 3, .timeout_ms = signal == SIGSTOP ? 500 : 10000};
    rank_result results[3];
    ck_assert_int_eq(run_rank_processes(&options, loses_its_peer, &d, results), STATUS_OK);
    ck_assert_int_eq(results[0].st, signal == SIGSTOP ? STATUS_TIMEOUT : STATUS_PEER);
    ASSERT_FACTS(results[0].message, "rank 1", "pid", _i % 2 != 0 ? "send" : "recv");
    ck_assert_double_lt(results[0].seconds, 2);
}
END_TEST

/* Ranks that leave after the last collective, at any pace, disturb nobody. */
static status leave_at_once(process_group *group, int rank, int world_size, void *arg)
{
    (void)rank;
    (void)world_size;
    float data[64] = {0};
    if (*(const int *)arg % 3 == 0)
        return process_group_all_reduce(group, data, 64, DTYPE_F32, REDUCE_SUM, NULL);
    if (*(const int *)arg % 3 == 1)
        return process_group_broadcast(group, data, 64, DTYPE_F32, world_size - 1, NULL);
    return process_group_barrier(group);
}

START_TEST(leaving_after_the_last_disturbs_nobody)
{
    ck_assert_int_eq(run(4, leave_at_once, &_i), STATUS_OK);
}
END_TEST

START_TEST(an_abort_ends_waits)
{
    ck_assert_int_eq(run_ranks(2 + _i, aborts_end_waits, NULL), STATUS_OK);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shm");
    TCase *results = suite_case(suite, "results", 60);
    tcase_add_loop_test(results, all_reduce_is_exact, 0, MAX_WORLD * MEMORY_HOST_KINDS);
    tcase_add_loop_test(results, broadcast_is_exact, 0, MAX_WORLD * MEMORY_HOST_KINDS);
    tcase_add_loop_test(results, reduce_is_exact, 0, MAX_WORLD * MEMORY_HOST_KINDS);
    tcase_add_loop_test(results, bytes_are_counted, 1, MAX_WORLD + 1);
    tcase_add_loop_test(results, sums_go_by_rank, 1, MAX_WORLD + 1);
    tcase_add_loop_test(results, the_last_to_come_wakes_the_others, 2, 5);
    tcase_add_loop_test(results, small_sums_do_not_overtake, 1, MAX_WORLD + 1);
    tcase_add_loop_test(results, processes_agree, 0, MEMORY_HOST_KINDS);
    TCase *deaths = suite_case(suite, "deaths", 80);
    tcase_add_loop_test(deaths, a_killed_rank_is_named, 0, 3);
    tcase_add_loop_test(deaths, a_stopped_rank_is_a_timeout, 0, 2);
    tcase_add_test(deaths, a_stopped_rank_is_a_timeout_for_all);
    tcase_add_loop_test(deaths, a_rank_that_leaves_is_named, 0, 3);
    tcase_add_loop_test(deaths, a_lost_peer_of_a_message_is_named, 0, 6);
    tcase_add_loop_test(deaths, leaving_after_the_last_disturbs_nobody, 0, 12);
    tcase_add_loop_test(deaths, an_abort_ends_waits, 0, 2);
    exchange_cases_add(suite, "shm");
    return suite_run(suite);
}
