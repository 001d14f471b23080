/* Under PROCESS_GROUP_DEBUG_DETAIL, arguments that differ between ranks are named on every rank. */
#include "base/clock.h"
#include "tests/support/facts.h"
#include "tests/support/ranks.h"
#include "tests/support/suite.h"

#include <signal.h>
#include <string.h>

enum { WORLD = 3, ROOM = 16 };

static const char *const BACKENDS[] = {"shm", "gloo"};

/* What two of three ranks call, and what the third calls. */
static const struct {
    collective usual, odd;
    const char *facts[5];
} DIFFERENCES[] = {
    {{.count = 3}, {.count = 4}, {"all_reduce", "count 4", "count 3"}},
    {{.count = 3}, {.count = 0}, {"all_reduce", "count 0", "count 3"}},
    {{.count = 3}, {.count = 3, .op = REDUCE_MAX}, {"all_reduce", "op max", "op sum"}},
    {{.count = 3}, {.count = 3, .type = DTYPE_F64}, {"all_reduce", "dtype f64", "dtype f32"}},
    {{.count = 3}, {.count = 3, .prescale = 0.5f}, {"all_reduce", "prescale 0.5", "prescale 1"}},
    {{.count = 3}, {.kind = COLLECTIVE_BARRIER}, {"all_reduce", "barrier", "order"}},
    {{.kind = COLLECTIVE_BROADCAST, .count = 3, .root = 2},
     {.kind = COLLECTIVE_BROADCAST, .count = 3},
     {"broadcast", "root 0", "root 2"}},
    {{.kind = COLLECTIVE_REDUCE, .count = 3, .root = 2},
     {.kind = COLLECTIVE_ALL_REDUCE, .count = 3},
     {"all_reduce", "reduce", "order"}},
};
enum { N_DIFFERENCES = sizeof DIFFERENCES / sizeof DIFFERENCES[0] };

typedef struct difference {
    int which, odd_rank;
} difference;

static status differ(process_group *group, int rank, int world_size, void *arg)
{
    const difference *d = arg;
    double data[ROOM] = {0};
    char who[16];
    (void)world_size;
    snprintf(who, sizeof who, "rank %d calls", d->odd_rank);
    TRY(process_group_all_reduce(group, data, 2, DTYPE_F64, REDUCE_SUM, NULL));
    collective c = rank == d->odd_rank ? DIFFERENCES[d->which].odd : DIFFERENCES[d->which].usual;
    c.in = c.out = data;
    status st = process_group_run(group, &c, NULL);
    if (st != STATUS_INVALID || !facts_in_a_line(status_text(), who, "#2", NULL) ||
        !facts_listed_in_a_line(status_text(), DIFFERENCES[d->which].facts))
        return FAIL(STATUS_IO, "rank %d: status %s: %s", rank, status_name(st), status_text());
    if (process_group_barrier(group) != STATUS_INVALID ||
        !facts_in_a_line(status_text(), "broken", who, NULL))
        return FAIL(STATUS_IO, "rank %d: then %s", rank, status_text());
    return STATUS_OK;
}

START_TEST(a_difference_is_named_on_every_rank)
{
    ranks_options options = {.world_size = WORLD, .debug = PROCESS_GROUP_DEBUG_DETAIL};
    for (int k = 0; k < 2; k++) {
        difference d = {_i % N_DIFFERENCES, k == 0 ? 1 : 0};
        options.backend = BACKENDS[_i / N_DIFFERENCES];
        ck_assert_int_eq(run_ranks_with(&options, differ, &d), STATUS_OK);
    }
}
END_TEST

/* One rank leaves a collective out. */
static status leave_out(process_group *group, int rank, int world_size, void *arg)
{
    float data[2] = {0};
    (void)world_size;
    (void)arg;
    if (rank == 1)
        clock_sleep_ms(900);
    if (rank == 1)
        return STATUS_OK;
    status st = process_group_broadcast(group, data, 2, DTYPE_F32, 0, NULL);
    if (st != STATUS_TIMEOUT ||
        !facts_in_a_line(status_text(), "rank 1 has", "broadcast #1 (2 x f32)", NULL))
        return FAIL(STATUS_IO, "status %s: %s", status_name(st), status_text());
    return STATUS_OK;
}

START_TEST(who_does_not_come_is_named)
{
    ranks_options options = {.world_size = WORLD,
                             .backend = BACKENDS[_i],
                             .timeout_ms = 400,
                             .debug = PROCESS_GROUP_DEBUG_DETAIL};
    ck_assert_int_eq(run_ranks_with(&options, leave_out, NULL), STATUS_OK);
}
END_TEST

/* One rank is killed, or stops, before a collective. */
static status be_lost(process_group *group, int rank, int world_size, void *arg)
{
    (void)world_size;
    TRY(process_group_barrier(group));
    if (rank == 1)
        raise(*(const int *)arg);
    status st = process_group_barrier(group);
    return st == STATUS_OK ? FAIL(STATUS_INVALID, "rank 1 was not missed") : st;
}

/* Case i: a backend; and whether it is killed, or stops. */
START_TEST(who_is_lost_is_named)
{
    rank_result results[WORLD];
    bool killed = _i % 2 == 0;
    int signal = killed ? SIGKILL : SIGSTOP;
    ranks_options options = {.world_size = WORLD,
                             .backend = BACKENDS[_i / 2],
                             .timeout_ms = killed ? 20000 : 700,
                             .debug = PROCESS_GROUP_DEBUG_DETAIL};
    ck_assert_int_eq(run_rank_processes(&options, be_lost, &signal, results), STATUS_OK);
    for (int rank = 0; rank < WORLD; rank += 2) {
        ck_assert(results[rank].reported);
        ck_assert_msg(results[rank].st == (killed ? STATUS_PEER : STATUS_TIMEOUT), "%s",
                      results[rank].message);
        ASSERT_FACTS(results[rank].message, "rank 1 (pid ", killed ? "gone" : "stopped");
        ck_assert_double_lt(results[rank].seconds, 10);
    }
}
END_TEST

/* What is alike, or is each rank's own, is no difference; sends and receives are not compared. */
static status agree(process_group *group, int rank, int world_size, void *arg)
{
    float data[ROOM] = {0};
    (void)arg;
    for (int round = 0; round < 20; round++) {
        TRY(process_group_all_reduce(group, data, (size_t)round % ROOM, DTYPE_F32, REDUCE_SUM,
                                     NULL));
        TRY(process_group_barrier(group));
        if (rank == 0)
            TRY(process_group_send(group, data, 2, DTYPE_F32, world_size - 1, NULL));
        if (rank == world_size - 1)
            TRY(process_group_recv(group, data, 2, DTYPE_F32, 0, NULL));
    }
    work *works[ROOM];
    for (int k = 0; k < ROOM; k++)
        TRY(process_group_launch(
            group,
            &(collective){
                .kind = COLLECTIVE_ALL_REDUCE, .in = &data[k], .out = &data[k], .count = 1},
            NULL, &works[k]));
    for (int k = 0; k < ROOM; k++)
        TRY(process_group_wait(group, works[k], NULL));
    return STATUS_OK;
}

START_TEST(what_agrees_is_let_through)
{
    ranks_options options = {
        .world_size = WORLD, .backend = BACKENDS[_i], .debug = PROCESS_GROUP_DEBUG_DETAIL};
    ck_assert_int_eq(run_ranks_with(&options, agree, NULL), STATUS_OK);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("call_check");
    TCase *core = suite_case(suite, "core", 30);
    for (int k = 0; k < 2; k++) {
        const char *missing = ranks_lack_backend(BACKENDS[k]);
        for (int i = 0; i < N_DIFFERENCES; i++)
            suite_add(core, a_difference_is_named_on_every_rank, k * N_DIFFERENCES + i, missing);
        suite_add(core, who_does_not_come_is_named, k, missing);
        suite_add(core, who_is_lost_is_named, 2 * k, missing);
        suite_add(core, who_is_lost_is_named, 2 * k + 1, missing);
        suite_add(core, what_agrees_is_let_through, k, missing);
    }
    return suite_run(suite);
}
