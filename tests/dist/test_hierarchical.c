/* The hierarchical backend, whose hosts are told: all ranks are on this machine. SKIP if the gloo
 * module is not built. */
#include "base/module.h"
#include "tests/support/aborts.h"
#include "tests/support/collectives.h"
#include "tests/support/deaths.h"
#include "tests/support/facts.h"
#include "tests/support/suite.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Even and not, one rank a host (that is gloo), one host, ranks that are not beside each other, up
 * to 8. */
static const char *const SHAPES[] = {"aabb", "aabc", "ab", "aa", "abab", "abb"};
static const char *const LARGE_SHAPES[] = {"aaaabbbb", "aabbccd", "aaabbb"};
enum {
    N_SHAPES = sizeof SHAPES / sizeof SHAPES[0],
    N_LARGE = sizeof LARGE_SHAPES / sizeof LARGE_SHAPES[0],
};

static ranks_options options_of(const char *hosts)
{
    return (ranks_options){.world_size = (int)strlen(hosts),
                           .backend = "hierarchical",
                           .hosts = hosts,
                           .shared_bytes = COLLECTIVES_SHARED_BYTES};
}

static status run(const char *hosts, rank_fn fn, void *arg)
{
    ranks_options options = options_of(hosts);
    return run_ranks_with(&options, fn, arg);
}

static status backend_is(process_group *group, int rank, int world_size, void *arg)
{
    (void)rank, (void)world_size;
    const char *found = process_group_backend(group), *want = arg;
    return strcmp(found, want) == 0 ? STATUS_OK
                                    : FAIL(STATUS_INVALID, "backend %s, not %s", found, want);
}

START_TEST(one_rank_a_host_is_gloo)
{
    ck_assert_int_eq(run("abc", backend_is, (char[]){"gloo"}), STATUS_OK);
    ck_assert_int_eq(run("abb", backend_is, (char[]){"hierarchical"}), STATUS_OK);
}
END_TEST

START_TEST(all_reduce_is_exact)
{
    memory_kind kind = _i % 2 == 0 ? MEMORY_MIXED : MEMORY_OUT_OF_PLACE;
    ck_assert_int_eq(run(SHAPES[_i / 2], collectives_all_reduce, &kind), STATUS_OK);
}
END_TEST

START_TEST(broadcast_is_exact)
{
    memory_kind kind = _i % 2 == 0 ? MEMORY_SYMMETRIC : MEMORY_PLAIN;
    ck_assert_int_eq(run(SHAPES[_i / 2], collectives_broadcast, &kind), STATUS_OK);
}
END_TEST

START_TEST(barrier_holds_everybody)
{
    _Atomic int entered = 0;
    ck_assert_int_eq(run(SHAPES[_i], collectives_barrier, &entered), STATUS_OK);
}
END_TEST

START_TEST(many_works_under_way)
{
    ck_assert_int_eq(run(SHAPES[_i], collectives_outstanding, NULL), STATUS_OK);
}
END_TEST

START_TEST(bits_are_the_same_everywhere)
{
    ck_assert_int_eq(run(SHAPES[_i], collectives_bits, NULL), STATUS_OK);
}
END_TEST

/* reduce to every root, all_gather, reduce_scatter, send and recv. */
START_TEST(further_kinds_are_exact)
{
    memory_kind kind = _i % 2 == 0 ? MEMORY_OUT_IN_HEAP : MEMORY_OUT_OF_PLACE;
    ck_assert_int_eq(run(SHAPES[_i], collectives_further, &kind), STATUS_OK);
}
END_TEST

static status tell_hosts(process_group *group, int rank, int world_size, void *arg)
{
    (void)world_size;
    if (rank == 0)
        *(uint64_t *)arg = process_group_hosts(group);
    return STATUS_OK;
}

/* So a run that goes on elsewhere knows whether its sums are the same. */
START_TEST(where_ranks_are_is_told_apart)
{
    static const char *const shapes[] = {"aabb", "aabb", "abab", "aaab", "aaaa"};
    uint64_t seen[5];
    for (int i = 0; i < 5; i++)
        ck_assert_int_eq(run(shapes[i], tell_hosts, &seen[i]), STATUS_OK);
    ck_assert_uint_eq(seen[0], seen[1]);
    for (int i = 1; i < 5; i++)
        for (int j = 1; j < i; j++)
            ck_assert_uint_ne(seen[i], seen[j]);
    ck_assert_uint_eq(seen[4], 0);
}
END_TEST

/* Of numbers whose sum depends on the order. */
static float fraction(int rank, size_t i)
{
    uint32_t x = (uint32_t)i * 2654435761u + (uint32_t)rank * 40503u + 1;
    x ^= x >> 15;
    x *= 2246822519u;
    return ((float)(x >> 8) / 16777216.0f - 0.5f) * (x % 3 == 0 ? 100.0f : 0.01f);
}

/* Each host's ranks in order, then the hosts in order. */
static float sum_by_hosts(const char *hosts, size_t i)
{
    float sum = 0;
    bool is_first_host = true;
    for (char host = 'a'; strchr(hosts, host) != NULL; host++) {
        float of_host = 0;
        bool is_first = true;
        for (int rank = 0; hosts[rank] != '\0'; rank++) {
            if (hosts[rank] != host)
                continue;
            of_host = is_first ? fraction(rank, i) : of_host + fraction(rank, i);
            is_first = false;
        }
        sum = is_first_host ? of_host : sum + of_host;
        is_first_host = false;
    }
    return sum;
}

/* Small, and large enough for all columns, in several chunks, the last of which does not divide. */
static status sum_in_order(process_group *group, int rank, int world_size, void *arg)
{
    static const size_t counts[] = {1, 1000, 900001};
    (void)world_size;
    float *data = malloc(900001 * sizeof *data);
    status st = data != NULL ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "test buffers");
    for (int n = 0; n < 3 && st == STATUS_OK; n++) {
        for (size_t i = 0; i < counts[n]; i++)
            data[i] = fraction(rank, i);
        st = process_group_all_reduce(group, data, counts[n], DTYPE_F32, REDUCE_SUM, NULL);
        for (size_t i = 0; i < counts[n] && st == STATUS_OK; i++) {
            float want = sum_by_hosts(arg, i);
            if (memcmp(&data[i], &want, sizeof want) != 0)
                st = FAIL(STATUS_INVALID, "%zu numbers: [%zu] is %a, want %a", counts[n], i,
                          (double)data[i], (double)want);
        }
    }
    free(data);
    return st;
}

START_TEST(sums_are_by_hosts)
{
    const char *hosts = SHAPES[_i];
    ck_assert_int_eq(run(hosts, sum_in_order, (void *)(uintptr_t)hosts), STATUS_OK);
}
END_TEST

START_TEST(large_shapes)
{
    memory_kind kind = MEMORY_SYMMETRIC;
    ck_assert_int_eq(run(LARGE_SHAPES[_i], collectives_all_reduce, &kind), STATUS_OK);
}
END_TEST

/* All others name the dead rank, also those that lost another one because of it. names: false if it
 * was alone on its host, and there are more than two: gloo does not know who it was. */
static void check_survivors(int dead, const rank_result *results, status want, bool names)
{
    char who[32];
    snprintf(who, sizeof who, "rank %d", dead);
    for (int rank = 0; rank < 4; rank++) {
        const rank_result *result = &results[rank];
        if (rank == dead)
            continue;
        ck_assert_msg(result->reported && result->st == want, "rank %d: %s: %s", rank,
                      status_name(result->st), result->message);
        if (names)
            ASSERT_FACTS(result->message, who);
        ck_assert_double_lt(result->seconds, 4);
    }
}

typedef struct killing {
    const char *hosts;
    int rank;
    bool is_named;
} killing;

START_TEST(a_killed_rank_is_named)
{
    static const killing killings[] = {
        {"aabb", 0, true}, {"aabb", 3, true}, {"aabc", 1, true}, {"aabc", 2, false}};
    const killing *k = &killings[_i];
    ranks_options options = options_of(k->hosts);
    rank_result results[4];
    death d = {.rank = k->rank, .signal = SIGKILL, .before = true};
    ck_assert_int_eq(run_rank_processes(&options, deaths_in_all_reduce, &d, results), STATUS_OK);
    check_survivors(k->rank, results, STATUS_PEER, k->is_named);
}
END_TEST

START_TEST(a_stopped_rank_is_named)
{
    ranks_options options = options_of("aabb");
    rank_result results[4];
    int stopped = _i == 0 ? 0 : 3;
    death d = {.rank = stopped, .signal = SIGSTOP, .before = true};
    options.timeout_ms = 700;
    ck_assert_int_eq(run_rank_processes(&options, deaths_in_all_reduce, &d, results), STATUS_OK);
    check_survivors(stopped, results, STATUS_TIMEOUT, true);
}
END_TEST

/* Rank 1 dies; rank 0, on its host, hears that first, and ranks 2 and 3 from rank 0. */
static status barrier_without_one(process_group *group, int rank, int world_size, void *arg)
{
    (void)world_size, (void)arg;
    TRY(process_group_barrier(group));
    if (rank == 1)
        raise(SIGKILL);
    return process_group_barrier(group);
}

START_TEST(nobody_passes_a_barrier_that_a_rank_has_given_up)
{
    ranks_options options = options_of("aabb");
    rank_result results[4];
    ck_assert_int_eq(run_rank_processes(&options, barrier_without_one, NULL, results), STATUS_OK);
    check_survivors(1, results, STATUS_PEER, true);
}
END_TEST

START_TEST(an_abort_ends_waits)
{
    ck_assert_int_eq(run(_i == 0 ? "aabb" : "aabc", aborts_end_waits, NULL), STATUS_OK);
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
    Suite *suite = suite_create("hierarchical");
    TCase *results = suite_case(suite, "results", 60);
    tcase_add_test(results, one_rank_a_host_is_gloo);
    tcase_add_loop_test(results, all_reduce_is_exact, 0, 2 * N_SHAPES);
    tcase_add_loop_test(results, broadcast_is_exact, 0, 2 * N_SHAPES);
    tcase_add_loop_test(results, barrier_holds_everybody, 0, N_SHAPES);
    tcase_add_loop_test(results, many_works_under_way, 0, N_SHAPES);
    tcase_add_loop_test(results, bits_are_the_same_everywhere, 0, N_SHAPES);
    tcase_add_loop_test(results, further_kinds_are_exact, 0, N_SHAPES);
    tcase_add_test(results, where_ranks_are_is_told_apart);
    tcase_add_loop_test(results, sums_are_by_hosts, 0, N_SHAPES);
    tcase_add_loop_test(results, large_shapes, 0, N_LARGE);
    TCase *deaths = suite_case(suite, "deaths", 80);
    tcase_add_loop_test(deaths, a_killed_rank_is_named, 0, 4);
    tcase_add_loop_test(deaths, a_stopped_rank_is_named, 0, 2);
    /* who hears of it first differs: without the mend every fourth fails */
    tcase_add_loop_test(deaths, nobody_passes_a_barrier_that_a_rank_has_given_up, 0, 10);
    tcase_add_loop_test(deaths, an_abort_ends_waits, 0, 2);
    return suite_run(suite);
}
