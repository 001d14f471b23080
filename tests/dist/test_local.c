/* The local backend: exact results, sums in rank order, messages, late and departed threads. */
#include "base/clock.h"
#include "dist/backends/local/backend_local.h"
#include "tests/support/aborts.h"
#include "tests/support/collectives.h"
#include "tests/support/exchange_cases.h"
#include "tests/support/facts.h"
#include "tests/support/suite.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

enum { MAX_WORLD = 5, LONG_BYTES = 32 << 20, STUCK_SECONDS = 5, SHORT_MS = 100 };

static status run(int world_size, rank_fn fn, void *arg)
{
    ranks_options options = {
        .world_size = world_size, .backend = "local", .shared_bytes = COLLECTIVES_SHARED_BYTES};
    return run_ranks_with(&options, fn, arg);
}

static memory_kind memory_of(int i)
{
    return i % 2 == 0 ? MEMORY_PLAIN : MEMORY_OUT_OF_PLACE;
}

START_TEST(all_reduce_is_exact)
{
    memory_kind kind = memory_of(_i);
    ck_assert_int_eq(run(1 + _i / 2, collectives_all_reduce, &kind), STATUS_OK);
}
END_TEST

START_TEST(broadcast_is_exact)
{
    memory_kind kind = memory_of(_i);
    ck_assert_int_eq(run(1 + _i / 2, collectives_broadcast, &kind), STATUS_OK);
}
END_TEST

START_TEST(reduce_is_exact)
{
    memory_kind kind = memory_of(_i);
    ck_assert_int_eq(run(1 + _i / 2, collectives_reduce, &kind), STATUS_OK);
}
END_TEST

START_TEST(messages_are_exact)
{
    memory_kind kind = MEMORY_OUT_OF_PLACE;
    ck_assert_int_eq(run(_i, collectives_messages, &kind), STATUS_OK);
}
END_TEST

static collective message(collective_kind kind, int peer, char *data, size_t size_bytes)
{
    return (collective){.kind = kind,
                        .type = DTYPE_U8,
                        .root = peer,
                        .in = kind == COLLECTIVE_SEND ? data : NULL,
                        .out = kind == COLLECTIVE_RECV ? data : NULL,
                        .count = size_bytes};
}

static status both(process_group *group, collective first, collective second)
{
    work *works[2];
    TRY(process_group_batch_isend_irecv(group, (collective[2]){first, second}, 2, NULL, works));
    TRY(process_group_wait(group, works[0], NULL));
    return process_group_wait(group, works[1], NULL);
}

/* Rank 0 waits for a short message of rank 1, which comes while it copies a long one of rank 2. How
 * long that takes is not known: so the short one comes after 0, 1, 2, ... ms. The others do nothing
 * more until rank 0 has both, so nothing of theirs wakes it again. */
static status a_message_during_a_copy(process_group *group, int rank, int world_size, void *arg)
{
    static char sent[LONG_BYTES], received[LONG_BYTES];
    char brief = 'x', end = 'e';
    (void)world_size, (void)arg;
    for (int late_ms = 0; late_ms < 12; late_ms++) {
        int64_t start_ns = clock_now_ns();
        if (rank == 0) {
            TRY(both(group, message(COLLECTIVE_RECV, 1, &brief, 1),
                     message(COLLECTIVE_RECV, 2, received, LONG_BYTES)));
            TRY(both(group, message(COLLECTIVE_SEND, 1, &end, 1),
                     message(COLLECTIVE_SEND, 2, &end, 1)));
        } else {
            clock_sleep_ms(rank == 1 ? late_ms : 0);
            TRY(both(group,
                     rank == 1 ? message(COLLECTIVE_SEND, 0, &brief, 1)
                               : message(COLLECTIVE_SEND, 0, sent, LONG_BYTES),
                     message(COLLECTIVE_RECV, 0, &end, 1)));
        }
        double took = clock_seconds(clock_now_ns() - start_ns);
        if (took > STUCK_SECONDS)
            return FAIL(STATUS_TIMEOUT, "%d ms late: it took %.1f s", late_ms, took);
    }
    return STATUS_OK;
}

START_TEST(a_message_that_comes_during_a_copy_is_seen)
{
    ranks_options options = {
        .world_size = 3, .backend = "local", .timeout_ms = 2 * STUCK_SECONDS * 1000};
    ck_assert_msg(run_ranks_with(&options, a_message_during_a_copy, NULL) == STATUS_OK, "%s",
                  status_text());
}
END_TEST

START_TEST(bytes_are_counted)
{
    ck_assert_int_eq(run(_i, collectives_traffic, NULL), STATUS_OK);
}
END_TEST

/* What one rank, *arg, does not do. */
static status all_but_one(process_group *group, int rank, int world_size, void *arg)
{
    enum { LONG = LOCAL_KEPT_BYTES / sizeof(float) + 1 }; /* a send that needs its receiver */
    float data[4] = {0}, many[LONG] = {0};
    const char *call = arg;
    if (rank == world_size - 1)
        return STATUS_OK; /* closes its group, or has slept */
    if (call[0] == 's')
        return rank == 0 ? process_group_send(group, many, LONG, DTYPE_F32, world_size - 1, NULL)
                         : STATUS_OK;
    if (call[0] == 'r')
        return rank == 0 ? process_group_recv(group, data, 4, DTYPE_F32, world_size - 1, NULL)
                         : STATUS_OK;
    return process_group_all_reduce(group, data, 4, DTYPE_F32, REDUCE_SUM, NULL);
}

static const char *const CALLS[] = {"all_reduce", "send", "recv"};

START_TEST(a_thread_that_leaves_is_named)
{
    char call[16];
    strcpy(call, CALLS[_i]);
    ck_assert_int_eq(run(3, all_but_one, call), STATUS_PEER);
    ASSERT_FACTS(status_text(), CALLS[_i], "rank 2", "closed");
}
END_TEST

static status late(process_group *group, int rank, int world_size, void *arg)
{
    if (rank == world_size - 1)
        clock_sleep_ms(600);
    return all_but_one(group, rank, world_size, arg);
}

START_TEST(a_late_thread_is_a_timeout)
{
    char call[16];
    strcpy(call, CALLS[_i]);
    ranks_options options = {.world_size = 3, .backend = "local", .timeout_ms = 200};
    ck_assert_int_eq(run_ranks_with(&options, late, call), STATUS_TIMEOUT);
    ASSERT_FACTS(status_text(), CALLS[_i], "rank 2", "s");
}
END_TEST

/* *arg 0: the two sides of a message have different counts; 1: the ranks issue different kinds. */
static status differ(process_group *group, int rank, int world_size, void *arg)
{
    float data[8] = {0};
    (void)world_size;
    if (*(const int *)arg == 0)
        return rank == 0 ? process_group_send(group, data, 4, DTYPE_F32, 1, NULL)
                         : process_group_recv(group, data, 5, DTYPE_F32, 0, NULL);
    collective sum = {.kind = COLLECTIVE_REDUCE, .in = data, .out = data, .count = 4};
    return rank == 0 ? process_group_run(group, &sum, NULL)
                     : process_group_broadcast(group, data, 4, DTYPE_F32, 0, NULL);
}

START_TEST(a_difference_is_named)
{
    int which = _i;
    ck_assert_int_eq(run(2, differ, &which), STATUS_INVALID);
    if (which == 0)
        ASSERT_FACTS(status_text(), "rank 1", "count", "4 elements");
    else
        ASSERT_FACTS(status_text(), "rank", "reduce", "broadcast", "4 elements");
}
END_TEST

static status leave_at_once(process_group *group, int rank, int world_size, void *arg)
{
    float data[64] = {0};
    (void)rank;
    if (*(const int *)arg % 2 == 0)
        return process_group_all_reduce(group, data, 64, DTYPE_F32, REDUCE_SUM, NULL);
    return process_group_broadcast(group, data, 64, DTYPE_F32, world_size - 1, NULL);
}

START_TEST(leaving_after_the_last_disturbs_nobody)
{
    ck_assert_int_eq(run(4, leave_at_once, &_i), STATUS_OK);
}
END_TEST

START_TEST(the_hub_is_for_as_many_ranks)
{
    local_hub *hub = NULL;
    process_group *group = NULL;
    ck_assert_int_eq(local_hub_create(2, &hub), STATUS_OK);
    process_group_options options = {
        .backend = "local", .world_size = 3, .timeout_ms = 100, .hub = hub};
    ck_assert_int_eq(process_group_create(&options, &group), STATUS_INVALID);
    local_hub_destroy(hub);
    local_hub_destroy(NULL);
}
END_TEST

START_TEST(an_abort_ends_waits)
{
    ranks_options options = {.world_size = 2 + _i, .backend = "local"};
    ck_assert_int_eq(run_ranks_with(&options, aborts_end_waits, NULL), STATUS_OK);
}
END_TEST

typedef struct aborter {
    process_group *group;
    int wait_ms;
} aborter;

static void *abort_later(void *arg)
{
    const aborter *a = arg;
    clock_sleep_ms(a->wait_ms);
    process_group_abort(a->group, "nobody wants it any more");
    return NULL;
}

/* Rank 0 gives data, and takes it away as soon as its collective has failed: it is aborted or, if
 * *arg is 0, rank 1 is late. */
static status give_up(process_group *group, int rank, int world_size, void *arg)
{
    const int abort_ms = *(const int *)arg;
    aborter a = {.group = group, .wait_ms = abort_ms};
    pthread_t thread;
    (void)world_size;
    void *data = mmap(NULL, LONG_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT(data != MAP_FAILED);
    if (rank == 0 && abort_ms > 0) {
        memset(data, 1, LONG_BYTES);
        int error = pthread_create(&thread, NULL, abort_later, &a);
        ASSERT(error == 0);
    } else if (rank == 1 && abort_ms == 0) {
        clock_sleep_ms(8 * SHORT_MS);
    }
    status st = process_group_broadcast(group, data, LONG_BYTES, DTYPE_U8, 0, NULL);
    munmap(data, LONG_BYTES);
    if (rank == 0 && abort_ms > 0)
        pthread_join(thread, NULL);
    if (rank == 0 && abort_ms == 0) /* it is still there when rank 1 comes */
        clock_sleep_ms(16 * SHORT_MS);
    if (abort_ms == 0 && st != (rank == 0 ? STATUS_TIMEOUT : STATUS_PEER))
        return FAIL(STATUS_INVALID, "a broadcast whose root gave up: %s", status_text());
    return st == STATUS_PEER || st == STATUS_TIMEOUT ? STATUS_OK : st;
}

START_TEST(who_gives_up_has_its_data_for_itself)
{
    static const int abort_ms[] = {0, 1, 2, 4, 8, 16};
    int how = abort_ms[_i];
    ranks_options options = {
        .world_size = 2, .backend = "local", .timeout_ms = how == 0 ? SHORT_MS : 0};
    ck_assert_msg(run_ranks_with(&options, give_up, &how) == STATUS_OK, "%s", status_text());
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("local");
    TCase *results = suite_case(suite, "results", 60);
    tcase_add_loop_test(results, all_reduce_is_exact, 0, MAX_WORLD * 2);
    tcase_add_loop_test(results, broadcast_is_exact, 0, MAX_WORLD * 2);
    tcase_add_loop_test(results, reduce_is_exact, 0, MAX_WORLD * 2);
    tcase_add_loop_test(results, messages_are_exact, 1, MAX_WORLD + 1);
    tcase_add_test(results, a_message_that_comes_during_a_copy_is_seen);
    tcase_add_loop_test(results, bytes_are_counted, 1, MAX_WORLD + 1);
    TCase *failures = suite_case(suite, "failures", 30);
    tcase_add_loop_test(failures, a_thread_that_leaves_is_named, 0, 3);
    tcase_add_loop_test(failures, a_late_thread_is_a_timeout, 0, 3);
    tcase_add_loop_test(failures, a_difference_is_named, 0, 2);
    tcase_add_loop_test(failures, leaving_after_the_last_disturbs_nobody, 0, 12);
    tcase_add_test(failures, the_hub_is_for_as_many_ranks);
    tcase_add_loop_test(failures, an_abort_ends_waits, 0, 2);
    tcase_add_loop_test(failures, who_gives_up_has_its_data_for_itself, 0, 6);
    exchange_cases_add(suite, "local");
    return suite_run(suite);
}
