/* What the agent of a node and an elastic rank say to each other: each message arrives as it was
 * sent; an end that is gone, full or talks nonsense is told from one that is silent. */
#include "app/common/elastic_link.h"
#include "app/train/agent_link.h"
#include "tests/support/facts.h"
#include "tests/support/suite.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int ends[2];

static void open_link(void)
{
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
}

static void close_link(void)
{
    close(ends[0]);
    if (ends[1] >= 0)
        close(ends[1]);
}

static const elastic_message MESSAGES[] = {
    {.word = ELASTIC_PAUSE, .round = 3},
    {.word = ELASTIC_LEAVE, .round = 4},
    {.word = ELASTIC_LEFT, .round = 4, .step = -1},
    {.word = ELASTIC_LEFT, .round = 5, .step = INT64_C(81200000000), .unmet = true},
    {.word = ELASTIC_JOIN,
     .round = 6,
     .place = {.round = 6,
               .rank = 5,
               .world_size = 7,
               .local_rank = 1,
               .local_world_size = 2,
               .node_rank = 2,
               .nnodes = 3,
               .restarts = 1,
               .master_addr = "2001:db8::1",
               .master_port = 29500}},
};
enum { N_MESSAGES = sizeof MESSAGES / sizeof MESSAGES[0] };

START_TEST(a_message_arrives_as_it_was_sent)
{
    const elastic_message *sent = &MESSAGES[_i];
    elastic_message got;
    bool came = true;
    ck_assert_int_eq(elastic_link_receive(ends[1], &got, &came), STATUS_OK);
    ck_assert(!came);
    ck_assert_int_eq(elastic_link_send(ends[0], sent), STATUS_OK);
    ck_assert_int_eq(elastic_link_receive(ends[1], &got, &came), STATUS_OK);
    ck_assert(came);
    ck_assert_int_eq(got.word, sent->word);
    ck_assert_int_eq(got.round, sent->round);
    ck_assert_int_eq(got.step, sent->step);
    ck_assert(got.unmet == sent->unmet);
    ck_assert_int_eq(memcmp(&got.place, &sent->place, sizeof got.place), 0);
}
END_TEST

START_TEST(an_end_that_is_gone_is_told)
{
    elastic_message got;
    bool came = true;
    ck_assert_int_eq(elastic_link_send(ends[1], &MESSAGES[0]), STATUS_OK);
    close(ends[1]);
    ends[1] = -1;
    ck_assert_int_eq(elastic_link_receive(ends[0], &got, &came), STATUS_OK);
    ck_assert(came); /* what it has said before still counts */
    ck_assert_int_eq(elastic_link_receive(ends[0], &got, &came), STATUS_PEER);
    ck_assert(!came);
    ck_assert_int_eq(elastic_link_send(ends[0], &MESSAGES[0]), STATUS_PEER);
}
END_TEST

START_TEST(an_end_that_does_not_read_does_not_block)
{
    status st = STATUS_OK;
    for (int i = 0; i < 100000 && st == STATUS_OK; i++)
        st = elastic_link_send(ends[0], &MESSAGES[1]);
    ck_assert_int_eq(st, STATUS_PEER);
}
END_TEST

static const char *const NONSENSE[] = {
    "x",
    "{}",
    "[3]",
    "{\"pause\": -1}",
    "{\"pause\": \"3\"}",
    "{\"left\": 3}",
    "{\"left\": 3, \"step\": -2}",
    "{\"join\": 3}",
    "{\"join\": {\"round\": 3}}",
    "{\"join\": {\"round\": 3, \"rank\": 2, \"world_size\": 2, \"local_rank\": 0, "
    "\"local_world_size\": 1, \"node_rank\": 0, \"nnodes\": 1, \"restarts\": 0, "
    "\"master_addr\": \"h\", \"master_port\": 1}}",
};
enum { N_NONSENSE = sizeof NONSENSE / sizeof NONSENSE[0] };

START_TEST(nonsense_is_refused)
{
    elastic_message got;
    bool came = true;
    ck_assert_int_gt(send(ends[0], NONSENSE[_i], strlen(NONSENSE[_i]), 0), 0);
    ck_assert_int_eq(elastic_link_receive(ends[1], &got, &came), STATUS_INVALID);
    ck_assert(!came);
}
END_TEST

START_TEST(a_packet_that_is_too_long_is_refused)
{
    char text[5000];
    elastic_message got;
    bool came = true;
    memset(text, ' ', sizeof text);
    memcpy(text, "{\"pause\": 3}", 12);
    ck_assert_int_gt(send(ends[0], text, sizeof text, 0), 0);
    ck_assert_int_eq(elastic_link_receive(ends[1], &got, &came), STATUS_INVALID);
    ck_assert(!came);
}
END_TEST

/* As the rank, whose round begins there. */
START_TEST(a_rank_takes_all_of_its_next_place)
{
    const elastic_place *want = &MESSAGES[N_MESSAGES - 1].place;
    char text[16];
    round_fence *fence = NULL;
    agent_link *link = NULL;
    atomic_int no_signal = 0;
    rendezvous_place got = {.master_addr = "another", .run_id = "stays"};
    ck_assert_int_eq(round_fence_create(&fence), STATUS_OK);
    snprintf(text, sizeof text, "%d", dup(round_fence_fd(fence)));
    setenv(ROUND_FENCE_VARIABLE, text, 1);
    snprintf(text, sizeof text, "%d", ends[1]);
    setenv(ELASTIC_FD_VARIABLE, text, 1);
    ck_assert_int_eq(agent_link_open(&link), STATUS_OK);
    ck_assert_int_eq(elastic_link_send(ends[0], &MESSAGES[N_MESSAGES - 1]), STATUS_OK);
    ck_assert_int_eq(agent_link_await_join(link, &no_signal, &got), STATUS_OK);
    ck_assert(got.round == want->round && got.restart_count == want->restarts);
    ck_assert(got.rank == want->rank && got.world_size == want->world_size);
    ck_assert(got.local_rank == want->local_rank && got.node_rank == want->node_rank);
    ck_assert_int_eq(got.local_world_size, want->local_world_size);
    ck_assert_str_eq(got.master_addr, want->master_addr);
    ck_assert_int_eq(got.master_port, want->master_port);
    ck_assert_str_eq(got.run_id, "stays");
    agent_link_close(link);
    ends[1] = -1;
    round_fence_close(fence);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("elastic_link");
    TCase *all = suite_case(suite, "link", 10);
    tcase_add_checked_fixture(all, open_link, close_link);
    tcase_add_loop_test(all, a_message_arrives_as_it_was_sent, 0, N_MESSAGES);
    tcase_add_test(all, an_end_that_is_gone_is_told);
    tcase_add_test(all, an_end_that_does_not_read_does_not_block);
    tcase_add_loop_test(all, nonsense_is_refused, 0, N_NONSENSE);
    tcase_add_test(all, a_packet_that_is_too_long_is_refused);
    tcase_add_test(all, a_rank_takes_all_of_its_next_place);
    return suite_run(suite);
}
