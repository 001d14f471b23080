/* Calls from rank to rank: futures, references, failures that travel, and no key that stays. */
#include "dist/rpc.h"

#include "base/clock.h"
#include "dist/store/store.h"
#include "tests/support/facts.h"
#include "tests/support/suite.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TIMEOUT_MS = 5000, SHORT_MS = 300, MANY = 1000 };

static store_server *server;
static store *own;

static status double_it(void *ctx, const rpc_call *call, rpc_value *out)
{
    (void)ctx;
    out->data = malloc(2 * call->size + 1);
    out->size = 2 * call->size;
    memcpy(out->data, call->args, call->size);
    memcpy((char *)out->data + call->size, call->args, call->size);
    return STATUS_OK;
}

static status refuse(void *ctx, const rpc_call *call, rpc_value *out)
{
    (void)ctx, (void)out;
    return FAIL(STATUS_DEVICE, "%.*s is out of paper", (int)call->size, (const char *)call->args);
}

static status too_much(void *ctx, const rpc_call *call, rpc_value *out)
{
    (void)ctx, (void)call;
    out->data = calloc(1, RPC_VALUE_BYTES + 1);
    out->size = RPC_VALUE_BYTES + 1;
    return STATUS_OK;
}

static status die(void *ctx, const rpc_call *call, rpc_value *out)
{
    (void)ctx, (void)call, (void)out;
    raise(SIGKILL);
    return STATUS_OK;
}

static status never(void *ctx, const rpc_call *call, rpc_value *out)
{
    (void)ctx, (void)call;
    out->later = true;
    return STATUS_OK;
}

static const rpc_function FUNCTIONS[] = {{"double", double_it, NULL},
                                         {"refuse", refuse, NULL},
                                         {"too_much", too_much, NULL},
                                         {"die", die, NULL},
                                         {"never", never, NULL}};

static store *connect_to(int port)
{
    store *client = NULL;
    store_options how = {.host = "127.0.0.1",
                         .port = port,
                         .prefix = "job/",
                         .timeout_ms = TIMEOUT_MS,
                         .connect_timeout_ms = TIMEOUT_MS};
    return store_create(&how, &client) == STATUS_OK ? client : NULL;
}

static status open_rank(store *client, int rank, int64_t timeout_ms, bool watches, rpc **out)
{
    const rpc_options how = {.store = client,
                             .rank = rank,
                             .world_size = 2,
                             .functions = FUNCTIONS,
                             .n_functions = sizeof FUNCTIONS / sizeof FUNCTIONS[0],
                             .timeout_ms = timeout_ms,
                             .watches = watches};
    return rpc_open(&how, out);
}

/* Rank 1, in a process of its own: serves until the end. */
static pid_t fork_rank_1(bool watches)
{
    pid_t child = fork();
    if (child != 0)
        return child;
    rpc *r = NULL;
    store *client = connect_to(store_server_port(server));
    status st = client == NULL ? STATUS_PEER : open_rank(client, 1, TIMEOUT_MS, watches, &r);
    if (st == STATUS_OK)
        st = rpc_shutdown(r);
    _exit((int)st);
}

static rpc *rank_0(int64_t timeout_ms, bool watches)
{
    rpc *r = NULL;
    ck_assert_msg(open_rank(own, 0, timeout_ms, watches, &r) == STATUS_OK, "%s", status_text());
    return r;
}

static void end(rpc *r, pid_t child)
{
    int how;
    ck_assert_msg(rpc_shutdown(r) == STATUS_OK, "%s", status_text());
    rpc_close(r);
    ck_assert_int_eq(waitpid(child, &how, 0), child);
    ck_assert_int_eq(how, 0);
}

static void start(void)
{
    ck_assert_msg(store_server_create("127.0.0.1", 0, &server) == STATUS_OK, "%s", status_text());
    own = connect_to(store_server_port(server));
    ck_assert_ptr_nonnull(own);
}

static void stop(void)
{
    store_destroy(own);
    store_server_destroy(server);
}

static void assert_text(rpc_value *value, const char *want)
{
    ck_assert_str_eq(value->data, want);
    free(value->data);
}

START_TEST(a_future_is_waited_for_later)
{
    rpc_future first, second;
    rpc_value value;
    pid_t child = fork_rank_1(_i == 0);
    rpc *r = rank_0(TIMEOUT_MS, _i == 0);
    ck_assert(rpc_async(r, 1, "double", "ab", 2, &first) == STATUS_OK);
    ck_assert(rpc_async(r, 1, "double", "", 0, &second) == STATUS_OK);
    ck_assert(rpc_wait(r, &second, &value) == STATUS_OK);
    assert_text(&value, "");
    ck_assert(rpc_wait(r, &first, &value) == STATUS_OK);
    assert_text(&value, "abab");
    end(r, child);
}
END_TEST

START_TEST(a_reference_stays_with_its_owner)
{
    rpc_rref ref, bad;
    rpc_value value;
    pid_t child = fork_rank_1(true);
    rpc *r = rank_0(TIMEOUT_MS, true);
    ck_assert(rpc_remote(r, 1, "double", "xy", 2, &ref) == STATUS_OK);
    ck_assert(rpc_remote(r, 1, "refuse", "it", 2, &bad) == STATUS_OK);
    ck_assert_int_eq(ref.owner, 1);
    for (int i = 0; i < 2; i++) {
        ck_assert(rref_to_here(r, &ref, &value) == STATUS_OK);
        assert_text(&value, "xyxy");
    }
    ck_assert(rref_to_here(r, &bad, &value) == STATUS_DEVICE);
    ASSERT_FACTS(status_text(), "rank 1", "it is out of paper");
    ck_assert(rref_delete(r, &ref) == STATUS_OK);
    ck_assert(rref_to_here(r, &ref, &value) == STATUS_INVALID);
    ASSERT_FACTS(status_text(), "to_here", "not here any more");
    end(r, child);
}
END_TEST

START_TEST(a_failure_travels_to_the_caller)
{
    static const struct {
        const char *name;
        status st;
        const char *facts[4];
    } cases[] = {{"refuse", STATUS_DEVICE, {"refuse", "rank 1", "rank 0 is out of paper"}},
                 {"nothing", STATUS_INVALID, {"nothing", "rank 1", "no such function"}},
                 {"too_much", STATUS_INVALID, {"too_much", "4194305", "4194304"}}};
    rpc_value value;
    pid_t child = fork_rank_1(true);
    rpc *r = rank_0(TIMEOUT_MS, true);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ck_assert(rpc_sync(r, 1, cases[i].name, "rank 0", 6, &value) == cases[i].st);
        ASSERT_FACTS_LISTED(status_text(), cases[i].facts);
    }
    ck_assert(rpc_sync(r, 2, "double", "", 0, &value) == STATUS_INVALID);
    ASSERT_FACTS(status_text(), "no rank 2", "0 to 1");
    ck_assert(rpc_sync(r, 1, "double", "", RPC_VALUE_BYTES + 1, &value) == STATUS_INVALID);
    ASSERT_FACTS(status_text(), "4194305", "4194304");
    end(r, child);
}
END_TEST

/* Who dies is named at once if the store is ours, else the deadline passes; so it does for whoever
 * lives and does not answer. */
START_TEST(who_does_not_answer_is_named)
{
    rpc_value value;
    bool dies = _i < 2, watches = _i != 1;
    pid_t child = fork_rank_1(watches);
    rpc *r = rank_0(_i == 0 ? 60000 : SHORT_MS, watches);
    int64_t began_ns = clock_now_ns();
    status st = rpc_sync(r, 1, dies ? "die" : "never", "", 0, &value);
    ck_assert_int_eq(st, _i == 0 ? STATUS_PEER : STATUS_TIMEOUT);
    ASSERT_FACTS(status_text(), dies ? "die" : "never", "rank 1",
                 _i == 0 ? "gone" : "has not answered within 0.3 s");
    ck_assert(clock_now_ns() - began_ns < 3000000000);
    if (_i == 0) {
        ck_assert(rpc_serve_one(r) == STATUS_OK); /* it has nothing to ask */
        ck_assert(rpc_serve_one(r) == STATUS_PEER);
        ASSERT_FACTS(status_text(), "rank 1", "gone");
    }
    rpc_close(r);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}
END_TEST

/* What somebody else has written there: an answer that lies, and a message that does. */
START_TEST(lies_are_told_apart)
{
    static const uint8_t lies[3][8] = {{77}, {0, 0, 0, 0x80}, {0}};
    rpc_future f;
    rpc_value value;
    pid_t child = fork_rank_1(true);
    rpc *r = rank_0(SHORT_MS, true);
    ck_assert(rpc_async(r, 1, "never", "", 0, &f) == STATUS_OK);
    for (size_t i = 0; i < 3; i++) {
        ck_assert(store_set(own, "rpc/answer/0/1", lies[i], i < 2 ? 8 : 3) == STATUS_OK);
        ck_assert(rpc_wait(r, &f, &value) == STATUS_PEER);
        ASSERT_FACTS(status_text(), "never", "rank 1", "bytes");
    }
    ck_assert(rpc_serve_one(r) == STATUS_OK); /* rank 1 has nothing to ask */
    for (int i = 0; i < 3; i++) {
        static const char *const keys[] = {"rpc/0/2", "rpc/0/3", "rpc/0/4"};
        uint8_t message[60] = {i == 0 ? 7 : 0, 0, 0, 0, i == 1 ? 7 : 0}; /* kind 7; from rank 7 */
        ck_assert(store_set(own, keys[i], message, i < 2 ? 60 : 59) == STATUS_OK);
        ck_assert(rpc_serve_one(r) == STATUS_PEER);
        ASSERT_FACTS(status_text(), "to rank 0", "makes no sense", i < 2 ? "60 bytes" : "59 bytes");
    }
    ck_assert(rpc_serve_one(r) == STATUS_TIMEOUT);
    rpc_close(r);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}
END_TEST

/* It has served all that it had to: others may still wait for a message of somebody else. */
START_TEST(who_has_ended_is_not_missed)
{
    pid_t child = fork_rank_1(true);
    rpc *r = rank_0(1000, true);
    ck_assert_msg(rpc_shutdown(r) == STATUS_OK, "%s", status_text());
    waitpid(child, NULL, 0);
    ck_assert(rpc_serve_one(r) == STATUS_TIMEOUT);
    rpc_close(r);
}
END_TEST

START_TEST(many_calls_leave_no_key)
{
    int64_t before, after;
    rpc_value value;
    rpc_rref ref;
    pid_t child = fork_rank_1(true);
    rpc *r = rank_0(TIMEOUT_MS, true);
    ck_assert(rpc_sync(r, 1, "double", "a", 1, &value) == STATUS_OK);
    assert_text(&value, "aa");
    ck_assert(store_num_keys(own, &before) == STATUS_OK);
    int64_t began_ns = clock_now_ns();
    for (int i = 0; i < MANY; i++) {
        ck_assert(rpc_remote(r, 1, "double", "a", 1, &ref) == STATUS_OK);
        ck_assert(rref_delete(r, &ref) == STATUS_OK);
        ck_assert(rpc_sync(r, 1, "double", "a", 1, &value) == STATUS_OK);
        assert_text(&value, "aa");
    }
    printf("%d calls of three messages: %.3f ms each\n", MANY,
           (double)(clock_now_ns() - began_ns) * 1e-6 / MANY);
    ck_assert(store_num_keys(own, &after) == STATUS_OK);
    ck_assert_int_eq(after, before);
    end(r, child);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rpc");
    TCase *calls = suite_case(suite, "calls", 60);
    tcase_add_checked_fixture(calls, start, stop);
    tcase_add_loop_test(calls, a_future_is_waited_for_later, 0, 2);
    tcase_add_test(calls, a_reference_stays_with_its_owner);
    tcase_add_test(calls, a_failure_travels_to_the_caller);
    tcase_add_loop_test(calls, who_does_not_answer_is_named, 0, 3);
    tcase_add_test(calls, lies_are_told_apart);
    tcase_add_test(calls, who_has_ended_is_not_missed);
    tcase_add_test(calls, many_calls_leave_no_key);
    return suite_run(suite);
}
