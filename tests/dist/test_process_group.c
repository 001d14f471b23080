/* What stands before every backend: arguments, one rank, agreement on a backend, the rule of the
 * broken group, order of waits, times and the injected delay. */
#include "base/clock.h"
#include "dist/store/store.h"
#include "tests/support/facts.h"
#include "tests/support/ranks.h"
#include "tests/support/suite.h"

#include <string.h>

static process_group *alone(const char *backend)
{
    process_group_options options = {
        .backend = backend, .world_size = 1, .timeout_ms = 1000, .shared_bytes = 1 << 20};
    process_group *group = NULL;
    ck_assert_int_eq(process_group_create(&options, &group), STATUS_OK);
    return group;
}

START_TEST(one_rank_copies_and_scales)
{
    process_group *group = alone("auto");
    float in[3] = {2, 4, 6}, out[3] = {0};
    work *w = NULL;
    int64_t elapsed_ns = -1;
    ck_assert_str_eq(process_group_backend(group), "none");
    ck_assert_int_eq(process_group_launch(group,
                                          &(collective){.kind = COLLECTIVE_ALL_REDUCE,
                                                        .in = in,
                                                        .out = out,
                                                        .count = 3,
                                                        .op = REDUCE_MAX,
                                                        .prescale = 0.5f},
                                          NULL, &w),
                     STATUS_OK);
    ck_assert_int_eq(process_group_wait(group, w, &elapsed_ns), STATUS_OK);
    ck_assert_int_ge(elapsed_ns, 0);
    for (int i = 0; i < 3; i++)
        ck_assert(out[i] * 2 <= in[i] && out[i] * 2 >= in[i]);
    ck_assert_int_eq(process_group_all_reduce(group, in, 3, DTYPE_F32, REDUCE_SUM, NULL),
                     STATUS_OK);
    ck_assert_int_eq(process_group_broadcast(group, in, 3, DTYPE_F32, 0, NULL), STATUS_OK);
    ck_assert_int_eq(process_group_barrier(group), STATUS_OK);
    ck_assert(in[2] <= 6 && in[2] >= 6);
    process_group_destroy(group);
}
END_TEST

START_TEST(memory_is_zeroed_aligned_and_bounded)
{
    process_group *group = alone("shm");
    unsigned char *memory = NULL;
    void *more = NULL;
    ck_assert_int_eq(process_group_alloc(group, 1000, (void **)&memory), STATUS_OK);
    ck_assert_uint_eq((uintptr_t)memory % 64, 0);
    for (int i = 0; i < 1000; i++)
        ck_assert_uint_eq(memory[i], 0);
    ck_assert_int_eq(process_group_alloc(group, 1 << 20, &more), STATUS_NO_MEMORY);
    ASSERT_FACTS(status_text(), "shared_bytes");
    ck_assert_int_eq(process_group_alloc(group, (1 << 20) - 1000, &more), STATUS_OK);
    process_group_destroy(group);
    process_group_destroy(NULL);
}
END_TEST

START_TEST(arguments_are_checked)
{
    process_group *group = alone("shm");
    int64_t data[2] = {1, 2};
    work *w = NULL;
    ck_assert_int_eq(process_group_all_reduce(group, NULL, 2, DTYPE_I64, REDUCE_SUM, NULL),
                     STATUS_INVALID);
    ck_assert_int_eq(process_group_broadcast(group, data, 2, DTYPE_I64, 1, NULL), STATUS_INVALID);
    ck_assert_int_eq(process_group_broadcast(group, data, 2, DTYPE_I64, -1, NULL), STATUS_INVALID);
    ck_assert_int_eq(
        process_group_all_reduce(group, data, SIZE_MAX / 4, DTYPE_I64, REDUCE_SUM, NULL),
        STATUS_INVALID);
    ck_assert_int_eq(process_group_launch(group,
                                          &(collective){.kind = COLLECTIVE_ALL_REDUCE,
                                                        .in = data,
                                                        .out = data,
                                                        .count = 2,
                                                        .type = DTYPE_I64,
                                                        .prescale = 0.5f},
                                          NULL, &w),
                     STATUS_INVALID);
    ck_assert_int_eq(process_group_launch(group,
                                          &(collective){.kind = COLLECTIVE_ALL_REDUCE,
                                                        .in = data,
                                                        .out = data,
                                                        .count = 2,
                                                        .type = DTYPE_I64},
                                          (device_stream *)data, &w),
                     STATUS_INVALID);
    /* A refused call is none: the group is well. */
    ck_assert_int_eq(process_group_all_reduce(group, NULL, 0, DTYPE_I64, REDUCE_SUM, NULL),
                     STATUS_OK);
    process_group_destroy(group);
}
END_TEST

static const struct {
    const char *backend;
    int rank, world_size;
    int64_t timeout_ms;
    const char *fact;
} BAD_OPTIONS[] = {
    {"smh", 0, 1, 1000, "auto, shm, gloo, nccl"},
    {"nccl", 0, 1, 1000, "shm"},
    {NULL, 0, 1, 1000, "auto, shm, gloo, nccl"},
    {"shm", 1, 1, 1000, "rank 1"},
    {"shm", -1, 2, 1000, "rank -1"},
    {"shm", 0, 0, 1000, "world_size 0"},
    {"shm", 0, 1, 0, "timeout"},
    {"shm", 0, 2, 1000, "store"},
};
enum { N_BAD_OPTIONS = sizeof BAD_OPTIONS / sizeof BAD_OPTIONS[0] };

START_TEST(bad_options_are_named)
{
    process_group_options options = {.backend = BAD_OPTIONS[_i].backend,
                                     .rank = BAD_OPTIONS[_i].rank,
                                     .world_size = BAD_OPTIONS[_i].world_size,
                                     .timeout_ms = BAD_OPTIONS[_i].timeout_ms};
    process_group *group = NULL;
    ck_assert_int_eq(process_group_create(&options, &group), STATUS_INVALID);
    ck_assert_ptr_null(group);
    ASSERT_FACTS(status_text(), BAD_OPTIONS[_i].fact);
}
END_TEST

static status expect_shm(process_group *group, int rank, int world_size, void *arg)
{
    (void)rank;
    (void)world_size;
    (void)arg;
    if (strcmp(process_group_backend(group), "shm") != 0)
        return FAIL(STATUS_INVALID, "backend is %s", process_group_backend(group));
    return process_group_barrier(group);
}

START_TEST(auto_is_shm_on_one_host)
{
    ranks_options options = {.world_size = 3, .backend = "auto"};
    ck_assert_int_eq(run_ranks_with(&options, expect_shm, NULL), STATUS_OK);
}
END_TEST

START_TEST(disagreement_is_named_on_all_ranks)
{
    ranks_options options = {.world_size = 2, .backend = "shm", .odd_backend = "gloo"};
    ck_assert_int_eq(run_ranks_with(&options, expect_shm, NULL), STATUS_INVALID);
    ASSERT_FACTS(status_text(), "rank 1", "gloo", "rank 0", "shm");
}
END_TEST

/* Rank 0 of two, and nobody else comes. */
START_TEST(a_missing_rank_is_named)
{
    store_server *server = NULL;
    ck_assert_int_eq(store_server_create("127.0.0.1", 0, &server), STATUS_OK);
    store_options keys = {.host = "127.0.0.1",
                          .port = store_server_port(server),
                          .prefix = "test/",
                          .timeout_ms = 5000,
                          .connect_timeout_ms = 5000,
                          .describe = ""};
    process_group_options options = {.backend = "shm", .world_size = 2, .timeout_ms = 300};
    process_group *group = NULL;
    ck_assert_int_eq(store_create(&keys, &options.store), STATUS_OK);
    int64_t start_ns = clock_now_ns();
    ck_assert_int_eq(process_group_create(&options, &group), STATUS_TIMEOUT);
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 2);
    ASSERT_FACTS(status_text(), "rank 1");
    store_destroy(options.store);
    store_server_destroy(server);
}
END_TEST

/* Ranks that issue different collectives are told so, and their groups are broken for good. */
static status mismatch(process_group *group, int rank, int world_size, void *arg)
{
    (void)world_size;
    (void)arg;
    float data[10] = {0};
    TRY(process_group_all_reduce(group, data, 10, DTYPE_F32, REDUCE_SUM, NULL));
    status st =
        process_group_all_reduce(group, data, rank == 1 ? 9 : 10, DTYPE_F32, REDUCE_SUM, NULL);
    if (st != STATUS_INVALID || !facts_in_a_line(status_text(), "all_reduce #2", NULL))
        return FAIL(STATUS_IO, "status %s: %s", status_name(st), status_text());
    char place[64];
    snprintf(place, sizeof place, "%s", status_location());
    for (int again = 0; again < 2; again++) {
        st = process_group_barrier(group);
        if (strcmp(status_location(), place) != 0)
            return FAIL(STATUS_IO, "at %s, not at %s", status_location(), place);
        if (st != STATUS_INVALID ||
            !facts_in_a_line(status_text(), "broken", "all_reduce #2", NULL))
            return FAIL(STATUS_IO, "then %s: %s", status_name(st), status_text());
    }
    return STATUS_OK;
}

START_TEST(a_mismatch_breaks_the_group)
{
    ck_assert_int_eq(run_ranks(3, mismatch, NULL), STATUS_OK);
}
END_TEST

static status wait_in_wrong_order(process_group *group, int rank, int world_size, void *arg)
{
    (void)rank;
    (void)world_size;
    (void)arg;
    float data[2] = {1, 1};
    work *first = NULL, *second = NULL;
    TRY(process_group_launch(
        group,
        &(collective){.kind = COLLECTIVE_ALL_REDUCE, .in = &data[0], .out = &data[0], .count = 1},
        NULL, &first));
    TRY(process_group_launch(
        group,
        &(collective){.kind = COLLECTIVE_ALL_REDUCE, .in = &data[1], .out = &data[1], .count = 1},
        NULL, &second));
    if (process_group_barrier(group) != STATUS_INVALID)
        return FAIL(STATUS_IO, "a blocking call among works was let through");
    if (process_group_wait(group, second, NULL) != STATUS_INVALID)
        return FAIL(STATUS_IO, "the second work could be waited for first");
    if (process_group_wait(group, first, NULL) != STATUS_INVALID)
        return FAIL(STATUS_IO, "the group is not broken");
    return STATUS_OK;
}

START_TEST(waits_come_in_the_order_of_launch)
{
    ck_assert_int_eq(run_ranks(2, wait_in_wrong_order, NULL), STATUS_OK);
}
END_TEST

/* Two works of 5 ms on a wire that carries one at a time, after 8 ms of the caller's own: 10 ms of
 * communication, of which some 2 ms are left to wait for. */
static status delayed(process_group *group, int rank, int world_size, void *arg)
{
    (void)rank;
    (void)world_size;
    (void)arg;
    float data[2] = {1, 2};
    work *works[2];
    int64_t elapsed_ns[2], start_ns = clock_now_ns();
    for (int i = 0; i < 2; i++)
        TRY(process_group_launch(
            group,
            &(collective){
                .kind = COLLECTIVE_ALL_REDUCE, .in = &data[i], .out = &data[i], .count = 1},
            NULL, &works[i]));
    int64_t launched_ns = clock_now_ns() - start_ns;
    int64_t busy_until = start_ns + 8000000;
    while (clock_now_ns() < busy_until) {
    }
    int64_t wait_ns = clock_now_ns();
    for (int i = 0; i < 2; i++)
        TRY(process_group_wait(group, works[i], &elapsed_ns[i]));
    int64_t end_ns = clock_now_ns(), exposed_ns = end_ns - wait_ns;
    if (elapsed_ns[0] < 5000000 || elapsed_ns[1] + launched_ns < 10000000 ||
        end_ns - start_ns < 10000000)
        return FAIL(STATUS_INVALID, "done after %lld and %lld ns, want 5 and 10 ms",
                    (long long)elapsed_ns[0], (long long)elapsed_ns[1]);
    if (data[0] < 2 || data[1] < 4)
        return FAIL(STATUS_INVALID, "the sums are wrong");
    if (exposed_ns >= 10000000)
        return FAIL(STATUS_TIMEOUT, "%lld ns exposed: nothing was hidden", (long long)exposed_ns);
    return STATUS_OK;
}

/* Beside other work a rank may wake late, but not each time: the best counts. */
START_TEST(an_injected_delay_runs_beside_the_caller)
{
    ranks_options options = {.world_size = 2, .inject_delay_ms = 5};
    status st = STATUS_TIMEOUT;
    for (int i = 0; i < 25 && st == STATUS_TIMEOUT; i++)
        st = run_ranks_with(&options, delayed, NULL);
    ck_assert_int_eq(st, STATUS_OK);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("process_group");
    TCase *core = suite_case(suite, "core", 30);
    tcase_add_test(core, one_rank_copies_and_scales);
    tcase_add_test(core, memory_is_zeroed_aligned_and_bounded);
    tcase_add_test(core, arguments_are_checked);
    tcase_add_loop_test(core, bad_options_are_named, 0, N_BAD_OPTIONS);
    tcase_add_test(core, auto_is_shm_on_one_host);
    tcase_add_test(core, disagreement_is_named_on_all_ranks);
    tcase_add_test(core, a_missing_rank_is_named);
    tcase_add_test(core, a_mismatch_breaks_the_group);
    tcase_add_test(core, waits_come_in_the_order_of_launch);
    tcase_add_test(core, an_injected_delay_runs_beside_the_caller);
    return suite_run(suite);
}
