/* The barrier through the store: who is missing, on every rank, and a group that works on. */
#include "base/clock.h"
#include "dist/backends/local/backend_local.h"
#include "tests/support/facts.h"
#include "tests/support/ranks.h"
#include "tests/support/suite.h"

#include <stdatomic.h>

enum { MISSING_MS = 300, LATE_MS = 600, WORLD = 5 };

static const char *const BACKENDS[] = {"shm", "gloo"};

/* Nobody passes before all have come; arg: an _Atomic int. */
static status pass_many(process_group *group, int rank, int world_size, void *arg)
{
    _Atomic int *entered = arg;
    for (int round = 1; round <= 2 * world_size; round++) {
        if (round % world_size == rank)
            clock_sleep_ms(5);
        atomic_fetch_add(entered, 1);
        TRY(process_group_monitored_barrier(group, 5000));
        int seen = atomic_load(entered);
        if (seen < round * world_size)
            return FAIL(STATUS_IO, "barrier %d passed when %d of %d had come", round, seen,
                        round * world_size);
        TRY(process_group_monitored_barrier(group, 5000));
    }
    return STATUS_OK;
}

START_TEST(it_waits_for_all)
{
    _Atomic int entered = 0;
    ck_assert_int_eq(run_ranks(_i, pass_many, &entered), STATUS_OK);
}
END_TEST

/* Ranks 1 and 3 come when the others have given up. */
static status miss_two(process_group *group, int rank, int world_size, void *arg)
{
    float data[3] = {1, 1, 1};
    (void)arg;
    bool is_late = rank == 1 || rank == 3;
    int64_t start_ns = clock_now_ns();
    TRY(process_group_monitored_barrier(group, 5000));
    if (is_late)
        clock_sleep_ms(LATE_MS);
    status st = process_group_monitored_barrier(group, MISSING_MS);
    if (st != STATUS_TIMEOUT ||
        !facts_in_a_line(status_text(), "ranks 1 and 3", "monitored barrier #2", NULL))
        return FAIL(STATUS_IO, "status %s: %s", status_name(st), status_text());
    double seconds = clock_seconds(clock_now_ns() - start_ns);
    if (!is_late && (seconds < 0.25 || seconds > 2))
        return FAIL(STATUS_IO, "the failure came after %.2f s", seconds);
    TRY(process_group_check(group));
    TRY(process_group_all_reduce(group, data, 3, DTYPE_F32, REDUCE_SUM, NULL));
    if (data[2] < (float)world_size)
        return FAIL(STATUS_IO, "the sum is %g", (double)data[2]);
    return process_group_monitored_barrier(group, 5000);
}

START_TEST(all_that_are_missing_are_named)
{
    ranks_options options = {.world_size = WORLD, .backend = BACKENDS[_i]};
    ck_assert_int_eq(run_ranks_with(&options, miss_two, NULL), STATUS_OK);
}
END_TEST

static status miss_one(process_group *group, int rank, int world_size, void *arg)
{
    (void)arg;
    if (rank == world_size - 1)
        clock_sleep_ms(LATE_MS);
    status st = process_group_monitored_barrier(group, MISSING_MS);
    if (st != STATUS_TIMEOUT || !facts_in_a_line(status_text(), "rank 2 has", NULL))
        return FAIL(STATUS_IO, "status %s: %s", status_name(st), status_text());
    return STATUS_OK;
}

START_TEST(one_that_is_missing_is_named)
{
    ck_assert_int_eq(run_ranks(3, miss_one, NULL), STATUS_OK);
}
END_TEST

START_TEST(without_a_store_there_is_none)
{
    local_hub *hub = NULL;
    process_group *group = NULL;
    ck_assert_int_eq(local_hub_create(2, &hub), STATUS_OK);
    process_group_options options = {
        .backend = "local", .world_size = 2, .timeout_ms = 100, .hub = hub};
    ck_assert_int_eq(process_group_create(&options, &group), STATUS_OK);
    ck_assert_int_eq(process_group_monitored_barrier(group, 1000), STATUS_INVALID);
    ASSERT_FACTS(status_text(), "local", "store");
    ck_assert_int_eq(process_group_monitored_barrier(group, 0), STATUS_INVALID);
    process_group_destroy(group);
    local_hub_destroy(hub);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("monitored_barrier");
    TCase *core = suite_case(suite, "core", 30);
    tcase_add_loop_test(core, it_waits_for_all, 1, 5);
    suite_add(core, all_that_are_missing_are_named, 0, NULL);
    suite_add(core, all_that_are_missing_are_named, 1, ranks_lack_backend(BACKENDS[1]));
    tcase_add_test(core, one_that_is_missing_is_named);
    tcase_add_test(core, without_a_store_there_is_none);
    return suite_run(suite);
}
