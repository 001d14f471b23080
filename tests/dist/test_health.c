/* Whether a process lives, who the ranks of a group are, and who of them failed first. */
#include "base/clock.h"
#include "dist/health/first_cause.h"
#include "dist/health/peers.h"
#include "dist/store/store.h"
#include "tests/support/suite.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORLD = 4, TIMEOUT_MS = 1000 };

START_TEST(a_process_is_its_number_and_its_start)
{
    process_id self = process_self(), other = self;
    ck_assert_int_eq(self.pid, getpid());
    ck_assert_uint_gt(self.start, 0);
    ck_assert_int_eq(process_look(self), PROCESS_RUNS);
    other.start++; /* the number was given to another one */
    ck_assert_int_eq(process_look(other), PROCESS_ENDED);
    other.start = 0; /* not known */
    ck_assert_int_eq(process_look(other), PROCESS_RUNS);
    ck_assert_int_eq(process_look((process_id){.pid = 0}), PROCESS_ENDED);
}
END_TEST

START_TEST(a_stop_and_an_end_are_seen)
{
    int how = 0;
    pid_t child = fork();
    if (child == 0) {
        raise(SIGSTOP);
        _exit(0);
    }
    process_id id = {.pid = child};
    ck_assert_int_eq(waitpid(child, &how, WUNTRACED), child);
    ck_assert_int_eq(process_look(id), PROCESS_STOPPED);
    kill(child, SIGKILL);
    siginfo_t ended;
    ck_assert_int_eq(waitid(P_PID, (id_t)child, &ended, WEXITED | WNOWAIT), 0);
    ck_assert_int_eq(process_look(id), PROCESS_ENDED); /* though it was not waited for */
    ck_assert_int_eq(waitpid(child, &how, 0), child);
    ck_assert_int_eq(process_look(id), PROCESS_ENDED);
}
END_TEST

/* What a rank does when the others come to meet. */
typedef enum habit { COMES, DECLINES, STAYS_AWAY, COMES_AS_PROCESS } habit;

typedef struct visitor {
    store_server *server;
    first_cause_word *word;
    int rank;
    habit how;
    bool elsewhere; /* not all on one host */
    pid_t process;
    status st;
    char message[512];
    store *keys;
    first_cause *cause;
} visitor;

static status connect_to(store_server *server, store **out)
{
    store_options where = {.host = "127.0.0.1",
                           .port = store_server_port(server),
                           .prefix = "test/",
                           .timeout_ms = 5000,
                           .connect_timeout_ms = 5000,
                           .describe = ""};
    return store_create(&where, out);
}

static status come(visitor *v)
{
    TRY(connect_to(v->server, &v->keys));
    process_group_options options = {.rank = v->rank, .world_size = WORLD, .store = v->keys};
    group_setup setup = {.options = &options, .prefix = "pg/1/", .one_host = !v->elsewhere};
    if (v->how == DECLINES) {
        status st = FAIL(STATUS_NO_MEMORY, "no room at the inn");
        peers_decline(&setup);
        return st;
    }
    return first_cause_create(&setup, v->word, clock_deadline_ns(TIMEOUT_MS), &v->cause);
}

static void *visit(void *arg)
{
    visitor *v = arg;
    v->st = come(v);
    snprintf(v->message, sizeof v->message, "%s", v->st == STATUS_OK ? "" : status_text());
    return NULL;
}

static void leave(visitor *v)
{
    first_cause_destroy(v->cause);
    store_destroy(v->keys);
}

static void visit_all(visitor *visitors)
{
    pthread_t threads[WORLD];
    for (int rank = 0; rank < WORLD; rank++) {
        visitor *v = &visitors[rank];
        if (v->how == COMES_AS_PROCESS && (v->process = fork()) == 0) {
            (void)come(v);
            for (;;)
                pause();
        }
    }
    for (int rank = 0; rank < WORLD; rank++)
        if (visitors[rank].how <= DECLINES)
            ck_assert_int_eq(pthread_create(&threads[rank], NULL, visit, &visitors[rank]), 0);
    for (int rank = 0; rank < WORLD; rank++)
        if (visitors[rank].how <= DECLINES)
            pthread_join(threads[rank], NULL);
}

static void prepare(store_server **server, visitor *visitors)
{
    ck_assert_int_eq(store_server_create("127.0.0.1", 0, server), STATUS_OK);
    for (int rank = 0; rank < WORLD; rank++)
        visitors[rank] = (visitor){.server = *server, .rank = rank};
}

START_TEST(all_meet)
{
    store_server *server = NULL;
    visitor v[WORLD];
    prepare(&server, v);
    for (int rank = 0; rank < WORLD; rank++)
        v[rank].elsewhere = _i == 1;
    visit_all(v);
    for (int rank = 0; rank < WORLD; rank++) {
        char name[PEERS_NAME_BYTES], known[PEERS_NAME_BYTES];
        snprintf(known, sizeof known, "rank 1 (pid %d)", (int)getpid());
        ck_assert_msg(v[rank].st == STATUS_OK, "%s", v[rank].message);
        const peers *p = first_cause_peers(v[rank].cause);
        ck_assert_int_eq(peers_find_ended(p, 0, 0), -1);
        ck_assert_int_eq(peers_find_stopped(p, 0), -1);
        peers_name(p, 1, name);
        ck_assert_str_eq(name, _i == 0 ? known : "rank 1");
    }
    for (int rank = 0; rank < WORLD; rank++)
        leave(&v[rank]);
    store_server_destroy(server);
}
END_TEST

/* Also rank 0, which all others wait for. */
START_TEST(a_rank_that_declines_is_named_at_once)
{
    store_server *server = NULL;
    visitor v[WORLD];
    char who[32];
    prepare(&server, v);
    v[_i].how = DECLINES;
    snprintf(who, sizeof who, "rank %d: no room at the inn", _i);
    visit_all(v);
    for (int rank = 0; rank < WORLD; rank++) { /* one that had waited would have its timeout */
        ck_assert_int_eq(v[rank].st, rank == _i ? STATUS_NO_MEMORY : STATUS_PEER);
        ck_assert_msg(strstr(v[rank].message, rank == _i ? "inn" : who) != NULL, "%s",
                      v[rank].message);
        leave(&v[rank]);
    }
    store_server_destroy(server);
}
END_TEST

/* By all, though only rank 0 waits for it itself. */
START_TEST(who_does_not_come_is_named)
{
    store_server *server = NULL;
    visitor v[WORLD];
    char who[32];
    prepare(&server, v);
    v[_i].how = STAYS_AWAY;
    snprintf(who, sizeof who, "rank %d has not", _i);
    visit_all(v);
    for (int rank = 0; rank < WORLD; rank++) {
        if (rank == _i)
            continue;
        ck_assert_int_eq(v[rank].st, STATUS_TIMEOUT);
        ck_assert_msg(strstr(v[rank].message, who) != NULL, "%s", v[rank].message);
        leave(&v[rank]);
    }
    store_server_destroy(server);
}
END_TEST

static void end(visitor *v)
{
    kill(v->process, SIGKILL);
    ck_assert_int_eq(waitpid(v->process, NULL, 0), v->process);
}

/* Ranks 2 and 3 are processes. Rank 3 dies; rank 0 sees it; rank 2 dies. Rank 1 finds both dead,
 * rank 2 first, and still names rank 3: with the store, and with shared memory. */
START_TEST(the_first_death_is_named_by_all)
{
    store_server *server = NULL;
    first_cause_word word = 0;
    visitor v[WORLD];
    prepare(&server, v);
    v[2].how = v[3].how = COMES_AS_PROCESS;
    for (int rank = 0; rank < 2 && _i == 1; rank++)
        v[rank].word = &word;
    visit_all(v);
    ck_assert_int_eq(v[0].st, STATUS_OK);
    ck_assert_int_eq(v[1].st, STATUS_OK);
    end(&v[3]);
    ck_assert_int_eq(peers_find_ended(first_cause_peers(v[0].cause), 0, 1000), 3);
    ck_assert_int_eq(first_cause_death(v[0].cause, 3), STATUS_PEER);
    ck_assert_ptr_nonnull(strstr(status_text(), "rank 3 (pid "));
    end(&v[2]);
    ck_assert_int_eq(peers_find_ended(first_cause_peers(v[1].cause), 0, 1000), 2);
    ck_assert_int_eq(first_cause_death(v[1].cause, 2), STATUS_PEER);
    ck_assert_msg(strstr(status_text(), "rank 3 (pid ") != NULL, "%s", status_text());
    leave(&v[0]);
    leave(&v[1]);
    store_server_destroy(server);
}
END_TEST

START_TEST(a_departure_is_known_through_shared_memory)
{
    store_server *server = NULL;
    first_cause_word word = 0;
    visitor v[WORLD];
    prepare(&server, v);
    for (int rank = 0; rank < WORLD; rank++)
        v[rank].word = &word;
    visit_all(v);
    ck_assert(!first_cause_is_known(v[0].cause));
    if (_i == 1)
        first_cause_give_up_on(v[1].cause, 3);
    first_cause_depart(v[1].cause, &(departure){0});
    first_cause_depart(v[2].cause, &(departure){0}); /* because of that */
    ck_assert(first_cause_is_known(v[0].cause));
    ck_assert_int_eq(first_cause_known(v[0].cause), _i == 1 ? STATUS_TIMEOUT : STATUS_PEER);
    ck_assert_ptr_nonnull(strstr(status_text(), "rank 1 (pid "));
    ck_assert_int_eq(strstr(status_text(), "rank 3 (pid ") != NULL, _i == 1);
    ck_assert_ptr_null(strstr(status_text(), "rank 2"));
    word = 0xffffffff;
    ck_assert_int_eq(first_cause_known(v[0].cause), STATUS_PEER);
    ck_assert_ptr_nonnull(strstr(status_text(), "scribbled"));
    for (int rank = 0; rank < WORLD; rank++)
        leave(&v[rank]);
    store_server_destroy(server);
}
END_TEST

START_TEST(an_io_failure_outranks_a_timeout_and_a_lost_peer)
{
    ck_assert_int_gt(first_cause_priority(STATUS_IO), first_cause_priority(STATUS_TIMEOUT));
    ck_assert_int_gt(first_cause_priority(STATUS_TIMEOUT), first_cause_priority(STATUS_PEER));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("health");
    TCase *core = suite_case(suite, "core", 30);
    tcase_add_test(core, a_process_is_its_number_and_its_start);
    tcase_add_test(core, a_stop_and_an_end_are_seen);
    tcase_add_loop_test(core, all_meet, 0, 2);
    tcase_add_loop_test(core, a_rank_that_declines_is_named_at_once, 0, WORLD);
    tcase_add_loop_test(core, who_does_not_come_is_named, 0, WORLD);
    tcase_add_loop_test(core, the_first_death_is_named_by_all, 0, 2);
    tcase_add_loop_test(core, a_departure_is_known_through_shared_memory, 0, 2);
    tcase_add_test(core, an_io_failure_outranks_a_timeout_and_a_lost_peer);
    return suite_run(suite);
}
