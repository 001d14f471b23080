/* A rendezvous by etcd whose endpoint is none: who is there is named, and no call takes long. */
#include "base/clock.h"
#include "base/digest.h"
#include "base/module.h"
#include "dist/elastic/rdzv.h"
#include "dist/store/store.h"
#include "tests/support/facts.h"
#include "tests/support/liar.h"
#include "tests/support/rendezvous_phase.h"
#include "tests/support/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TTL_MS = 1000, TIMEOUT_MS = 1000, LONG_MS = 10000 };

static const rdzv_ops *const ops = &rdzv_etcd;

static void ok(status st)
{
    ck_assert_msg(st == STATUS_OK, "%s: %s", status_name(st), status_text());
}

static status open_at(const char *endpoints, void **self)
{
    const rdzv_service_options options = {.endpoints = endpoints,
                                          .run_id = "job",
                                          .node_id = "a",
                                          .ttl_ms = TTL_MS,
                                          .timeout_ms = TIMEOUT_MS};
    return ops->open(&options, self);
}

static void *client_at(const char *endpoints)
{
    void *self = NULL;
    ok(open_at(endpoints, &self));
    return self;
}

#define HTTP(code, body) "HTTP/1.1 " code "\r\nContent-Type: text/plain\r\n\r\n" body
#define HEADER "\"header\":{\"cluster_id\":\"1\",\"revision\":\"5\"}"

typedef struct lie_row {
    const char *words, *version;
    status want;
    const char *facts[5];
} lie_row;

static const lie_row LIES[] = {
    {HTTP("404 Not Found", "<html>no page"), NULL, STATUS_INVALID, {"not etcd", "404", "<html>no"}},
    {HTTP("404 Not Found", "404 page not found"),
     HTTP("200 OK", "{\"etcdserver\":\"3.3.27\",\"etcdcluster\":\"3.3.0\"}"),
     STATUS_INVALID,
     {"3.3.27", "/v3", "3.4"}},
    {HTTP("400 Bad Request", "Client sent an HTTP request to an HTTPS server."),
     NULL,
     STATUS_INVALID,
     {"400", "to an HTTPS server"}},
    {HTTP("301 Moved", ""), NULL, STATUS_INVALID, {"not etcd", "301"}},
    {HTTP("200 OK", "hello \x1b[31m"), NULL, STATUS_INVALID, {"not etcd", "hello \\x1b"}},
    {HTTP("200 OK", ""), NULL, STATUS_INVALID, {"not etcd"}},
    {HTTP("200 OK", "[]"), NULL, STATUS_INVALID, {"not etcd"}},
    {HTTP("200 OK", "{}"), NULL, STATUS_INVALID, {"not etcd"}},
    {HTTP("200 OK", "{" HEADER "," HEADER "}"), NULL, STATUS_INVALID, {"not etcd"}},
    {HTTP("200 OK", "{\"header\":{\"cluster_id\":\"1\"}}"), NULL, STATUS_INVALID, {"etcd's v3"}},
    {HTTP("200 OK", "{\"header\":{\"cluster_id\":\"1\",\"revision\":\"5x\"}}"),
     NULL,
     STATUS_INVALID,
     {"etcd's v3"}},
    {HTTP("200 OK", "{\"header\":{\"cluster_id\":\"1\",\"revision\":\"99999999999999999999\"}}"),
     NULL,
     STATUS_INVALID,
     {"etcd's v3"}},
    {HTTP("200 OK", "{" HEADER ",\"kvs\":[{\"key\":\"*\"}]}"),
     NULL,
     STATUS_INVALID,
     {"etcd's v3", "kv/range"}},
    {HTTP("200 OK", "{" HEADER ",\"kvs\":[7,{\"key\":7}]}"), NULL, STATUS_INVALID, {"etcd's v3"}},
    {HTTP("200 OK", "{" HEADER ",\"kvs\":[{\"key\":\"AAAA\",\"value\":\"A\"}]}"),
     NULL,
     STATUS_INVALID,
     {"etcd's v3"}},
    {HTTP("401 Unauthorized", "{\"code\":16,\"message\":\"etcdserver: invalid auth token\"}"),
     NULL,
     STATUS_INVALID,
     {"etcd", "kv/range", "invalid auth token"}},
    {HTTP("503 Unavailable", "{\"code\":14,\"message\":\"etcdserver: no leader\"}"),
     NULL,
     STATUS_PEER,
     {"etcd", "no leader"}},
    {HTTP("501 Not Implemented", "<!DOCTYPE"), NULL, STATUS_INVALID, {"not etcd", "501"}},
    {HTTP("502 Bad Gateway", "<html>"), NULL, STATUS_PEER, {"etcd", "502"}},
    {"", NULL, STATUS_PEER, {"etcd", "Empty reply", "there etcd?"}},
    {"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", NULL, STATUS_PEER, {"etcd"}},
    {"garbage\n", NULL, STATUS_INVALID, {"etcd", "HTTP/0.9"}},
    {NULL, NULL, STATUS_TIMEOUT, {"etcd", "timed out"}},
};

START_TEST(what_is_no_etcd_is_named)
{
    const lie_row *row = &LIES[_i];
    char endpoint[32], name[32];
    liar l;
    rdzv_view view;
    bool set = false;
    liar_start(&l, row->words, row->version);
    snprintf(endpoint, sizeof endpoint, "http://127.0.0.1:%d/", l.port);
    snprintf(name, sizeof name, "127.0.0.1:%d", l.port);
    void *self = client_at(endpoint);
    int64_t began_ns = clock_now_ns();
    status st = ops->look(self, RDZV_ALL, -1, 0, &view);
    ck_assert_msg(st == row->want, "%s: %s", status_name(st), status_text());
    ck_assert_int_lt(clock_now_ns() - began_ns, (TIMEOUT_MS + 500) * 1000000LL);
    ASSERT_FACTS_LISTED(status_text(), row->facts);
    ASSERT_FACTS(status_text(), name);
    if (row->words != NULL) { /* others fail, too, and none crashes */
        ck_assert_int_ne(ops->look(self, RDZV_ALL, 5, 100, &view), STATUS_OK);
        (void)ops->put_node(self, "{}", true);
        (void)ops->set_state(self, 0, "{}", &set);
        (void)ops->keep_alive(self);
        (void)ops->remove_node(self);
        liar_stop(&l);
    }
    ops->close(self);
}
END_TEST

START_TEST(a_store_of_ours_is_not_taken_for_etcd)
{
    store_server *server = NULL;
    char endpoint[32];
    rdzv_view view;
    ok(store_server_create("127.0.0.1", 0, &server));
    snprintf(endpoint, sizeof endpoint, "127.0.0.1:%d", store_server_port(server));
    void *self = client_at(endpoint);
    status st = ops->look(self, RDZV_ALL, -1, 0, &view);
    ck_assert_msg(st == STATUS_PEER, "%s: %s", status_name(st), status_text());
    ASSERT_FACTS(status_text(), "etcd", endpoint, "there etcd?");
    ops->close(self);
    store_server_destroy(server);
}
END_TEST

/* Messages of a watch that are none; the wait itself. */
START_TEST(a_watch_that_lies_is_named)
{
    static const struct {
        const char *words;
        status want;
    } rows[] = {
        {HTTP("200 OK", "{\"result\":{" HEADER ",\"created\":true}}\n"), STATUS_PEER},
        {HTTP("200 OK", "hello\n"), STATUS_INVALID},
        {HTTP("200 OK", "{\"result\":7}\n"), STATUS_INVALID},
        {HTTP("200 OK", "{\"error\":{\"grpc_code\":14,\"message\":\"leaving\"}}\n"), STATUS_PEER},
        {HTTP("200 OK", "{\"error\":{\"grpc_code\":7,\"message\":\"no\"}}\n"), STATUS_INVALID},
        {HTTP("503 No", "{\"code\":14,\"message\":\"no leader\"}"), STATUS_PEER},
    };
    liar l;
    char endpoint[32];
    rdzv_view view;
    liar_start(&l, rows[_i].words, NULL);
    snprintf(endpoint, sizeof endpoint, "127.0.0.1:%d", l.port);
    void *self = client_at(endpoint);
    status st = ops->look(self, RDZV_ALL, 5, LONG_MS, &view);
    ck_assert_msg(st == rows[_i].want, "%s: %s", status_name(st), status_text());
    ASSERT_FACTS(status_text(), "etcd");
    ops->close(self);
    liar_stop(&l);
}
END_TEST

/* Another program's, or an operator's mistake. */
START_TEST(what_is_no_state_is_named)
{
    static const char bytes[] = "\x8f\0\xff of another program";
    static const char key[] = "mnist_ddp/rdzv/job/state";
    static const char format[] =
        HTTP("200 OK", "{" HEADER ",\"kvs\":[{\"key\":\"%s\",\"value\":\"%s\"}]}");
    char letters[2][128], words[1024], endpoint[32];
    liar l;
    rdzv_handle *rdzv = NULL;
    base64_write(key, sizeof key - 1, letters[0]);
    base64_write(bytes, sizeof bytes - 1, letters[1]);
    snprintf(words, sizeof words, format, letters[0], letters[1]);
    liar_start(&l, words, NULL);
    snprintf(endpoint, sizeof endpoint, "127.0.0.1:%d", l.port);
    const rdzv_options options = {
        .backend = ops,
        .endpoints = endpoint,
        .run_id = "job",
        .self = {.id = "hostA_1_1", .address = "127.0.0.1", .nproc = 1, .port = 1},
        .min_nodes = 1,
        .max_nodes = 1,
        .join_ms = LONG_MS,
        .keep_alive_ms = TTL_MS,
        .keep_alive_misses = 3};
    ok(rdzv_open(&options, &rdzv));
    ASSERT_FACTS(rendezvous_phase_await(rdzv, RDZV_FAILED, TIMEOUT_MS).reason, key, endpoint,
                 "22 bytes", "\"\\x8f\\x00\\xff of another", "not JSON", "delete the key",
                 "--rdzv-id");
    rdzv_close(rdzv);
    liar_stop(&l);
}
END_TEST

START_TEST(endpoints_of_two_clusters_are_refused)
{
    liar l[2];
    char endpoints[64];
    rdzv_view view;
    liar_start(&l[0], HTTP("503 No", "{\"code\":14,\"message\":\"no leader\",\"x\":\"1\"}"), NULL);
    liar_start(&l[1], HTTP("200 OK", "{" HEADER "}"), NULL);
    snprintf(endpoints, sizeof endpoints, "127.0.0.1:%d, 127.0.0.1:%d", l[0].port, l[1].port);
    void *self = client_at(endpoints);
    ck_assert_int_eq(ops->look(self, RDZV_ALL, -1, 0, &view), STATUS_PEER);
    ok(ops->look(self, RDZV_ALL, -1, 0, &view)); /* at the second */
    rdzv_view_free(&view);
    l[1].words = HTTP("200 OK", "{\"header\":{\"cluster_id\":\"2\",\"revision\":\"9\"}}");
    ck_assert_int_eq(ops->look(self, RDZV_ALL, -1, 0, &view), STATUS_INVALID);
    ASSERT_FACTS(status_text(), "cluster", "endpoints");
    ops->close(self);
    liar_stop(&l[0]);
    liar_stop(&l[1]);
}
END_TEST

START_TEST(endpoints_that_are_none_are_refused)
{
    static const char *const lists[] = {"",      ",",         "h:p",        "h:99999", "ftp://h:1",
                                        "h:1,,", "http://",   "h:1/path",   "u@h:1",   "h 1",
                                        "[::1",  "https://:", "http://h:0x"};
    void *self = NULL;
    ck_assert_msg(open_at(lists[_i], &self) == STATUS_INVALID, "'%s' is taken", lists[_i]);
}
END_TEST

START_TEST(without_libcurl_it_is_said)
{
    void *self = NULL;
    setenv("MNIST_DDP_CURL_MODULE", "/nonexistent.so", 1);
    ck_assert_int_eq(open_at("h", &self), STATUS_INVALID);
    ASSERT_FACTS(status_text(), "module curl", "etcd", "c10d");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("etcd_lies");
    TCase *lies = suite_case(suite, "lies", 30);
    const char *missing = module_exists("curl") ? NULL : "built without libcurl";
    suite_add_all(lies, what_is_no_etcd_is_named, sizeof LIES / sizeof LIES[0], missing);
    suite_add_all(lies, a_watch_that_lies_is_named, 6, missing);
    suite_add(lies, a_store_of_ours_is_not_taken_for_etcd, 0, missing);
    suite_add(lies, what_is_no_state_is_named, 0, missing);
    suite_add(lies, endpoints_of_two_clusters_are_refused, 0, missing);
    suite_add_all(lies, endpoints_that_are_none_are_refused, 13, missing);
    tcase_add_test(lies, without_libcurl_it_is_said);
    return suite_run(suite);
}
