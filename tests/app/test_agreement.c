/* Ranks say their settings in an open store: what is there under a rank's name need not be its. */
#include "app/train/agreement.h"
#include "base/clock.h"
#include "dist/membership/membership.h"
#include "tests/support/facts.h"
#include "tests/support/suite.h"

#include <stdio.h>
#include <stdlib.h>

enum { TIMEOUT_MS = 5000 };

static store_server *server;
static store *shared;

static void setup(void)
{
    ck_assert_int_eq(store_server_create("127.0.0.1", 0, &server), STATUS_OK);
    store_options how = {.host = "127.0.0.1",
                         .port = store_server_port(server),
                         .prefix = "test/",
                         .timeout_ms = TIMEOUT_MS,
                         .connect_timeout_ms = TIMEOUT_MS,
                         .describe = ""};
    ck_assert_msg(store_create(&how, &shared) == STATUS_OK, "%s", status_text());
}

static void teardown(void)
{
    store_destroy(shared);
    store_server_destroy(server);
}

/* The other one of two ranks comes first. */
static void post(int rank, const char *record)
{
    const membership ranks = {
        .store = shared, .prefix = "settings/", .member = rank, .n = 2, .noun = "rank"};
    const meeting how = {.record = record, .deadline_ns = clock_deadline_ns(TIMEOUT_MS)};
    ck_assert_msg(membership_arrive(&ranks, &how) == STATUS_OK, "%s", status_text());
}

START_TEST(a_record_has_a_size)
{
    static const char *const records[] = {"", "0123456789abcdef"};
    char name[16];
    cores_peers peers = {0};
    int liar = _i % 2;
    snprintf(name, sizeof name, "rank %d", liar);
    post(liar, records[_i / 2]);
    status st = agreement_check("seed 1\n", shared, 1 - liar, 2, TIMEOUT_MS, &peers);
    ck_assert_int_eq(st, STATUS_PEER);
    ASSERT_FACTS(status_text(), "settings", name, "make no sense");
}
END_TEST

START_TEST(equal_settings_agree)
{
    cores_peers peers = {.count = 7};
    post(1, "0000000000000001\nseed 1\n");
    status st = agreement_check("seed 1\n", shared, 0, 2, TIMEOUT_MS, &peers);
    ck_assert_msg(st == STATUS_OK, "%s", status_text());
    ck_assert(peers.count == 1 || peers.count == 7); /* 7: the system does not tell its cores */
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("agreement");
    TCase *core = suite_case(suite, "core", 20);
    tcase_add_checked_fixture(core, setup, teardown);
    tcase_add_loop_test(core, a_record_has_a_size, 0, 4);
    tcase_add_test(core, equal_settings_agree);
    return suite_run(suite);
}
