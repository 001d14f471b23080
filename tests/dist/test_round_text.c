/* What lies at the service of an elastic job, as text: there and back, and what is no such text. */
#include "dist/elastic/rdzv_ops.h"
#include "tests/support/facts.h"
#include "tests/support/suite.h"

#include <string.h>

#define NODE \
    "\"id\":\"a_1_1\",\"nproc\":2,\"address\":\"h\",\"port\":5,\"waits\":true," \
    "\"round\":3,\"restarts\":1"
#define STATE \
    "\"format\":2,\"over\":false,\"closed\":false,\"well\":false,\"restarts\":0,\"reason\":\"\"," \
    "\"absences\":[]"

START_TEST(a_state_and_a_record_come_back)
{
    char lost[2][ROUND_ID_BYTES] = {"b_2_2", "c_3_3"};
    round_node node = {.id = "a_1_1",
                       .nproc = 8,
                       .address = "10.0.0.1",
                       .port = 65535,
                       .waits = true,
                       .round = 7,
                       .restarts = 2,
                       .unmet = true,
                       .lost = lost,
                       .n_lost = 2};
    round_node members[2] = {
        {.id = "a_1_1", .nproc = 8, .port = 5, .order = 4},
        {.id = "b_2_2", .nproc = 1, .port = 6, .order = 9},
    };
    round_state state = {.round = 7,
                         .over = true,
                         .ending = ROUND_WELL,
                         .restarts = 2,
                         .reason = "node 1 (b) is lost",
                         .members = members,
                         .n = 2,
                         .absences = &(round_absence){.id = "c_3_3", .times = 2},
                         .n_absences = 1};
    rdzv_record record = {.id = node.id, .order = 11};
    rdzv_view text = {.state_revision = 5, .nodes = &record, .n = 1};
    round_view view;
    ck_assert_int_eq(round_text_of_state(&state, &text.state), STATUS_OK);
    text.state_bytes = strlen(text.state);
    ck_assert_int_eq(round_text_of_node(&node, &record.value), STATUS_OK);
    ck_assert_int_eq(round_text_read(&text, &view), STATUS_OK);
    ck_assert_int_eq(view.state.round, 7);
    ck_assert(view.state.over && !view.state.closed && view.state.ending == ROUND_WELL);
    ck_assert_str_eq(view.state.reason, "node 1 (b) is lost");
    ck_assert_int_eq(view.state.n, 2);
    ck_assert_int_eq(view.state.n_absences, 1);
    ck_assert_str_eq(view.state.absences[0].id, "c_3_3");
    ck_assert_int_eq(view.state.absences[0].times, 2);
    ck_assert(view.nodes[0].unmet);
    ck_assert_str_eq(view.state.members[1].id, "b_2_2");
    ck_assert_int_eq(view.state.members[1].order, 9);
    ck_assert_int_eq(view.nodes[0].order, 11);
    ck_assert_int_eq(view.nodes[0].nproc, 8);
    ck_assert_int_eq(view.nodes[0].port, 65535);
    ck_assert_int_eq(view.nodes[0].n_lost, 2);
    ck_assert_str_eq(view.nodes[0].lost[1], "c_3_3");
    round_view_free(&view);
    free(text.state);
    free(record.value);
}
END_TEST

/* A state, or else a node's record. */
static const struct {
    const char *state, *node, *facts;
} nonsense[] = {
    {"", NULL, "not JSON"},
    {"[]", NULL, "\"format\""},
    {"{\"format\":1}", NULL, "another version"},
    {"{" STATE ",\"round\":-1,\"members\":[]}", NULL, "\"round\" is no number from"},
    {"{" STATE ",\"round\":1.5,\"members\":[]}", NULL, "\"round\" is no number from"},
    {"{" STATE ",\"round\":1,\"round\":2,\"members\":[]}", NULL, "duplicate"},
    {"{" STATE ",\"round\":1,\"members\":[]}", NULL, "round 1 has 0 nodes"},
    {"{" STATE ",\"round\":1,\"members\":7}", NULL, "\"members\" is no list"},
    {"{" STATE ",\"round\":1,\"members\":[null]}", NULL, "\"id\" is no text"},
    {"{" STATE ",\"round\":1,\"members\":[{" NODE ",\"order\":1},{" NODE ",\"order\":2}]}", NULL,
     "a_1_1 is in it twice"},
    {NULL, "{" NODE ",\"lost\":[],\"unmet\":false}", "\"format\""},
    {NULL, "{\"format\":2," NODE "}", "\"lost\" is no list"},
    {NULL, "{\"format\":2," NODE ",\"lost\":[3]}", "\"lost\" is no text"},
    {NULL, "{\"format\":2,\"id\":\"b_1_1\"}", "\"nproc\" is no number"},
    {NULL, "{\"format\":2,\"id\":\"\"}", "\"nproc\""},
    {NULL, "{\"format\":1," NODE ",\"lost\":[],\"unmet\":false}", "another version"},
};

START_TEST(nonsense_is_named)
{
    char id[] = "a_1_1", state[2000], node[2000];
    rdzv_record record = {.id = id, .value = node, .order = 1};
    rdzv_view text = {.nodes = &record};
    round_view view;
    if (nonsense[_i].state != NULL) {
        snprintf(state, sizeof state, "%s", nonsense[_i].state);
        text.state = state;
        text.state_bytes = strlen(state);
    }
    if (nonsense[_i].node != NULL) {
        snprintf(node, sizeof node, "%s", nonsense[_i].node);
        text.n = 1;
    }
    bool is_node = text.n > 0; /* without it all others can be read */
    ck_assert_int_eq(round_text_read(&text, &view), is_node ? STATUS_OK : STATUS_PEER);
    ASSERT_FACTS(status_text(), nonsense[_i].facts, "the rendezvous'");
    if (!is_node)
        return;
    ck_assert_int_eq(view.n, 0);
    round_view_free(&view);
}
END_TEST

/* A record under another node's key. */
START_TEST(a_record_is_its_nodes_own)
{
    char id[] = "b_2_2", node[] = "{\"format\":2," NODE ",\"lost\":[],\"unmet\":false}";
    rdzv_record record = {.id = id, .value = node, .order = 1};
    round_view view;
    ck_assert_int_eq(round_text_read(&(rdzv_view){.nodes = &record, .n = 1}, &view), STATUS_OK);
    ck_assert_int_eq(view.n, 0);
    ASSERT_FACTS(status_text(), "b_2_2", "says that it is a_1_1");
    round_view_free(&view);
}
END_TEST

/* Who waits while a round runs that leaves it out hears that, not that room is made. */
START_TEST(a_waiting_node_hears_why)
{
    const round_rules rules = {.min = 1, .max = 3};
    round_node nodes[2] = {{.id = "a_1_1", .nproc = 1, .round = 3},
                           {.id = "b_2_2", .nproc = 1, .waits = true, .left_out = _i == 0}};
    round_view view = {.nodes = nodes, .n = 2, .state = {.round = 3, .members = nodes, .n = 1}};
    char text[300];
    round_quorum_text(&rules, &view, text, sizeof text);
    ASSERT_FACTS(text, "round 3", "1 node");
    ck_assert_int_eq(strstr(text, "b (1 rank; left out") != NULL, _i == 0);
    ck_assert_int_eq(strstr(text, "to make room") != NULL, _i == 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("round_text");
    TCase *core = suite_case(suite, "core", 20);
    tcase_add_test(core, a_state_and_a_record_come_back);
    tcase_add_loop_test(core, nonsense_is_named, 0, sizeof nonsense / sizeof nonsense[0]);
    tcase_add_test(core, a_record_is_its_nodes_own);
    tcase_add_loop_test(core, a_waiting_node_hears_why, 0, 2);
    return suite_run(suite);
}
