/* Members that meet all hear the same: the outcome, or why there is none. Leases are held by the
 * living. */
#include "base/clock.h"
#include "dist/membership/keys.h"
#include "dist/membership/membership.h"
#include "tests/support/facts.h"
#include "tests/support/suite.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { MAX_MEMBERS = 5, TEXT_BYTES = 512, LONG_MS = 10000 };

static store_server *server;

static store *connect_client(void)
{
    store_options how = {.host = "127.0.0.1",
                         .port = store_server_port(server),
                         .prefix = "test/",
                         .timeout_ms = 5000,
                         .connect_timeout_ms = 5000,
                         .describe = ""};
    store *client = NULL;
    if (store_create(&how, &client) != STATUS_OK)
        fprintf(stderr, "%s\n", status_text());
    return client;
}

static void start_server(void)
{
    ck_assert_int_eq(store_server_create("127.0.0.1", 0, &server), STATUS_OK);
}

static void stop_server(void)
{
    store_server_destroy(server);
}

/* A member on a thread of its own, and what it hears. */
typedef struct visitor {
    int member, n;
    const char *record, *who;
    int64_t start_ms, timeout_ms;
    bool gives_up;
    pthread_t thread;
    status st;
    double seconds; /* in the meeting */
    char text[TEXT_BYTES];
} visitor;

/* "a+b+..." of all records; a record "bad" is refused. */
static status join_records(void *ctx, char *const records[], char **outcome)
{
    int n = *(const int *)ctx;
    char text[TEXT_BYTES] = "";
    for (int i = 0; i < n; i++) {
        size_t used = strlen(text);
        if (strcmp(records[i], "bad") == 0)
            return FAIL(STATUS_INVALID, "rank %d is bad", i);
        snprintf(text + used, sizeof text - used, "%s%s", i > 0 ? "+" : "", records[i]);
    }
    *outcome = strdup(text);
    return STATUS_OK;
}

static void *visit(void *arg)
{
    visitor *v = arg;
    char *outcome = NULL;
    membership m = {.store = connect_client(),
                    .prefix = "meeting/",
                    .member = v->member,
                    .n = v->n,
                    .noun = "rank",
                    .size_name = "WORLD_SIZE",
                    .who = v->who,
                    .advice = "give each its own"};
    clock_sleep_ms(v->start_ms);
    int64_t start_ns = clock_now_ns();
    meeting how = {.record = v->record != NULL ? v->record : "x",
                   .deadline_ns = clock_deadline_ns(v->timeout_ms > 0 ? v->timeout_ms : LONG_MS),
                   .late = "has not come",
                   .compare = join_records,
                   .ctx = &v->n};
    if (v->gives_up)
        v->st = membership_give_up(&m, FAIL(STATUS_DEVICE, "no GPU"));
    else
        v->st = membership_meet(&m, &how, &outcome);
    v->seconds = clock_seconds(clock_now_ns() - start_ns);
    snprintf(v->text, sizeof v->text, "%s", v->st == STATUS_OK ? outcome : status_text());
    free(outcome);
    store_destroy(m.store);
    return NULL;
}

static void run_visitors(visitor *visitors, int n)
{
    for (int i = 0; i < n; i++)
        ck_assert_int_eq(pthread_create(&visitors[i].thread, NULL, visit, &visitors[i]), 0);
    for (int i = 0; i < n; i++)
        pthread_join(visitors[i].thread, NULL);
}

START_TEST(all_hear_what_the_last_one_makes_of_it)
{
    static const struct {
        int n;
        const char *outcome;
    } CASES[] = {{1, "a"}, {2, "a+b"}, {3, "a+b+c"}, {5, "a+b+c+d+e"}};
    static const char *const records[] = {"a", "b", "c", "d", "e"};
    visitor v[MAX_MEMBERS] = {0};
    for (int i = 0; i < CASES[_i].n; i++)
        v[i] = (visitor){.member = i, .n = CASES[_i].n, .record = records[i]};
    v[0].start_ms = 50; /* somebody else comes last in the other cases */
    run_visitors(v, CASES[_i].n);
    for (int i = 0; i < CASES[_i].n; i++) {
        ck_assert_msg(v[i].st == STATUS_OK, "%d: %s", i, v[i].text);
        ck_assert_str_eq(v[i].text, CASES[_i].outcome);
    }
}
END_TEST

/* How a meeting fails, and the facts that all members hear. */
static void expect_failure(const visitor *v, int n, status st, const char *const *facts)
{
    for (int i = 0; i < n; i++) {
        ck_assert_msg(v[i].st == st, "%d: %s: %s", i, status_name(v[i].st), v[i].text);
        ASSERT_FACTS_LISTED(v[i].text, facts);
        ck_assert_double_lt(v[i].seconds, 2);
    }
}

START_TEST(one_that_does_not_fit_is_named_to_all)
{
    static const char *const facts[] = {"rank 2", "bad", NULL};
    visitor v[3] = {{.member = 0, .n = 3}, {.member = 1, .n = 3}, {.member = 2, .n = 3}};
    v[2].record = "bad";
    v[_i].start_ms = 50;
    run_visitors(v, 3);
    expect_failure(v, 3, STATUS_INVALID, facts);
}
END_TEST

START_TEST(members_disagree_on_how_many_they_are)
{
    static const char *const facts[] = {"WORLD_SIZE", "rank 0", "2", "rank 1", "3", NULL};
    visitor v[2] = {{.member = 0, .n = 2}, {.member = 1, .n = 3}};
    v[_i].start_ms = 50;
    run_visitors(v, 2);
    expect_failure(v, 2, STATUS_INVALID, facts);
}
END_TEST

START_TEST(one_of_two_that_claim_a_member_is_told_and_so_are_all)
{
    static const char *const facts[] = {"rank 1", "first", "second", "give each its own", NULL};
    visitor v[3] = {{.member = 0, .n = 3, .who = "zero"},
                    {.member = 1, .n = 3, .who = "first"},
                    {.member = 1, .n = 3, .who = "second", .start_ms = 50}};
    run_visitors(v, 3);
    expect_failure(v, 3, STATUS_INVALID, facts);
}
END_TEST

/* All hear it, who comes after the deadline too. Member 0 would linger for that one. */
START_TEST(one_that_does_not_come_is_named_at_the_deadline)
{
    static const char *const facts[] = {"rank 1", "not come", NULL};
    visitor v[3] = {{.member = 2, .n = 3, .timeout_ms = 300},
                    {.member = 0, .n = 3},
                    {.member = 1, .n = 3, .start_ms = 600}};
    run_visitors(v, 3);
    expect_failure(v, 3, STATUS_TIMEOUT, facts);
    ck_assert_double_ge(v[0].seconds, 0.29);
}
END_TEST

START_TEST(one_that_gives_up_is_heard_at_once)
{
    static const char *const facts[] = {"rank 1", "no GPU", NULL};
    visitor v[3] = {{.member = 0, .n = 3}, {.member = 2, .n = 3}, {.member = 1, .n = 3}};
    v[2].gives_up = true;
    v[_i].start_ms = 100; /* also who comes after it */
    run_visitors(v, 3);
    expect_failure(v, 2, STATUS_PEER, facts);
    ck_assert_int_eq(v[2].st, STATUS_DEVICE);
    ck_assert_str_eq(v[2].text, "no GPU");
}
END_TEST

/* Member 0 leaves as soon as all that have come have heard: a count of others would hide one. */
START_TEST(one_that_has_not_come_is_not_counted_as_heard)
{
    store *s = connect_client();
    membership m = {.store = s, .prefix = "m/", .n = 2, .noun = "rank"};
    int64_t heard = -1;
    bool known = true;
    ck_assert_int_eq(membership_hear(&m, &known), STATUS_OK);
    ck_assert(!known);
    m.member = 1;
    (void)membership_give_up(&m, FAIL(STATUS_DEVICE, "no GPU"));
    m.member = 0;
    ck_assert_int_eq(membership_hear(&m, &known), STATUS_PEER);
    ASSERT_FACTS(status_text(), "rank 1", "no GPU");
    ck_assert_int_eq(membership_settle(&m, "fine"), STATUS_PEER);
    ck_assert_int_eq(store_add(s, keys_make("m/", KEYS_HEARD, -1).text, 0, &heard), STATUS_OK);
    ck_assert_int_eq(heard, 0);
    store_destroy(s);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("membership");
    TCase *core = suite_case(suite, "core", 20);
    tcase_add_checked_fixture(core, start_server, stop_server);
    tcase_add_loop_test(core, all_hear_what_the_last_one_makes_of_it, 0, 4);
    tcase_add_loop_test(core, one_that_does_not_fit_is_named_to_all, 0, 3);
    tcase_add_loop_test(core, members_disagree_on_how_many_they_are, 0, 2);
    tcase_add_test(core, one_of_two_that_claim_a_member_is_told_and_so_are_all);
    tcase_add_test(core, one_that_does_not_come_is_named_at_the_deadline);
    tcase_add_loop_test(core, one_that_gives_up_is_heard_at_once, 0, 2);
    tcase_add_test(core, one_that_has_not_come_is_not_counted_as_heard);
    return suite_run(suite);
}
