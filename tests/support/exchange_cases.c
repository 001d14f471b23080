#include "tests/support/exchange_cases.h"

#include "tests/support/exchanges.h"
#include "tests/support/suite.h"

/* Also more ranks than the table of operations and backends has in its short form. */
static const int WORLDS[] = {1, 2, 3, 8};

enum { N_WORLDS = sizeof WORLDS / sizeof WORLDS[0] };

static const char *backend_of_suite;

static status run(int world_size, rank_fn fn, void *arg)
{
    ranks_options options = {.world_size = world_size,
                             .backend = backend_of_suite,
                             .shared_bytes = EXCHANGES_SHARED_BYTES};
    return run_ranks_with(&options, fn, arg);
}

START_TEST(rows_are_exact)
{
    memory_kind kind = (memory_kind)(_i % MEMORY_HOST_KINDS);
    int world_size = WORLDS[_i / MEMORY_HOST_KINDS];
    ck_assert_int_eq(run(world_size, exchanges_rows, &kind), STATUS_OK);
}
END_TEST

START_TEST(messages_come_in_any_order)
{
    ck_assert_int_eq(run(WORLDS[_i], exchanges_any_order, NULL), STATUS_OK);
}
END_TEST

START_TEST(messages_come_by_tag)
{
    ck_assert_int_eq(run(WORLDS[_i], exchanges_by_tag, NULL), STATUS_OK);
}
END_TEST

START_TEST(a_message_that_fits_needs_no_receiver)
{
    size_t size_bytes = (size_t)_i * 20000;
    ck_assert_int_eq(run(3, exchanges_send_first, &size_bytes), STATUS_OK);
}
END_TEST

START_TEST(messages_move_while_collectives_wait)
{
    ck_assert_int_eq(run(WORLDS[_i], exchanges_beside_collectives, NULL), STATUS_OK);
}
END_TEST

START_TEST(sub_groups_are_groups)
{
    ck_assert_int_eq(run(WORLDS[_i], exchanges_in_sub_groups, NULL), STATUS_OK);
}
END_TEST

void exchange_cases_add(Suite *suite, const char *backend)
{
    TCase *exchanges = suite_case(suite, "exchanges", 60);
    backend_of_suite = backend;
    tcase_add_loop_test(exchanges, rows_are_exact, 0, N_WORLDS * MEMORY_HOST_KINDS);
    tcase_add_loop_test(exchanges, messages_come_in_any_order, 1, N_WORLDS);
    tcase_add_loop_test(exchanges, messages_come_by_tag, 1, N_WORLDS);
    tcase_add_loop_test(exchanges, a_message_that_fits_needs_no_receiver, 0, 3);
    tcase_add_loop_test(exchanges, messages_move_while_collectives_wait, 0, N_WORLDS);
    tcase_add_loop_test(exchanges, sub_groups_are_groups, 0, N_WORLDS);
}
