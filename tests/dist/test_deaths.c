/* A rank that is killed or stopped in any operation: every other rank gets an error in time, and
 * none hangs. Over MPI it is killed only: mpirun lets a stopped rank go on before it ends it
 * (test_mpi.c). */
#include "tests/support/facts.h"
#include "tests/support/mpi_ranks.h"
#include "tests/support/ranks.h"
#include "tests/support/suite.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { WORLD = 3, DEAD = 1, COUNT = 5000, STOPPED_MS = 700, MOST_S = 4 };

static const char *const BACKENDS[] = {"shm", "gloo", "mpi"};
enum { MPI = 2 };

typedef struct end {
    collective_kind kind;
    int signal;
} end;

/* The dead rank is the root, or the other side. */
static status run_kind(process_group *group, collective_kind kind, float *in, float *out)
{
    bool in_place = kind == COLLECTIVE_BROADCAST;
    collective c = {.kind = kind,
                    .in = in_place ? out : in,
                    .out = out,
                    .count = COUNT,
                    .root = DEAD,
                    .prescale = 1};
    return process_group_run(group, &c, NULL);
}

/* A rank that only gives may be done with the operation; then the next one fails. */
static status die_in(process_group *group, int rank, int world_size, void *arg)
{
    static float in[COUNT * WORLD], out[COUNT * WORLD];
    const end *how = arg;
    (void)world_size;
    for (int i = 0; i < 3; i++)
        TRY(process_group_all_reduce(group, out, COUNT, DTYPE_F32, REDUCE_SUM, NULL));
    if (rank == DEAD)
        raise(how->signal);
    status st = run_kind(group, how->kind, in, out);
    for (int i = 0; i < 2 && st == STATUS_OK; i++)
        st = process_group_barrier(group);
    return st == STATUS_OK ? FAIL(STATUS_INVALID, "rank %d was not missed", DEAD) : st;
}

/* Case i: kind i % COLLECTIVE_KIND_COUNT on a backend. */
static void run_death(int i, int signal, status want, const char *fact)
{
    rank_result results[WORLD];
    end how = {(collective_kind)(i % COLLECTIVE_KIND_COUNT), signal};
    ranks_options options = {.world_size = WORLD,
                             .backend = BACKENDS[i / COLLECTIVE_KIND_COUNT],
                             .timeout_ms = signal == SIGSTOP ? STOPPED_MS : 10000};
    mpi_run by_mpirun = {.world_size = WORLD, .name = collective_kind_name(how.kind)};
    mpi_end end_of_mpirun;
    if (i / COLLECTIVE_KIND_COUNT == MPI)
        ck_assert_int_eq(mpi_ranks_run(&by_mpirun, results, &end_of_mpirun), STATUS_OK);
    else
        ck_assert_int_eq(run_rank_processes(&options, die_in, &how, results), STATUS_OK);
    for (int rank = 0; rank < WORLD; rank++) {
        if (rank == DEAD)
            continue;
        bool fits =
            results[rank].st == want || (signal == SIGSTOP && results[rank].st == STATUS_PEER);
        ck_assert_msg(results[rank].reported && fits, "%s, rank %d: %s: %s",
                      collective_kind_name(how.kind), rank, status_name(results[rank].st),
                      results[rank].message);
        if (fact != NULL)
            ASSERT_FACTS(results[rank].message, fact);
        ck_assert_msg(results[rank].seconds < MOST_S, "%s, rank %d: it took %g s",
                      collective_kind_name(how.kind), rank, results[rank].seconds);
    }
}

START_TEST(a_killed_rank_is_named_in_every_operation)
{
    run_death(_i, SIGKILL, STATUS_PEER, "rank 1 (pid ");
}
END_TEST

/* Some learn it from a rank that has given up before them. */
START_TEST(a_stopped_rank_ends_every_operation_in_time)
{
    run_death(_i, SIGSTOP, STATUS_TIMEOUT, NULL);
}
END_TEST

/* A process that mpirun has started does what its name says, and ends. */
static void serve_mpirun(void)
{
    static end ends[COLLECTIVE_KIND_COUNT];
    mpi_function list[COLLECTIVE_KIND_COUNT + 1] = {{NULL, NULL, NULL}};
    for (int kind = 0; kind < COLLECTIVE_KIND_COUNT; kind++) {
        ends[kind] = (end){(collective_kind)kind, SIGKILL};
        list[kind] =
            (mpi_function){collective_kind_name((collective_kind)kind), die_in, &ends[kind]};
    }
    mpi_ranks_serve(list);
}

int main(void)
{
    serve_mpirun();
    Suite *suite = suite_create("deaths");
    TCase *core = suite_case(suite, "core", 80);
    for (int i = 0; i < (MPI + 1) * COLLECTIVE_KIND_COUNT; i++) {
        int backend = i / COLLECTIVE_KIND_COUNT;
        const char *missing =
            backend == MPI ? mpi_ranks_missing() : ranks_lack_backend(BACKENDS[backend]);
        suite_add(core, a_killed_rank_is_named_in_every_operation, i, missing);
        if (backend != MPI)
            suite_add(core, a_stopped_rank_ends_every_operation_in_time, i, missing);
    }
    return suite_run(suite);
}
