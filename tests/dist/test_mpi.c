/* The mpi backend, through its module, under a real mpirun. SKIP without Open MPI. */
#include "base/clock.h"
#include "base/digest.h"
#include "base/half.h"
#include "tests/support/aborts.h"
#include "tests/support/collective_data.h"
#include "tests/support/collectives.h"
#include "tests/support/deaths.h"
#include "tests/support/facts.h"
#include "tests/support/mpi_ranks.h"
#include "tests/support/suite.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WORLD = 4, ROW = 1009, LONG = 900001 };

/* What training needs, on plain memory and out of place; and what it does not. */
static status all_kinds(process_group *group, int rank, int world_size, void *arg)
{
    (void)arg;
    for (memory_kind kind = MEMORY_PLAIN; kind <= MEMORY_OUT_OF_PLACE; kind++) {
        TRY(collectives_all_reduce(group, rank, world_size, &kind));
        if (kind == MEMORY_PLAIN)
            TRY(collectives_broadcast(group, rank, world_size, &kind));
        else
            TRY(collectives_further(group, rank, world_size, &kind));
    }
    TRY(collectives_outstanding(group, rank, world_size, NULL));
    return collectives_bits(group, rank, world_size, NULL);
}

static void put(void *data, dtype type, size_t i, int64_t value)
{
    if (type == DTYPE_BF16)
        ((uint16_t *)data)[i] = f32_to_bf16((float)value);
    else if (type == DTYPE_F16)
        ((uint16_t *)data)[i] = f32_to_f16((float)value);
    else if (type == DTYPE_U8)
        ((uint8_t *)data)[i] = (uint8_t)value;
    else
        collective_data_put(data, type, i, value);
}

static status expect(const void *data, dtype type, size_t i, int64_t want, const char *what)
{
    uint64_t bits = 0;
    put(&bits, type, 0, want);
    size_t size = dtype_size(type);
    if (memcmp((const char *)data + i * size, &bits, size) == 0)
        return STATUS_OK;
    return FAIL(STATUS_INVALID, "%s of %s: [%zu] is not %d", what, dtype_name(type), i, (int)want);
}

/* Arrays of a row for each rank. */
typedef struct rows {
    void *in, *out;
    size_t row_bytes;
    dtype type;
} rows;

static void put_rows(const rows *r, void *data, int n, int salt)
{
    for (int row = 0; row < n; row++)
        for (size_t i = 0; i < ROW; i++)
            put(data, r->type, (size_t)row * ROW + i, collective_data_value(salt + row, i) & 15);
}

static status expect_row(const rows *r, const void *data, int row, int salt, const char *what)
{
    for (size_t i = 0; i < ROW; i++)
        TRY(expect(data, r->type, (size_t)row * ROW + i, collective_data_value(salt, i) & 15,
                   what));
    return STATUS_OK;
}

static status move_rows(process_group *group, const rows *r, collective_kind kind, const void *in,
                        void *out, int root)
{
    collective c = {
        .kind = kind, .type = r->type, .in = in, .out = out, .count = ROW, .root = root};
    return process_group_run(group, &c, NULL);
}

static status check_gather(process_group *group, const rows *r, int root, bool in_place)
{
    int rank = process_group_rank(group), n = process_group_world_size(group);
    char *own = (char *)r->out + (size_t)rank * r->row_bytes;
    void *in = in_place && rank == root ? own : r->in;
    put_rows(r, in, 1, 100 + rank);
    TRY(move_rows(group, r, COLLECTIVE_GATHER, in, r->out, root));
    for (int i = 0; i < n && rank == root; i++)
        TRY(expect_row(r, r->out, i, 100 + i, "gather"));
    put_rows(r, own, 1, 200 + rank);
    TRY(process_group_all_gather(group, in_place ? own : memcpy(r->in, own, r->row_bytes), r->out,
                                 ROW, r->type, NULL));
    for (int i = 0; i < n; i++)
        TRY(expect_row(r, r->out, i, 200 + i, "all_gather"));
    return STATUS_OK;
}

static status check_scatter(process_group *group, const rows *r, int root, bool in_place)
{
    int rank = process_group_rank(group), n = process_group_world_size(group);
    char *own = (char *)r->in + (size_t)rank * r->row_bytes;
    void *out = in_place && rank == root ? own : r->out;
    put_rows(r, r->in, n, 300);
    TRY(move_rows(group, r, COLLECTIVE_SCATTER, r->in, out, root));
    TRY(expect_row(r, out, 0, 300 + rank, "scatter"));
    out = in_place ? r->in : r->out;
    put_rows(r, r->in, n, 400 + 10 * rank);
    TRY(move_rows(group, r, COLLECTIVE_ALL_TO_ALL, r->in, out, 0));
    for (int i = 0; i < n; i++)
        TRY(expect_row(r, out, i, 400 + 10 * i + rank, "all_to_all"));
    return STATUS_OK;
}

/* Sums of bytes would wrap: each rank's row is another rank's number. */
static status check_reduce_scatter(process_group *group, const rows *r, bool in_place)
{
    int rank = process_group_rank(group), n = process_group_world_size(group);
    void *out = in_place ? (char *)r->in + (size_t)rank * r->row_bytes : r->out;
    bool is_scaled = dtype_is_float(r->type);
    for (size_t i = 0; i < (size_t)n * ROW; i++)
        put(r->in, r->type, i, (int64_t)(i / ROW) + 2 * rank);
    collective c = {.kind = COLLECTIVE_REDUCE_SCATTER,
                    .op = REDUCE_AVG,
                    .type = r->type,
                    .in = r->in,
                    .out = out,
                    .count = ROW,
                    .prescale = is_scaled ? 4 : 1};
    TRY(process_group_run(group, &c, NULL));
    int sum = (is_scaled ? 4 : 1) * (n * rank + n * (n - 1));
    for (size_t i = 0; i < ROW; i++)
        TRY(expect(out, r->type, i, sum / n, "reduce_scatter"));
    return STATUS_OK;
}

/* A prescale of 2, then the mean; the root's memory is the others' to read. */
static status check_reduce(process_group *group, const rows *r, int root, bool in_place)
{
    int rank = process_group_rank(group), n = process_group_world_size(group);
    int scale = dtype_is_float(r->type) ? 2 : 1;
    collective what = {.kind = COLLECTIVE_REDUCE,
                       .op = REDUCE_AVG,
                       .type = r->type,
                       .in = r->in,
                       .out = in_place ? r->in : r->out,
                       .count = ROW,
                       .root = root,
                       .prescale = (float)scale};
    for (size_t i = 0; i < ROW; i++)
        put(r->in, r->type, i, 1 + 2 * rank);
    TRY(process_group_run(group, &what, NULL));
    for (size_t i = 0; i < ROW; i++)
        if (rank == root)
            TRY(expect(what.out, r->type, i, scale * n, "reduce"));
        else
            TRY(expect(r->in, r->type, i, 1 + 2 * rank, "in of reduce"));
    for (size_t i = 0; i < ROW; i++)
        put(r->in, r->type, i, 1 + (rank == root));
    collective product = {.kind = COLLECTIVE_ALL_REDUCE,
                          .op = REDUCE_PROD,
                          .type = r->type,
                          .in = what.in,
                          .out = what.out,
                          .count = ROW};
    work *w = NULL;
    TRY(process_group_launch(group, &product, NULL, &w));
    TRY(process_group_wait(group, w, NULL));
    for (size_t i = 0; i < ROW; i++)
        TRY(expect(what.out, r->type, i, 2, "product"));
    return STATUS_OK;
}

static status check_rows(process_group *group, const rows *r)
{
    for (int root = 0; root < process_group_world_size(group); root++)
        for (int in_place = 0; in_place < 2; in_place++) {
            TRY(check_gather(group, r, root, in_place != 0));
            TRY(check_scatter(group, r, root, in_place != 0));
            TRY(check_reduce_scatter(group, r, in_place != 0));
            TRY(check_reduce(group, r, root, in_place != 0));
        }
    return STATUS_OK;
}

/* Every type, every root, in place and not. */
static status all_rows(process_group *group, int rank, int world_size, void *arg)
{
    (void)rank, (void)arg;
    status st = STATUS_OK;
    for (int type = 0; type < DTYPE_COUNT && st == STATUS_OK; type++) {
        rows r = {.type = (dtype)type, .row_bytes = ROW * dtype_size((dtype)type)};
        r.in = calloc((size_t)world_size, r.row_bytes);
        r.out = calloc((size_t)world_size, r.row_bytes);
        st = r.in == NULL || r.out == NULL ? FAIL(STATUS_NO_MEMORY, "rows") : check_rows(group, &r);
        free(r.in);
        free(r.out);
    }
    return st;
}

/* 16-bit floats are added in MPI's order, and rounded each time. */
static status halves(process_group *group, int rank, int world_size, void *arg)
{
    (void)arg;
    static uint16_t data[5001];
    for (int type = DTYPE_BF16; type <= DTYPE_F16; type++)
        for (int op = 0; op < REDUCE_OP_COUNT; op++) {
            for (size_t i = 0; i < 5001; i++)
                put(data, (dtype)type, i, 1 + (rank + (int)i) % 2);
            TRY(process_group_all_reduce(group, data, 5001, (dtype)type, (reduce_op)op, NULL));
            for (size_t i = 0; i < 5001 && world_size % 2 == 0; i++) {
                int n = world_size;
                int64_t want = op == REDUCE_SUM    ? n + n / 2
                               : op == REDUCE_MIN  ? 1
                               : op == REDUCE_MAX  ? 2
                               : op == REDUCE_PROD ? 1 << n / 2
                                                   : -1;
                if (want >= 0)
                    TRY(expect(data, (dtype)type, i, want, reduce_op_name((reduce_op)op)));
            }
        }
    return STATUS_OK;
}

static status sub_groups(process_group *group, int rank, int world_size, void *arg)
{
    (void)arg;
    const int ends[] = {0, world_size - 1}, last[] = {1, world_size - 1};
    process_group *a = NULL, *b = NULL;
    float sum[3] = {1, 2, (float)rank};
    TRY(process_group_new_group(group, &(sub_group){.ranks = ends, .n = 2}, &a));
    if (world_size > 2)
        TRY(process_group_new_group(group, &(sub_group){.ranks = last, .n = 2}, &b));
    status st = STATUS_OK;
    if (a != NULL)
        st = process_group_all_reduce(a, sum, 3, DTYPE_F32, REDUCE_SUM, NULL);
    if (st == STATUS_OK && a != NULL && (int)sum[2] != world_size - 1)
        st = FAIL(STATUS_INVALID, "the ends' sum is %g", (double)sum[2]);
    if (st == STATUS_OK)
        st = process_group_barrier(group);
    int64_t from = rank;
    if (b != NULL && st == STATUS_OK)
        st = process_group_broadcast(b, &from, 1, DTYPE_I64, 0, NULL);
    if (st == STATUS_OK && b != NULL && from != 1)
        st = FAIL(STATUS_INVALID, "the last ones' root is %d", (int)from);
    process_group_destroy(a);
    if (st == STATUS_OK)
        st = process_group_barrier(group);
    process_group_destroy(b);
    return st;
}

/* Two messages with tags, taken in the other order; both ways at once. */
static status tags(process_group *group, int rank, int world_size, void *arg)
{
    (void)arg;
    static double out[2][LONG / 8], in[2][LONG / 8];
    int next = (rank + 1) % world_size, before = (rank + world_size - 1) % world_size;
    work *works[4];
    for (int i = 0; i < 2; i++)
        out[i][0] = out[i][LONG / 8 - 1] = 10 * rank + i;
    collective list[4];
    for (int i = 0; i < 2; i++) {
        list[i] = (collective){.kind = COLLECTIVE_SEND,
                               .in = out[i],
                               .count = LONG / 8,
                               .type = DTYPE_F64,
                               .root = next,
                               .tag = 70 + i};
        list[2 + i] = (collective){.kind = COLLECTIVE_RECV,
                                   .out = in[1 - i],
                                   .count = LONG / 8,
                                   .type = DTYPE_F64,
                                   .root = before,
                                   .tag = 71 - i};
    }
    TRY(process_group_batch_isend_irecv(group, list, 4, NULL, works));
    for (int i = 0; i < 4; i++)
        TRY(process_group_wait(group, works[i], NULL));
    for (int i = 0; i < 2; i++)
        if ((int)in[i][LONG / 8 - 1] != 10 * before + i)
            return FAIL(STATUS_INVALID, "tag %d brought %g", 70 + i, in[i][0]);
    return STATUS_OK;
}

/* The message is a digest of sums of fractions, of many pieces. */
static status digest(process_group *group, int rank, int world_size, void *arg)
{
    (void)world_size, (void)arg;
    static float data[LONG];
    for (size_t i = 0; i < LONG; i++)
        data[i] = 1.0f / (float)(1 + (i * 7 + (size_t)rank * 13) % 1000);
    TRY(process_group_all_reduce(group, data, LONG, DTYPE_F32, REDUCE_AVG, NULL));
    return FAIL(STATUS_INVALID, "%016" PRIx64, fnv1a(FNV1A_START, data, sizeof data));
}

static status other_length(process_group *group, int rank, int world_size, void *arg)
{
    (void)world_size, (void)arg;
    float data[8] = {0};
    if (rank == 0)
        return process_group_send(group, data, 5, DTYPE_F32, 1, NULL);
    return rank == 1 ? process_group_recv(group, data, 7, DTYPE_F32, 0, NULL) : STATUS_OK;
}

static status nobody_sends(process_group *group, int rank, int world_size, void *arg)
{
    (void)world_size, (void)arg;
    float data[8] = {0};
    return rank == 0 ? process_group_recv(group, data, 7, DTYPE_F32, 1, NULL)
                     : process_group_barrier(group);
}

/* All that is to come out right, in one start of mpirun. */
static status all_that_is_exact(process_group *group, int rank, int world_size, void *arg)
{
    TRY(all_kinds(group, rank, world_size, arg));
    TRY(all_rows(group, rank, world_size, arg));
    TRY(halves(group, rank, world_size, arg));
    TRY(sub_groups(group, rank, world_size, arg));
    return tags(group, rank, world_size, arg);
}

static death killed = {.rank = 1, .signal = SIGKILL, .before = true};
static death stopped = {.rank = 1, .signal = SIGSTOP, .before = true};
static death left = {.rank = 1, .before = true};

static const mpi_function FUNCTIONS[] = {
    {"exact", all_that_is_exact, NULL},        {"digest", digest, NULL},
    {"other_length", other_length, NULL},      {"nobody_sends", nobody_sends, NULL},
    {"killed", deaths_in_all_reduce, &killed}, {"stopped", deaths_in_all_reduce, &stopped},
    {"aborted", aborts_end_waits, NULL},       {"left", deaths_in_all_reduce, &left},
    {"told", aborts_are_told, NULL},           {NULL, NULL, NULL},
};

START_TEST(results_are_exact)
{
    rank_result results[MAX_WORLD];
    mpi_end end;
    ck_assert_int_eq(mpi_ranks_run(&(mpi_run){.world_size = _i, .name = "exact"}, results, &end),
                     STATUS_OK);
    for (int rank = 0; rank < _i; rank++)
        ck_assert_msg(results[rank].reported && results[rank].st == STATUS_OK, "rank %d: %s: %s",
                      rank, status_name(results[rank].st), results[rank].message);
    ck_assert_int_eq(end.exit_code, 0); /* MPI has been ended, not left */
}
END_TEST

START_TEST(the_bits_are_the_same_each_time)
{
    rank_result first[MAX_WORLD], second[MAX_WORLD];
    mpi_end end;
    ck_assert_int_eq(mpi_ranks_run(&(mpi_run){.world_size = _i, .name = "digest"}, first, &end),
                     STATUS_OK);
    ck_assert_int_eq(mpi_ranks_run(&(mpi_run){.world_size = _i, .name = "digest"}, second, &end),
                     STATUS_OK);
    ck_assert_uint_eq(strlen(first[0].message), 16);
    for (int rank = 0; rank < _i; rank++) {
        ck_assert_str_eq(first[rank].message, first[0].message);
        ck_assert_str_eq(second[rank].message, first[0].message);
    }
}
END_TEST

START_TEST(a_message_of_another_length_is_refused)
{
    rank_result results[2];
    mpi_end end;
    ck_assert_int_eq(
        mpi_ranks_run(&(mpi_run){.world_size = 2, .name = "other_length"}, results, &end),
        STATUS_OK);
    ck_assert_int_eq(results[1].st, STATUS_INVALID);
    ASSERT_FACTS(results[1].message, "rank 0", "sent 5", "takes 7");
}
END_TEST

static void expect_deaths(const char *name, const char *who, int64_t timeout_ms, status want)
{
    const int dead = 1;
    rank_result results[3];
    mpi_end end;
    ck_assert_int_eq(
        mpi_ranks_run(&(mpi_run){.world_size = 3, .name = name, .timeout_ms = timeout_ms}, results,
                      &end),
        STATUS_OK);
    ck_assert_int_ne(end.exit_code, 0);
    ck_assert_double_lt(end.seconds, 10);
    for (int rank = 0; rank < 3; rank++) {
        const rank_result *r = &results[rank];
        if (rank == dead)
            continue;
        ck_assert_msg(r->reported && r->st == want, "rank %d: %s: %s", rank, status_name(r->st),
                      r->message);
        ASSERT_FACTS(r->message, "all_reduce", who);
        ck_assert_double_lt(r->seconds, clock_seconds(timeout_ms * 1000000) + 2);
    }
}

START_TEST(a_killed_rank_is_named)
{
    expect_deaths("killed", "rank 1 (pid ", 20000, STATUS_PEER);
}
END_TEST

/* mpirun wakes it up before it ends it, once another rank has ended: so not all find it stopped. */
START_TEST(a_stopped_rank_is_a_timeout)
{
    expect_deaths("stopped", "rank 1", 1500, STATUS_TIMEOUT);
}
END_TEST

START_TEST(a_receive_that_nobody_sends_is_a_timeout)
{
    rank_result results[2];
    mpi_end end;
    ck_assert_int_eq(
        mpi_ranks_run(&(mpi_run){.world_size = 2, .name = "nobody_sends", .timeout_ms = 2000},
                      results, &end),
        STATUS_OK);
    ck_assert_int_eq(results[0].st, STATUS_TIMEOUT);
    ASSERT_FACTS(results[0].message, "recv", "rank 1", "has not come");
}
END_TEST

START_TEST(an_abort_ends_waits_and_is_told)
{
    rank_result results[3];
    mpi_end end;
    const char *name = _i == 0 ? "aborted" : "told";
    ck_assert_int_eq(mpi_ranks_run(&(mpi_run){.world_size = 3, .name = name}, results, &end),
                     STATUS_OK);
    for (int rank = 0; rank < 3; rank++)
        ck_assert_msg(results[rank].st == STATUS_OK, "rank %d: %s", rank, results[rank].message);
}
END_TEST

START_TEST(a_rank_that_leaves_adds_nothing_to_a_sum)
{
    rank_result results[MAX_WORLD];
    mpi_end end;
    ck_assert_int_eq(mpi_ranks_run(&(mpi_run){.world_size = _i, .name = "left"}, results, &end),
                     STATUS_OK);
    for (int rank = 0; rank < _i; rank++)
        if (rank != 1 && results[rank].reported) { /* else MPI's launcher was faster */
            ck_assert_msg(results[rank].st == STATUS_PEER, "rank %d: %s: %s", rank,
                          status_name(results[rank].st), results[rank].message);
            ASSERT_FACTS(results[rank].message, "rank 1", "closed");
        }
}
END_TEST

static status nothing(process_group *group, int rank, int world_size, void *arg)
{
    (void)rank, (void)world_size, (void)arg;
    return process_group_barrier(group);
}

START_TEST(who_was_not_started_by_mpi_is_told)
{
    ranks_options options = {.world_size = 2, .backend = "mpi"};
    rank_result results[2];
    unsetenv("OMPI_COMM_WORLD_RANK");
    unsetenv("PMIX_RANK");
    ck_assert_int_eq(run_rank_processes(&options, nothing, NULL, results), STATUS_OK);
    for (int rank = 0; rank < 2; rank++)
        ASSERT_FACTS(results[rank].message, "MPI", "mpirun", "--nproc-per-node");
}
END_TEST

int main(void)
{
    mpi_ranks_serve(FUNCTIONS);
    const char *missing = mpi_ranks_missing();
    Suite *suite = suite_create("mpi");
    TCase *results = suite_case(suite, "results", 70);
    for (int world_size = 2; world_size <= MAX_WORLD; world_size++)
        suite_add(results, results_are_exact, world_size, missing);
    suite_add(results, the_bits_are_the_same_each_time, 2, missing);
    suite_add(results, the_bits_are_the_same_each_time, 4, missing);
    suite_add(results, a_message_of_another_length_is_refused, 0, missing);
    TCase *deaths = suite_case(suite, "deaths", 70);
    suite_add(deaths, a_killed_rank_is_named, 0, missing);
    suite_add(deaths, a_stopped_rank_is_a_timeout, 0, missing);
    suite_add(deaths, a_receive_that_nobody_sends_is_a_timeout, 0, missing);
    suite_add_all(deaths, an_abort_ends_waits_and_is_told, 2, missing);
    for (int world_size = 2; world_size <= MAX_WORLD; world_size++)
        suite_add(deaths, a_rank_that_leaves_adds_nothing_to_a_sum, world_size, missing);
    suite_add(deaths, who_was_not_started_by_mpi_is_told, 0, missing);
    return suite_run(suite);
}
