/* mnist_ddp demo: what goes from rank to rank, against what is computed here. */
#include "tests/app/support/demo_run.h"
#include "tests/app/support/test_folder.h"
#include "tests/support/facts.h"
#include "tests/support/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *text_at(const json_t *document, int frame, int row, int column)
{
    const char *text = json_string_value(demo_run_cell(document, frame, row, column));
    ck_assert_ptr_nonnull(text);
    return text;
}

/* Rank r is number r / 2 of the group of those that are as even as it is. */
START_TEST(groups_number_and_add_up_their_ranks)
{
    int n = _i;
    char line[64];
    snprintf(line, sizeof line, "groups --nproc-per-node=%d", n);
    json_t *document = demo_run(line);
    for (int rank = 0; rank < n; rank++) {
        double sum = 0;
        char place[32];
        int size = (n + 1 - rank % 2) / 2;
        for (int other = rank % 2; other < n; other += 2) {
            double power = 1;
            for (int i = 0; i < other; i++)
                power *= 10;
            sum += power;
        }
        snprintf(place, sizeof place, "rank %d of %d", rank / 2, size);
        ck_assert_str_eq(text_at(document, 0, rank, 1 + rank % 2), place);
        ck_assert_str_eq(text_at(document, 0, rank, 2 - rank % 2), "-");
        ck_assert_double_eq(json_number_value(demo_run_cell(document, 1, rank, 2)), sum);
        ck_assert_double_eq(json_number_value(demo_run_cell(document, 2, rank, 1)), rank % 2);
    }
    json_decref(document);
}
END_TEST

START_TEST(a_store_waits_counts_and_chooses)
{
    enum { N = 4 };
    bool came[N + 1] = {false};
    json_t *document = demo_run("store --nproc-per-node=4");
    for (int rank = 0; rank < N; rank++) {
        ck_assert_int_ge(atoi(text_at(document, 1, rank, 3)), 300); /* until rank 0 has set it */
        ck_assert_str_eq(text_at(document, 1, rank, 4), rank == 0 ? "" : "first_value");
        ck_assert_int_ge(atoi(text_at(document, 2, rank, 3)), 500);
        ck_assert_str_eq(text_at(document, 2, rank, 4), "timed out");
        json_int_t number = json_integer_value(demo_run_cell(document, 3, rank, 1));
        ck_assert(number >= 1 && number <= N && !came[number]);
        came[number] = true;
        ck_assert_int_eq(json_integer_value(demo_run_cell(document, 3, rank, 2)), N);
        ck_assert_str_eq(text_at(document, 4, rank, 2), text_at(document, 4, 0, 2));
    }
    int leader = text_at(document, 4, 0, 2)[strlen("rank ")] - '0';
    ck_assert(leader >= 0 && leader < N);
    char *said = demo_run_text(document, 2);
    ASSERT_FACTS(said, "nobody set", "second_key", "0.5 s");
    free(said);
    json_decref(document);
}
END_TEST

/* When a send ends: on shm a small one before its recv begins. What both ranks send first. */
START_TEST(a_large_send_waits_for_its_recv)
{
    enum { SMALL = 1, LARGE, EXCHANGE_LARGE = 5, SEND = 0, RECV = 1, BEGINS = 2, ENDS = 3 };
    json_t *document = NULL;
    bool at_once = false; /* a busy machine may hold the sender for longer than 100 ms */
    for (int i = 0; i < 3 && !at_once; i++) {
        json_decref(document);
        document = demo_run("p2p --backend=shm");
        at_once = atof(text_at(document, SMALL, SEND, ENDS)) <
                  atof(text_at(document, SMALL, RECV, BEGINS));
    }
    ck_assert(at_once);
    ck_assert_double_ge(atof(text_at(document, LARGE, SEND, ENDS)), 100);
    ck_assert_double_eq(demo_run_fact(document, "exchanged_bytes"), 1 << 10);
    ck_assert_double_eq(demo_run_fact(document, "deadlock_bytes"), 4 << 20);
    for (int rank = 0; rank < 2; rank++)
        ASSERT_FACTS(text_at(document, EXCHANGE_LARGE, rank, 2), "failed");
    char *said = demo_run_text(document, EXCHANGE_LARGE);
    ASSERT_FACTS(said, "send #1", "rank 0", "waited", "rank 1");
    free(said);
    ASSERT_FACTS(text_at(document, -1, 1, 2), "done");
    json_decref(document);
}
END_TEST

START_TEST(calls_return_values_and_failures)
{
    json_t *document = demo_run("rpc --nproc-per-node=4");
    ck_assert_double_eq(json_number_value(demo_run_cell(document, 0, 0, 2)), 4);
    double all_ms = demo_run_fact(document, "futures_ms"); /* not 100 + 200 + 300 */
    ck_assert_msg(all_ms >= 299 && all_ms < 590, "%g ms", all_ms);
    ck_assert_double_eq(json_number_value(demo_run_cell(document, 2, 2, 2)), 8000);
    ASSERT_FACTS(text_at(document, 3, 0, 1), "rank 1", "1 cannot be divided by 0");
    ASSERT_FACTS(text_at(document, 3, 1, 1), "no such function");
    json_decref(document);
}
END_TEST

/* Who is ahead waits, if there is a bound; the rule's own test is app.staleness. */
START_TEST(a_bound_holds_fast_trainers_back)
{
    json_t *document = demo_run("async-ps");
    double most = demo_run_fact(document, "most_bounded");
    int waits[2] = {0, 0};
    ck_assert_msg(most >= 1 && most <= 6, "%g", most);
    for (int row = 0; row < 18; row++) /* six pushes of each of three trainers */
        for (int frame = 1; frame <= 2; frame++)
            waits[frame - 1] += strchr(text_at(document, frame, row, 5), 'w') != NULL;
    ck_assert(waits[0] == 0 && waits[1] > 0);
    json_decref(document);
}
END_TEST

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("demo_messages");
    TCase *core = suite_case(suite, "core", 2.0 * RUN_S);
    tcase_add_checked_fixture(core, test_folder_clean, NULL);
    tcase_add_loop_test(core, groups_number_and_add_up_their_ranks, 2, 6);
    tcase_add_test(core, a_store_waits_counts_and_chooses);
    tcase_add_test(core, a_large_send_waits_for_its_recv);
    tcase_add_test(core, calls_return_values_and_failures);
    tcase_add_test(core, a_bound_holds_fast_trainers_back);
    return test_folder_close(suite_run(suite));
}
