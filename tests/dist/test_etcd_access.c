/* An etcd that asks who is there: users, and certificates of its own and of its clients. */
#include "base/clock.h"
#include "dist/elastic/etcd.h"
#include "dist/elastic/rdzv_ops.h"
#include "tests/support/etcd_server.h"
#include "tests/support/facts.h"
#include "tests/support/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONG_MS = 10000 };

static const rdzv_ops *const ops = &rdzv_etcd;
static etcd_server etcd;

static void start_etcd(void)
{
    etcd_server_start(&etcd, 1);
}

static void stop_etcd(void)
{
    etcd_server_stop(&etcd);
}

static void ok(status st)
{
    ck_assert_msg(st == STATUS_OK, "%s: %s", status_name(st), status_text());
}

/* NULL: nobody. */
static void *client_as(const etcd_access *who, const char *endpoints)
{
    const rdzv_service_options options = {.endpoints = endpoints,
                                          .access = who,
                                          .run_id = "job",
                                          .node_id = "a",
                                          .ttl_ms = LONG_MS,
                                          .timeout_ms = LONG_MS};
    void *self = NULL;
    ok(ops->open(&options, &self));
    return self;
}

/* Until what may pass has passed: an etcd that has just begun may not answer at once. */
static status call_in_time(status (*call)(void *self), void *self)
{
    int64_t deadline_ns = clock_deadline_ns(LONG_MS);
    status st = call(self);
    while ((st == STATUS_REFUSED || st == STATUS_TIMEOUT || st == STATUS_PEER) &&
           !clock_passed(deadline_ns)) {
        clock_sleep_ms(20);
        st = call(self);
    }
    return st;
}

static status look(void *self)
{
    rdzv_view view;
    status st = ops->look(self, RDZV_ALL, -1, 0, &view);
    if (st == STATUS_OK)
        rdzv_view_free(&view);
    return st;
}

/* By a watch, too. */
static status look_for_news(void *self)
{
    rdzv_view view;
    TRY(ops->look(self, RDZV_ALL, -1, 0, &view));
    int64_t revision = view.revision;
    rdzv_view_free(&view);
    TRY(ops->look(self, RDZV_ALL, revision, 200, &view));
    rdzv_view_free(&view);
    return STATUS_OK;
}

/* Its certificate is trusted if it is named. */
START_TEST(an_etcd_with_tls_is_asked_by_https)
{
    char url[80];
    if (!etcd_server_start_tls(&etcd)) {
        printf("SKIP of TLS: no openssl\n");
        return;
    }
    unsetenv("CURL_CA_BUNDLE");
    unsetenv("SSL_CERT_FILE");
    snprintf(url, sizeof url, "https://%s", etcd.endpoints);
    void *plain = client_as(NULL, etcd.endpoints), *self = client_as(NULL, url);
    ck_assert_int_eq(look(plain), STATUS_PEER);
    ASSERT_FACTS(status_text(), "etcd", "TLS", "https");
    ck_assert_int_eq(look(self), STATUS_INVALID);
    ASSERT_FACTS(status_text(), url, "certificate", "SSL_CERT_FILE");
    setenv("SSL_CERT_FILE", etcd.certificate, 1);
    ok(call_in_time(look, self));
    setenv("CURL_CA_BUNDLE", "/etc/hostname", 1); /* comes first, and the hint says so */
    void *misled = client_as(NULL, url);
    ck_assert_int_eq(look(misled), STATUS_INVALID);
    ASSERT_FACTS(status_text(), url, "CURL_CA_BUNDLE=/etc/hostname");
    ops->close(plain);
    ops->close(self);
    ops->close(misled);
    etcd_server_stop(&etcd);
}
END_TEST

/* It wants to see one, too. Whom a client trusts is not the variables' word then. */
START_TEST(an_etcd_may_ask_for_a_certificate)
{
    etcd_access who = {.key = ""};
    char url[80];
    etcd_server_stop(&etcd);
    if (!etcd_server_start_tls(&etcd))
        return;
    setenv("CURL_CA_BUNDLE", "/etc/hostname", 1);
    snprintf(url, sizeof url, "https://%s", etcd.endpoints);
    etcd_server_kill(&etcd, 0);
    etcd.asks_certificate = true;
    etcd_server_restart(&etcd, 0);
    strcpy(who.cacert, etcd.authority);
    strcpy(who.cert, etcd.certificate);
    strcpy(who.key, etcd.certificate);
    void *known = client_as(&who, url);
    ok(call_in_time(look, known));
    strcpy(who.cert, "/nowhere/cert.pem");
    void *mistaken = client_as(&who, url);
    ck_assert_int_eq(look(mistaken), STATUS_INVALID);
    ASSERT_FACTS(status_text(), url, "/nowhere/cert.pem");
    who = (etcd_access){.key = ""};
    strcpy(who.cacert, etcd.authority);
    void *stranger = client_as(&who, url);
    ck_assert_int_ne(look(stranger), STATUS_OK);
    ASSERT_FACTS(status_text(), url, "cert=FILE");
    ops->close(known);
    ops->close(mistaken);
    ops->close(stranger);
}
END_TEST

static void call_as(const etcd_access *who, const char *path, json_t *request)
{
    etcd_gateway *gateway;
    json_t *answer;
    ok(etcd_gateway_open(etcd.endpoints, who, LONG_MS, &gateway));
    ok(etcd_gateway_call(gateway, path, request, &answer));
    json_decref(answer);
    etcd_gateway_close(gateway);
}

/* The root user, and from now on nobody without one. */
static void enable_users(const char *password)
{
    call_as(NULL, "/v3/auth/user/add",
            json_pack("{s:s,s:s}", "name", "root", "password", password));
    call_as(NULL, "/v3/auth/role/add", json_pack("{s:s}", "name", "root"));
    call_as(NULL, "/v3/auth/user/grant", json_pack("{s:s,s:s}", "user", "root", "role", "root"));
    call_as(NULL, "/v3/auth/enable", json_object());
}

static status keep_alive(void *self)
{
    return ops->keep_alive(self);
}

/* Its token is asked for once; one that etcd does not know any more is replaced. */
START_TEST(an_etcd_with_users_is_asked_as_one)
{
    static const etcd_access right = {.user = "root", .password = "s3cret"},
                             wrong = {.user = "root", .password = "guess"};
    void *early = client_as(&right, etcd.endpoints);
    ok(call_in_time(look, early)); /* there are no users yet */
    enable_users("s3cret");
    void *self = client_as(&right, etcd.endpoints), *stranger = client_as(&wrong, etcd.endpoints),
         *nobody = client_as(NULL, etcd.endpoints);
    ok(call_in_time(look_for_news, self));
    ck_assert_int_eq(look(stranger), STATUS_INVALID);
    ASSERT_FACTS(status_text(), "etcd", "/v3/auth/authenticate", "password");
    ck_assert_ptr_null(strstr(status_text(), "guess"));
    ck_assert_int_eq(look(nobody), STATUS_INVALID);
    ASSERT_FACTS(status_text(), "user name is empty");
    ok(ops->put_node(self, "here", false));
    call_as(&right, "/v3/auth/disable", json_object()); /* its tokens are void */
    call_as(NULL, "/v3/auth/enable", json_object());
    ok(call_in_time(keep_alive, self));
    ok(call_in_time(look_for_news, self));
    ops->close(early);
    ops->close(self);
    ops->close(stranger);
    ops->close(nobody);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("etcd_access");
    const char *missing = etcd_server_missing();
    TCase *users = suite_case(suite, "users", 30), *tls = suite_case(suite, "tls", 30);
    if (missing == NULL)
        tcase_add_checked_fixture(users, start_etcd, stop_etcd);
    suite_add(users, an_etcd_with_users_is_asked_as_one, 0, missing);
    suite_add(users, an_etcd_may_ask_for_a_certificate, 0, missing);
    suite_add(tls, an_etcd_with_tls_is_asked_by_https, 0, missing);
    return suite_run(suite);
}
