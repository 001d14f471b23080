/* Parts of a trace on their way through the store: long ones, and such that lie. */
#include "app/trace/run_trace.h"
#include "base/file.h"
#include "tests/app/support/test_folder.h"

#include <jansson.h>
#include <string.h>
#include <sys/resource.h>

static store_server *server;
static store *client;
static char path[FILE_PATH_BYTES];

static void start(void)
{
    store_options how = {.host = "127.0.0.1", .timeout_ms = 1000, .connect_timeout_ms = 2000};
    ck_assert_int_eq(store_server_create("127.0.0.1", 0, &server), STATUS_OK);
    how.port = store_server_port(server);
    ck_assert_int_eq(store_create(&how, &client), STATUS_OK);
    snprintf(path, sizeof path, "%s/trace.json", test_folder);
}

static void stop(void)
{
    store_destroy(client);
    store_server_destroy(server);
}

static trace_gathering of_rank(int rank)
{
    return (trace_gathering){.path = path,
                             .shared = client,
                             .rank = rank,
                             .world_size = 2,
                             .ending = TRACE_DONE,
                             .wait_ms = 1000};
}

static size_t events_in_file(void)
{
    json_error_t error;
    json_t *file = json_load_file(path, 0, &error);
    ck_assert_msg(file != NULL, "%s", error.text);
    size_t n = json_array_size(json_object_get(file, "traceEvents"));
    json_decref(file);
    return n;
}

START_TEST(long_parts_come_whole)
{
    enum { EVENTS = 500000 }; /* 10 MiB: three pieces */
    char *events = malloc((size_t)EVENTS * 24), *at = events;
    int parts = 0;
    for (int i = 0; i < EVENTS; i++)
        at += sprintf(at, "%s{\"event\":%9d}", i > 0 ? ",\n" : "", i);
    for (int rank = 1; rank >= 0; rank--) {
        const trace_gathering g = of_rank(rank);
        ck_assert_msg(trace_gather(&g, "{}", events, &parts) == STATUS_OK, "%s", status_text());
    }
    ck_assert_int_eq(parts, 2);
    ck_assert_uint_eq(events_in_file(), 2 * EVENTS);
    free(events);
}
END_TEST

static void set_text(const char *key, const char *text)
{
    ck_assert_int_eq(store_set(client, key, text, strlen(text)), STATUS_OK);
}

static const char *const LIES[][2] = {
    {"{\"about\":{},\"pieces\":1000000000}", "{}"},
    {"{\"about\":{},\"pieces\":-1}", "{}"},
    {"{\"about\":{},\"bytes\":4294967296}", "{}"},
    {"{\"about\":[],\"pieces\":1}", "{}"},
    {"{\"about\":{},\"pieces\":1}", "1],\"otherData\":[2"},
    {"{\"about\":{},\"pieces\":1}", "{"},
    {"{\"about\":{},\"pieces\":2}", "{}"}, /* the second one never comes */
    {"nonsense", "{}"},
};

/* The file is whole without that part, and no memory follows what was only said. */
START_TEST(lies_leave_the_other_parts)
{
    const trace_gathering g = of_rank(0);
    struct rusage before, after;
    int parts = 0;
    set_text("trace/1", LIES[_i][0]);
    set_text("trace/1/0", LIES[_i][1]);
    getrusage(RUSAGE_SELF, &before);
    ck_assert_msg(trace_gather(&g, "{}", "{\"a\":1}", &parts) == STATUS_OK, "%s", status_text());
    getrusage(RUSAGE_SELF, &after);
    ck_assert_int_eq(parts, 1);
    ck_assert_uint_eq(events_in_file(), 1);
    ck_assert_int_le(after.ru_maxrss - before.ru_maxrss, 64 << 10);
}
END_TEST

/* All there, and well formed. */
START_TEST(too_many_pieces_are_left_out)
{
    enum { MANY = 65 };
    const trace_gathering g = of_rank(0);
    char key[32];
    int parts = 0;
    for (int i = 0; i < MANY; i++) {
        snprintf(key, sizeof key, "trace/1/%d", i);
        set_text(key, "{}");
    }
    set_text("trace/1", "{\"about\":{},\"pieces\":65}");
    ck_assert_int_eq(trace_gather(&g, "{}", "{\"a\":1}", &parts), STATUS_OK);
    ck_assert_int_eq(parts, 1);
}
END_TEST

/* Well formed, and longer than any piece of ours. */
START_TEST(a_piece_that_is_too_long_is_left_out)
{
    enum { LONG = 5 << 20 };
    const trace_gathering g = of_rank(0);
    char *piece = malloc(LONG + 1);
    int parts = 0;
    memset(piece, ' ', LONG);
    memcpy(piece, "{}", 2);
    piece[LONG] = '\0';
    set_text("trace/1", "{\"about\":{},\"pieces\":1}");
    set_text("trace/1/0", piece);
    free(piece);
    ck_assert_int_eq(trace_gather(&g, "{}", "{\"a\":1}", &parts), STATUS_OK);
    ck_assert_int_eq(parts, 1);
    ck_assert_uint_eq(events_in_file(), 1);
}
END_TEST

int main(void)
{
    test_folder_open();
    Suite *suite = suite_create("trace_gather");
    TCase *core = suite_case(suite, "core", 60);
    tcase_add_checked_fixture(core, start, stop);
    tcase_add_test(core, long_parts_come_whole);
    tcase_add_loop_test(core, lies_leave_the_other_parts, 0, sizeof LIES / sizeof LIES[0]);
    tcase_add_test(core, too_many_pieces_are_left_out);
    tcase_add_test(core, a_piece_that_is_too_long_is_left_out);
    return test_folder_close(suite_run(suite));
}
