/* Places from the environment, and ranks that find each other: or that learn why they cannot.
 *
 * `--join` joins as the environment says, adds up the ranks through the store and leaves: for runs
 * under other launchers. */
#include "base/clock.h"
#include "base/log.h"
#include "dist/net/socket.h"
#include "dist/rendezvous.h"
#include "tests/support/facts.h"
#include "tests/support/port.h"
#include "tests/support/suite.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const VARIABLES[] = {"RANK",
                                        "WORLD_SIZE",
                                        "LOCAL_RANK",
                                        "LOCAL_WORLD_SIZE",
                                        "MASTER_ADDR",
                                        "MASTER_PORT",
                                        "GROUP_RANK",
                                        "NODE_RANK",
                                        "TORCHELASTIC_RUN_ID",
                                        "TORCHELASTIC_RESTART_COUNT",
                                        "TORCHELASTIC_USE_AGENT_STORE"};

/* An environment with these variables of ours alone: "NAME=value" each, NULL at the end. */
static void set_environment(const char *const *settings)
{
    for (size_t i = 0; i < sizeof VARIABLES / sizeof VARIABLES[0]; i++)
        unsetenv(VARIABLES[i]);
    for (; *settings != NULL; settings++) {
        char name[64];
        const char *equals = strchr(*settings, '=');
        snprintf(name, sizeof name, "%.*s", (int)(equals - *settings), *settings);
        setenv(name, equals + 1, 1);
    }
}

#define ENVIRONMENT(...) set_environment((const char *const[]){__VA_ARGS__, NULL})

START_TEST(no_worker_without_rank_and_world_size)
{
    rendezvous_place place = {.rank = 17};
    bool found = true;
    ENVIRONMENT("MASTER_ADDR=127.0.0.1", "LOCAL_RANK=x", "RANK=");
    ck_assert_int_eq(rendezvous_place_read(NULL, &place, &found), STATUS_OK);
    ck_assert(!found);
    ck_assert_int_eq(place.rank, 17);
}
END_TEST

START_TEST(reads_what_torchrun_sets)
{
    rendezvous_place place;
    bool found = false;
    ENVIRONMENT("RANK=5", "WORLD_SIZE=8", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=4", "GROUP_RANK=1",
                "NODE_RANK=9", "MASTER_ADDR=node0", "MASTER_PORT=1234", "TORCHELASTIC_RUN_ID=abc",
                "TORCHELASTIC_RESTART_COUNT=3", "TORCHELASTIC_USE_AGENT_STORE=True");
    ck_assert_msg(rendezvous_place_read(NULL, &place, &found) == STATUS_OK, "%s", status_text());
    ck_assert(found);
    ck_assert_int_eq(place.rank, 5);
    ck_assert_int_eq(place.world_size, 8);
    ck_assert_int_eq(place.local_rank, 1);
    ck_assert_int_eq(place.local_world_size, 4);
    ck_assert_int_eq(place.node_rank, 1);
    ck_assert_str_eq(place.master_addr, "node0");
    ck_assert_int_eq(place.master_port, 1234);
    ck_assert(place.agent_store);
    ck_assert_int_eq(place.restart_count, 3);
    ck_assert_str_eq(place.run_id, "abc");
}
END_TEST

/* Keys of an elastic job carry its round, those of another how often its ranks were started. */
START_TEST(the_round_is_the_attempt)
{
    rendezvous_place place;
    bool found = false;
    ENVIRONMENT("RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=node0", "MASTER_PORT=1234",
                "TORCHELASTIC_RESTART_COUNT=3");
    ck_assert_int_eq(rendezvous_place_read(NULL, &place, &found), STATUS_OK);
    ck_assert_int_eq(place.round, 0);
    ck_assert_int_eq(rendezvous_place_attempt(&place), 3);
    setenv("MNIST_DDP_ROUND", "7", 1);
    ck_assert_int_eq(rendezvous_place_read(NULL, &place, &found), STATUS_OK);
    ck_assert_int_eq(place.round, 7);
    ck_assert_int_eq(rendezvous_place_attempt(&place), 7);
    setenv("MNIST_DDP_ROUND", "x", 1);
    ck_assert_int_eq(rendezvous_place_read(NULL, &place, &found), STATUS_INVALID);
    ASSERT_FACTS(status_text(), "MNIST_DDP_ROUND", "x");
    unsetenv("MNIST_DDP_ROUND");
}
END_TEST

START_TEST(fills_in_what_is_missing)
{
    rendezvous_place place;
    bool found = false;
    ENVIRONMENT("RANK=2", "WORLD_SIZE=3", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=1234",
                "NODE_RANK=7", "TORCHELASTIC_USE_AGENT_STORE=False");
    ck_assert_int_eq(rendezvous_place_read(NULL, &place, &found), STATUS_OK);
    ck_assert(found);
    ck_assert_int_eq(place.local_rank, 2);
    ck_assert_int_eq(place.local_world_size, 3);
    ck_assert_int_eq(place.node_rank, 7);
    ck_assert(!place.agent_store);
    ck_assert_int_eq(place.restart_count, 0);
    ck_assert_str_eq(place.run_id, "none");
    /* Elsewhere nobody knows: the first of its host. */
    ENVIRONMENT("RANK=2", "WORLD_SIZE=3", "MASTER_ADDR=192.0.2.1", "MASTER_PORT=1234");
    ck_assert_int_eq(rendezvous_place_read(NULL, &place, &found), STATUS_OK);
    ck_assert_int_eq(place.local_rank, 0);
}
END_TEST

/* What is wrong, as name=value instead of or beside a good environment; the facts in the message.
 */
static const struct {
    const char *setting, *facts[4];
} WRONG[] = {
    {"RANK=", {"RANK", "not set"}},
    {"WORLD_SIZE=", {"WORLD_SIZE", "not set"}},
    {"MASTER_ADDR=", {"MASTER_ADDR", "not set"}},
    {"MASTER_PORT=", {"MASTER_PORT", "not set"}},
    {"RANK=2", {"RANK", "2", "0..1"}},
    {"RANK=-1", {"RANK=-1"}},
    {"RANK=one", {"RANK=one"}},
    {"RANK=1.5", {"RANK=1.5"}},
    {"RANK=99999999999999999999", {"RANK=99999999999999999999"}},
    {"WORLD_SIZE=0", {"WORLD_SIZE=0"}},
    {"MASTER_PORT=0", {"MASTER_PORT=0", "1..65535"}},
    {"MASTER_PORT=65536", {"MASTER_PORT=65536", "1..65535"}},
    {"LOCAL_RANK=2", {"LOCAL_RANK", "2", "0..1"}},
    {"LOCAL_RANK=x", {"LOCAL_RANK=x"}},
    {"LOCAL_WORLD_SIZE=3", {"LOCAL_WORLD_SIZE=3", "1..2"}},
    {"GROUP_RANK=-1", {"GROUP_RANK=-1"}},
    {"TORCHELASTIC_RESTART_COUNT=-1", {"TORCHELASTIC_RESTART_COUNT=-1"}},
};

START_TEST(names_the_variable_that_makes_no_sense)
{
    rendezvous_place place = {.rank = 17};
    bool found = false;
    ENVIRONMENT("RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=1234",
                WRONG[_i].setting);
    ck_assert_int_eq(rendezvous_place_read(NULL, &place, &found), STATUS_INVALID);
    ASSERT_FACTS_LISTED(status_text(), WRONG[_i].facts);
    ck_assert(!found);
    ck_assert_int_eq(place.rank, 17);
}
END_TEST

START_TEST(refuses_texts_that_are_too_long)
{
    rendezvous_place place;
    bool found = false;
    char setting[400];
    memset(setting, 'x', sizeof setting);
    setting[sizeof setting - 1] = '\0';
    memcpy(setting, "MASTER_ADDR=", 12);
    ENVIRONMENT("RANK=1", "WORLD_SIZE=2", "MASTER_PORT=1234", setting);
    ck_assert_int_eq(rendezvous_place_read(NULL, &place, &found), STATUS_INVALID);
    ASSERT_FACTS(status_text(), "MASTER_ADDR", "387 bytes");
}
END_TEST

static rendezvous_place place_of(int rank, int world_size, int port)
{
    rendezvous_place place = {.rank = rank,
                              .world_size = world_size,
                              .local_rank = rank,
                              .local_world_size = world_size,
                              .master_addr = "127.0.0.1",
                              .master_port = port,
                              .run_id = "test"};
    return place;
}

START_TEST(a_world_of_one_needs_no_store)
{
    /* Nothing could listen or connect there. */
    rendezvous_place place = place_of(0, 1, 1);
    memcpy(place.master_addr, "no such host", 13);
    rendezvous *r = NULL;
    ck_assert_int_eq(rendezvous_join(&place, 1000, 1000, &r), STATUS_OK);
    ck_assert_ptr_null(rendezvous_store(r));
    rendezvous_leave(r);
    rendezvous_destroy(r);
    rendezvous_destroy(NULL);
}
END_TEST

/* What a rank's process does and how it ends: 0 is STATUS_OK of everything, else the status. */
typedef struct rank_plan {
    rendezvous_place place;
    int64_t start_ms, timeout_ms;
    bool skip_leave;
    const char *facts[6]; /* in the message of a failure */
} rank_plan;

/* Every rank adds to a counter and waits until all have: the store serves all of them. */
static status use_store(rendezvous *r, int world_size)
{
    int64_t sum = 0;
    store *client = rendezvous_store(r);
    TRY(store_add(client, "sum", 1, &sum));
    if (sum == world_size)
        TRY(store_set(client, "summed", "1", 1));
    return store_wait(client, "summed", 5000);
}

static int run_rank(const rank_plan *plan)
{
    alarm(20);
    log_set_level(LOG_ERROR);
    clock_sleep_ms(plan->start_ms);
    rendezvous *r = NULL;
    status st = rendezvous_join(&plan->place, plan->timeout_ms, 5000, &r);
    if (st == STATUS_OK && plan->skip_leave)
        _exit(0);
    if (st == STATUS_OK)
        st = use_store(r, plan->place.world_size);
    if (st == STATUS_OK)
        rendezvous_leave(r);
    rendezvous_destroy(r);
    if (st != STATUS_OK &&
        (plan->facts[0] == NULL || !facts_listed_in_a_line(status_text(), plan->facts))) {
        fprintf(stderr, "rank %d: %s\n", plan->place.rank, status_text());
        return 100;
    }
    return (int)st;
}

enum { MAX_RANKS = 6 };

/* One process per plan; codes[i] is how each ended. Returns how long all of it took. */
static int64_t run_plans(const rank_plan *plans, int n, int *codes)
{
    pid_t pids[MAX_RANKS];
    int64_t start_ns = clock_now_ns();
    for (int i = 0; i < n; i++) {
        pids[i] = fork();
        if (pids[i] == 0)
            _exit(run_rank(&plans[i]));
        ck_assert_int_gt(pids[i], 0);
    }
    for (int i = 0; i < n; i++) {
        int code;
        ck_assert_int_eq(waitpid(pids[i], &code, 0), pids[i]);
        codes[i] = WIFEXITED(code) ? WEXITSTATUS(code) : 1000;
    }
    return (clock_now_ns() - start_ns) / 1000000;
}

START_TEST(ranks_join_and_leave)
{
    static const int sizes[] = {2, 3, 5};
    int n = sizes[_i], port = port_find_free(), codes[MAX_RANKS];
    rank_plan plans[MAX_RANKS];
    for (int r = 0; r < n; r++)
        plans[r] = (rank_plan){.place = place_of(r, n, port), .timeout_ms = 5000};
    int64_t took_ms = run_plans(plans, n, codes);
    for (int r = 0; r < n; r++)
        ck_assert_int_eq(codes[r], STATUS_OK);
    ck_assert_int_le(took_ms, 2000);
}
END_TEST

START_TEST(ranks_may_come_late)
{
    int port = port_find_free(), codes[3];
    rank_plan plans[3];
    for (int r = 0; r < 3; r++)
        plans[r] = (rank_plan){.place = place_of(r, 3, port), .timeout_ms = 5000};
    plans[0].start_ms = 300; /* the server */
    plans[2].start_ms = 700;
    (void)run_plans(plans, 3, codes);
    for (int r = 0; r < 3; r++)
        ck_assert_int_eq(codes[r], STATUS_OK);
}
END_TEST

START_TEST(a_timeout_names_the_missing_ranks)
{
    int port = port_find_free(), codes[2];
    rank_plan plans[2];
    for (int i = 0; i < 2; i++)
        plans[i] = (rank_plan){.place = place_of(2 * i, 4, port),
                               .timeout_ms = 500,
                               .facts = {"2 of 4", "1, 3", "127.0.0.1:"}};
    int64_t took_ms = run_plans(plans, 2, codes);
    ck_assert_int_eq(codes[0], STATUS_TIMEOUT);
    ck_assert_int_eq(codes[1], STATUS_TIMEOUT);
    ck_assert_int_ge(took_ms, 499);
    ck_assert_int_le(took_ms, 2500);
}
END_TEST

/* Also the ranks that did nothing wrong stop, long before their timeout. */
START_TEST(a_rank_claimed_twice_is_named)
{
    int port = port_find_free(), codes[3];
    rank_plan plans[3] = {
        {.place = place_of(0, 3, port), .facts = {"rank 1", "127.0.0.1:", "RANK"}},
        {.place = place_of(1, 3, port), .facts = {"rank 1", "127.0.0.1:", "RANK"}},
        {.place = place_of(1, 3, port), .facts = {"rank 1", "127.0.0.1:", "RANK"}},
    };
    for (int i = 0; i < 3; i++)
        plans[i].timeout_ms = 10000;
    int64_t took_ms = run_plans(plans, 3, codes);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(codes[i], STATUS_INVALID);
    ck_assert_int_le(took_ms, 4000);
}
END_TEST

START_TEST(ranks_must_agree_on_the_world_size)
{
    int port = port_find_free(), codes[2];
    rank_plan plans[2] = {
        {.place = place_of(0, 2, port), .facts = {"WORLD_SIZE", "rank 0", "2", "rank 1", "3"}},
        {.place = place_of(1, 3, port),
         .start_ms = 200,
         .facts = {"WORLD_SIZE", "rank 0", "2", "rank 1", "3"}},
    };
    for (int i = 0; i < 2; i++)
        plans[i].timeout_ms = 10000;
    int64_t took_ms = run_plans(plans, 2, codes);
    ck_assert_int_eq(codes[0], STATUS_INVALID);
    ck_assert_int_eq(codes[1], STATUS_INVALID);
    ck_assert_int_le(took_ms, 4000);
}
END_TEST

START_TEST(a_second_rank_0_learns_who_has_the_port)
{
    int port = port_find_free(), codes[3];
    rank_plan plans[3] = {
        {.place = place_of(0, 2, port)},
        {.place = place_of(0, 2, port), .start_ms = 200, .facts = {"127.0.0.1:", "port", "pid"}},
        {.place = place_of(1, 2, port), .start_ms = 400},
    };
    for (int i = 0; i < 3; i++)
        plans[i].timeout_ms = 5000;
    (void)run_plans(plans, 3, codes);
    ck_assert_int_eq(codes[0], STATUS_OK);
    ck_assert_int_eq(codes[1], STATUS_IO);
    ck_assert_int_eq(codes[2], STATUS_OK);
}
END_TEST

/* The serving rank waits for the goodbye of one that never says it, but not for ever. */
START_TEST(leaving_does_not_wait_for_the_dead)
{
    int port = port_find_free(), code;
    rank_plan plan = {.place = place_of(1, 2, port), .timeout_ms = 5000, .skip_leave = true};
    pid_t child = fork();
    if (child == 0)
        _exit(run_rank(&plan));
    log_set_level(LOG_ERROR);
    rendezvous_place place = place_of(0, 2, port);
    rendezvous *r = NULL;
    ck_assert_int_eq(rendezvous_join(&place, 5000, 5000, &r), STATUS_OK);
    int64_t start_ns = clock_now_ns();
    rendezvous_leave(r);
    int64_t took_ms = (clock_now_ns() - start_ns) / 1000000;
    ck_assert_int_ge(took_ms, 4900);
    ck_assert_int_le(took_ms, 6500);
    rendezvous_destroy(r);
    ck_assert_int_eq(waitpid(child, &code, 0), child);
    ck_assert_int_eq(code, 0);
}
END_TEST

/* With an agent every rank is a client, rank 0 too, and also in a world of one; attempts do not
 * see each other's keys. */
START_TEST(an_agent_serves_all_attempts)
{
    store_server *agent = NULL;
    ck_assert_int_eq(store_server_create("127.0.0.1", 0, &agent), STATUS_OK);
    for (int restart = 0; restart < 3; restart++) {
        int codes[2];
        rank_plan plans[2];
        for (int r = 0; r < 2; r++) {
            plans[r] =
                (rank_plan){.place = place_of(r, 2, store_server_port(agent)), .timeout_ms = 5000};
            plans[r].place.agent_store = true;
            plans[r].place.restart_count = restart;
        }
        (void)run_plans(plans, 2, codes);
        ck_assert_int_eq(codes[0], STATUS_OK);
        ck_assert_int_eq(codes[1], STATUS_OK);
    }
    rendezvous_place alone = place_of(0, 1, store_server_port(agent));
    alone.agent_store = true;
    alone.restart_count = 3;
    rendezvous *r = NULL;
    ck_assert_int_eq(rendezvous_join(&alone, 1000, 1000, &r), STATUS_OK);
    ck_assert_ptr_nonnull(rendezvous_store(r));
    rendezvous_leave(r);
    rendezvous_destroy(r);
    store_server_destroy(agent);
}
END_TEST

static int join_from_environment(void)
{
    alarm(60);
    rendezvous_place place;
    bool found = false;
    rendezvous *r = NULL;
    int64_t start_ns = clock_now_ns();
    status st = rendezvous_place_read(NULL, &place, &found);
    if (st == STATUS_OK && !found)
        st = FAIL(STATUS_INVALID, "RANK and WORLD_SIZE are not set");
    if (st == STATUS_OK)
        st = rendezvous_join(&place, 30000, 10000, &r);
    double took_ms = (double)(clock_now_ns() - start_ns) * 1e-6;
    if (st == STATUS_OK && rendezvous_store(r) != NULL)
        st = use_store(r, place.world_size);
    if (st == STATUS_OK)
        rendezvous_leave(r);
    rendezvous_destroy(r);
    if (st != STATUS_OK) {
        fprintf(stderr, "%s: %s\n", status_name(st), status_text());
        return EXIT_FAILURE;
    }
    printf("rank %d of %d joined at %s:%d (%s) in %.1f ms\n", place.rank, place.world_size,
           place.master_addr, place.master_port, place.agent_store ? "agent" : "rank 0", took_ms);
    return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--join") == 0)
        return join_from_environment();
    Suite *suite = suite_create("rendezvous");
    TCase *place = suite_case(suite, "place", 5);
    tcase_add_test(place, no_worker_without_rank_and_world_size);
    tcase_add_test(place, reads_what_torchrun_sets);
    tcase_add_test(place, the_round_is_the_attempt);
    tcase_add_test(place, fills_in_what_is_missing);
    tcase_add_loop_test(place, names_the_variable_that_makes_no_sense, 0,
                        (int)(sizeof WRONG / sizeof WRONG[0]));
    tcase_add_test(place, refuses_texts_that_are_too_long);
    TCase *join = suite_case(suite, "join", 30);
    tcase_add_test(join, a_world_of_one_needs_no_store);
    tcase_add_loop_test(join, ranks_join_and_leave, 0, 3);
    tcase_add_test(join, ranks_may_come_late);
    tcase_add_test(join, a_timeout_names_the_missing_ranks);
    tcase_add_test(join, a_rank_claimed_twice_is_named);
    tcase_add_test(join, ranks_must_agree_on_the_world_size);
    tcase_add_test(join, a_second_rank_0_learns_who_has_the_port);
    tcase_add_test(join, leaving_does_not_wait_for_the_dead);
    tcase_add_test(join, an_agent_serves_all_attempts);
    return suite_run(suite);
}
