/* Rounds of an elastic job at a real etcd, which dies and comes back. */
#include "base/clock.h"
#include "dist/elastic/rdzv.h"
#include "tests/support/etcd_server.h"
#include "tests/support/facts.h"
#include "tests/support/rendezvous_phase.h"
#include "tests/support/suite.h"

#include <stdio.h>
#include <string.h>

enum { KEEP_ALIVE_MS = 1000, MISSES = 3, SOON_MS = 20000, NODES = 3 };

static etcd_server etcd;
static int64_t keep_alive_ms; /* a lease outlives a start of etcd by far */

static void start_etcd(void)
{
    int64_t began_ns = clock_now_ns();
    etcd_server_start(&etcd, 1);
    int64_t three_starts_ms = 3 * (clock_now_ns() - began_ns) / 1000000;
    keep_alive_ms = three_starts_ms > KEEP_ALIVE_MS ? three_starts_ms : KEEP_ALIVE_MS;
}

static void stop_etcd(void)
{
    etcd_server_stop(&etcd);
}

static rdzv_handle *start(char letter)
{
    rdzv_handle *rdzv = NULL;
    rdzv_options options = {.backend = &rdzv_etcd,
                            .endpoints = etcd.endpoints,
                            .run_id = "job",
                            .self = {.nproc = 2, .port = 1000 + letter},
                            .min_nodes = 1,
                            .max_nodes = NODES,
                            .join_ms = SOON_MS,
                            .last_call_ms = SOON_MS,
                            .keep_alive_ms = keep_alive_ms,
                            .keep_alive_misses = MISSES};
    snprintf(options.self.address, sizeof options.self.address, "127.0.0.1");
    snprintf(options.self.id, sizeof options.self.id, "host%c_1_1", letter);
    ck_assert_msg(rdzv_open(&options, &rdzv) == STATUS_OK, "%s", status_text());
    return rdzv;
}

static void assert_round(rdzv_handle *rdzv, int64_t round, int n)
{
    rdzv_news news = rendezvous_phase_await(rdzv, RDZV_RUNS, SOON_MS);
    ck_assert_int_eq(news.now->round, round);
    ck_assert_int_eq(news.now->n, n);
    ck_assert(!clock_passed(news.valid_until_ns));
}

static void leave(rdzv_handle *rdzv, const char *who, const char *what)
{
    ASSERT_FACTS(rendezvous_phase_await(rdzv, RDZV_LEAVES, SOON_MS).reason, who, what);
    rdzv_leave(rdzv, &(round_departure){0});
}

START_TEST(nodes_come_and_go)
{
    rdzv_handle *a = start('A'), *b = start('B'), *c = start('C');
    assert_round(a, 1, 3);
    assert_round(b, 1, 3);
    assert_round(c, 1, 3);
    rdzv_close(c);
    leave(a, "hostC", "is lost");
    leave(b, "hostC", "is lost");
    assert_round(a, 2, 2);
    assert_round(b, 2, 2);
    rdzv_handle *d = start('D');
    leave(a, "hostD", "joins");
    leave(b, "hostD", "joins");
    assert_round(a, 3, 3);
    assert_round(b, 3, 3);
    assert_round(d, 3, 3);
    rdzv_end_job(d, ROUND_WELL, "all ranks have ended well");
    rendezvous_phase_await(a, RDZV_CLOSED, SOON_MS);
    rendezvous_phase_await(b, RDZV_CLOSED, SOON_MS);
    rdzv_close(a);
    rdzv_close(b);
    rdzv_close(d);
}
END_TEST

/* For less than a lease nobody leaves; for longer all do, and are one round again after it. */
START_TEST(an_etcd_may_be_away)
{
    rdzv_handle *nodes[NODES] = {start('A'), start('B'), start('C')};
    for (int i = 0; i < NODES; i++)
        assert_round(nodes[i], 1, 3);
    etcd_server_kill(&etcd, 0);
    clock_sleep_ms(200);
    etcd_server_restart(&etcd, 0);
    for (int64_t end_ns = clock_deadline_ns(keep_alive_ms * MISSES + 300); !clock_passed(end_ns);
         clock_sleep_ms(20))
        for (int i = 0; i < NODES; i++)
            assert_round(nodes[i], 1, 3);

    etcd_server_kill(&etcd, 0);
    int64_t last_ns = 0; /* after it no rank makes a step in round 1 */
    for (int i = 0; i < NODES; i++) {
        int64_t until_ns = rendezvous_phase_await(nodes[i], RDZV_LEAVES, SOON_MS).valid_until_ns;
        last_ns = until_ns > last_ns ? until_ns : last_ns;
        leave(nodes[i], "etcd", "lease");
    }
    etcd_server_restart(&etcd, 0);
    for (int i = 0; i < NODES; i++)
        assert_round(nodes[i], 2, 3);
    ck_assert(clock_passed(last_ns));
    for (int i = 0; i < NODES; i++)
        rdzv_close(nodes[i]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rounds_etcd");
    TCase *core = suite_case(suite, "core", 60);
    const char *missing = etcd_server_missing();
    if (missing == NULL)
        tcase_add_checked_fixture(core, start_etcd, stop_etcd);
    suite_add(core, nodes_come_and_go, 0, missing);
    suite_add(core, an_etcd_may_be_away, 0, missing);
    return suite_run(suite);
}
