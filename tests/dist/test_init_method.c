/* --init-method: the three forms and what is no such form; what flags, query and environment say of
 * rank and world size together. */
#include "dist/rendezvous.h"
#include "tests/support/facts.h"
#include "tests/support/suite.h"

#include <string.h>

START_TEST(the_three_methods)
{
    init_method method;
    ck_assert_int_eq(init_method_parse("env://", &method), STATUS_OK);
    ck_assert_int_eq(method.kind, INIT_METHOD_ENV);
    ck_assert_int_eq(method.rank, -1);
    ck_assert_int_eq(method.world_size, -1);
    ck_assert_int_eq(init_method_parse("tcp://node0:1234?rank=3&world_size=4", &method), STATUS_OK);
    ck_assert_int_eq(method.kind, INIT_METHOD_TCP);
    ck_assert_str_eq(method.host, "node0");
    ck_assert_int_eq(method.port, 1234);
    ck_assert_int_eq(method.rank, 3);
    ck_assert_int_eq(method.world_size, 4);
    ck_assert_int_eq(init_method_parse("tcp://[::1]:1?world_size=2", &method), STATUS_OK);
    ck_assert_str_eq(method.host, "::1");
    ck_assert_int_eq(method.port, 1);
    ck_assert_int_eq(method.rank, -1);
    ck_assert_int_eq(init_method_parse("file:///tmp/a b?rank=0&world_size=1", &method), STATUS_OK);
    ck_assert_int_eq(method.kind, INIT_METHOD_FILE);
    ck_assert_str_eq(method.path, "/tmp/a b");
    ck_assert_int_eq(method.rank, 0);
}
END_TEST

static const struct {
    const char *text, *facts[4];
} WRONG[] = {
    {"", {"tcp://HOST:PORT", "file:///PATH"}},
    {"tcp", {"tcp://HOST:PORT"}},
    {"http://a:1", {"http://a:1", "env://", "tcp://HOST:PORT"}},
    {"tcp://a", {"tcp://a", "port"}},
    {"tcp://a:0", {"port 0"}},
    {"tcp://a:65536", {"65535"}},
    {"tcp://:1234", {"HOST:PORT"}},
    {"tcp://[::1", {"]"}},
    {"file://tmp/a", {"file://tmp/a", "file:///PATH"}},
    {"file://", {"file:///PATH"}},
    {"env://a", {"env://"}},
    {"env://?rank=x", {"rank=x", "whole number"}},
    {"env://?rank=-1", {"rank=-1"}},
    {"env://?world_size=0", {"world_size=0"}},
    {"env://?size=2", {"size=2", "world_size=N"}},
    {"env://?rank", {"rank"}},
    {"env://?rank=0&world_size=2&rank=1", {"rank=1", "once"}},
};

START_TEST(mistakes_are_named)
{
    init_method method = {.rank = 17};
    ck_assert_int_eq(init_method_parse(WRONG[_i].text, &method), STATUS_INVALID);
    ASSERT_FACTS(status_text(), "--init-method");
    ASSERT_FACTS_LISTED(status_text(), WRONG[_i].facts);
    ck_assert_int_eq(method.rank, 17);
}
END_TEST

START_TEST(long_texts_are_refused)
{
    char text[3000] = "file:///";
    init_method method;
    memset(text + 8, 'a', sizeof text - 9);
    text[sizeof text - 1] = '\0';
    ck_assert_int_eq(init_method_parse(text, &method), STATUS_INVALID);
    text[INIT_METHOD_PATH_BYTES + 10] = '\0'; /* a little too long */
    ck_assert_int_eq(init_method_parse(text, &method), STATUS_INVALID);
    memset(text, '?', sizeof text - 1);
    memcpy(text, "env://?", 7);
    ck_assert_int_eq(init_method_parse(text, &method), STATUS_INVALID);
}
END_TEST

static void clear_environment(void)
{
    static const char *const names[] = {"RANK",        "WORLD_SIZE",       "LOCAL_RANK",
                                        "MASTER_ADDR", "LOCAL_WORLD_SIZE", "MASTER_PORT",
                                        "GROUP_RANK",  "NODE_RANK",        "TORCHELASTIC_RUN_ID"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unsetenv(names[i]);
}

START_TEST(flags_and_query_name_the_place)
{
    rendezvous_place place;
    bool found = false;
    rendezvous_request asked = {"tcp://127.0.0.1:1234", 1, 2, NULL};
    clear_environment();
    ck_assert_msg(rendezvous_place_read(&asked, &place, &found) == STATUS_OK, "%s", status_text());
    ck_assert(found);
    ck_assert_int_eq(place.rank, 1);
    ck_assert_int_eq(place.world_size, 2);
    ck_assert_int_eq(place.local_rank, 1);
    ck_assert_str_eq(place.master_addr, "127.0.0.1");
    ck_assert_int_eq(place.master_port, 1234);
    ck_assert_str_eq(place.init_file, "");
    asked = (rendezvous_request){"file:///tmp/f?rank=2&world_size=3", -1, -1, "10.0.0.1"};
    ck_assert_int_eq(rendezvous_place_read(&asked, &place, &found), STATUS_OK);
    ck_assert_int_eq(place.rank, 2);
    ck_assert_int_eq(place.local_rank, 2);
    ck_assert_str_eq(place.init_file, "/tmp/f");
    ck_assert_str_eq(place.master_addr, "10.0.0.1");
    /* What a launcher has set fills in the rest, and may say the same twice. */
    setenv("RANK", "1", 1);
    setenv("WORLD_SIZE", "2", 1);
    setenv("LOCAL_RANK", "0", 1);
    asked = (rendezvous_request){"tcp://a:1", -1, 2, NULL};
    ck_assert_int_eq(rendezvous_place_read(&asked, &place, &found), STATUS_OK);
    ck_assert_int_eq(place.rank, 1);
    ck_assert_int_eq(place.local_rank, 0);
    setenv("MASTER_ADDR", "b", 1);
    setenv("MASTER_PORT", "5", 1);
    asked = (rendezvous_request){"env://?rank=1", 1, -1, NULL};
    ck_assert_int_eq(rendezvous_place_read(&asked, &place, &found), STATUS_OK);
    ck_assert_str_eq(place.master_addr, "b");
}
END_TEST

START_TEST(env_alone_names_no_rank)
{
    rendezvous_place place;
    bool found = true;
    rendezvous_request asked = {"env://", -1, 2, NULL}; /* --world-size is a launcher's then */
    clear_environment();
    ck_assert_int_eq(rendezvous_place_read(&asked, &place, &found), STATUS_OK);
    ck_assert(!found);
}
END_TEST

/* RANK and WORLD_SIZE are 1 and 2 if `variables`. */
static const struct {
    rendezvous_request asked;
    bool variables;
    const char *facts[5];
} CONTRADICTIONS[] = {
    {{"tcp://a:1", 0, 2, NULL}, true, {"rank", "0", "RANK=1"}},
    {{"tcp://a:1", 1, 3, NULL}, true, {"world_size", "3", "WORLD_SIZE=2"}},
    {{"tcp://a:1?rank=1&world_size=2", 0, 2, NULL}, false, {"--rank=0", "rank=1"}},
    {{"tcp://a:1?rank=1&world_size=2", 1, 3, NULL}, false, {"--world-size=3", "world_size=2"}},
    {{"tcp://a:1", 2, 2, NULL}, false, {"RANK", "2", "0..1"}},
    {{"tcp://a:1", -1, 2, NULL}, false, {"RANK", "--rank=R"}},
    {{"file:///a", 0, -1, NULL}, false, {"WORLD_SIZE", "--world-size=N"}},
    {{"env://?world_size=2", -1, -1, NULL}, false, {"RANK", "not set"}},
    {{"env://", 0, 2, NULL}, false, {"MASTER_ADDR", "not set"}},
};

START_TEST(contradictions_are_named)
{
    rendezvous_place place = {.rank = 17};
    bool found = false;
    clear_environment();
    if (CONTRADICTIONS[_i].variables) {
        setenv("RANK", "1", 1);
        setenv("WORLD_SIZE", "2", 1);
    }
    ck_assert_int_eq(rendezvous_place_read(&CONTRADICTIONS[_i].asked, &place, &found),
                     STATUS_INVALID);
    ASSERT_FACTS_LISTED(status_text(), CONTRADICTIONS[_i].facts);
    ck_assert_int_eq(place.rank, 17);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("init_method");
    TCase *core = suite_case(suite, "core", 10);
    tcase_add_test(core, the_three_methods);
    tcase_add_loop_test(core, mistakes_are_named, 0, (int)(sizeof WRONG / sizeof WRONG[0]));
    tcase_add_test(core, long_texts_are_refused);
    tcase_add_test(core, flags_and_query_name_the_place);
    tcase_add_test(core, env_alone_names_no_rank);
    tcase_add_loop_test(core, contradictions_are_named, 0,
                        (int)(sizeof CONTRADICTIONS / sizeof CONTRADICTIONS[0]));
    return suite_run(suite);
}
