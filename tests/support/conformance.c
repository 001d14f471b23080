#include "tests/support/conformance.h"

#include "base/clock.h"
#include "tests/support/facts.h"

#include <stdio.h>
#include <string.h>

enum {
    LARGE = 300001, /* more than a slot of staging */
    LARGE_ROWS = 40009,
    HUGE = 10000000,
};

/* Empty, single, indivisible, whole lines, even, prime. */
static const size_t COUNTS[] = {0, 1, 7, 1009, 3, 6, 64, 1000, 7919};
enum { N_COUNTS = sizeof COUNTS / sizeof COUNTS[0], N_SHORT_COUNTS = 4 };

static int roots_of(const conformance_state *s, const conformance_row *row)
{
    return collective_has_root(row->kind) ? s->world_size : 1;
}

/* One type and count: in a whole run with each root and each kind of memory, else with two of them.
 * They are paired anew at each turn, so that in a whole run every root comes with every kind. */
static status run_type(conformance_state *s, const conformance_row *row, dtype type, size_t count,
                       int turn)
{
    const conformance_plan *plan = s->plan;
    int roots = roots_of(s, row), n_memory = plan->n_memory;
    int most = roots > n_memory ? roots : n_memory;
    for (int i = 0; i < (plan->whole || most < 2 ? most : 2); i++) {
        conformance_case what = {.kind = row->kind,
                                 .op = row->op,
                                 .type = type,
                                 .memory = plan->memory[(2 * turn + i) % n_memory],
                                 .count = count,
                                 .root = (turn + i) % roots,
                                 .prescale = 1};
        TRY(conformance_case_run(s->group, &s->arena, &what));
    }
    return STATUS_OK;
}

static bool is_rows(collective_kind kind)
{
    return kind != COLLECTIVE_ALL_REDUCE && kind != COLLECTIVE_BROADCAST &&
           kind != COLLECTIVE_REDUCE;
}

static status run_operation(conformance_state *s, const conformance_row *row)
{
    int n = s->plan->whole ? N_COUNTS : N_SHORT_COUNTS, turn = 0;
    for (int i = 0; i < n; i++)
        for (int type = 0; type < DTYPE_COUNT; type++)
            TRY(run_type(s, row, (dtype)type, COUNTS[i], turn++));
    size_t large = is_rows(row->kind) ? LARGE_ROWS : LARGE;
    for (int type = 0; type < DTYPE_COUNT; type++)
        if (s->plan->whole || type == ((int)row->kind + (int)row->op) % DTYPE_COUNT)
            TRY(run_type(s, row, (dtype)type, large, turn++));
    return STATUS_OK;
}

static bool does_huge(bool whole, int world_size)
{
    return whole && (world_size == 2 || world_size == 4);
}

static status run_huge(conformance_state *s, const conformance_row *row)
{
    for (int i = 0; i < s->plan->n_memory && does_huge(s->plan->whole, s->world_size); i++) {
        conformance_case what = {
            .kind = row->kind, .memory = s->plan->memory[i], .count = HUGE, .prescale = 1};
        TRY(conformance_case_run(s->group, &s->arena, &what));
    }
    return STATUS_OK;
}

/* What every reduction multiplies its inputs by. */
static status run_scaled(conformance_state *s, const conformance_row *row)
{
    static const collective_kind kinds[] = {COLLECTIVE_ALL_REDUCE, COLLECTIVE_REDUCE,
                                            COLLECTIVE_REDUCE_SCATTER};
    int turn = 0;
    (void)row;
    for (int k = 0; k < 3; k++)
        for (int op = 0; op < REDUCE_OP_COUNT; op++)
            for (int type = 0; type < DTYPE_COUNT; type++, turn++) {
                conformance_case what = {.kind = kinds[k],
                                         .op = (reduce_op)op,
                                         .type = (dtype)type,
                                         .memory = s->plan->memory[turn % s->plan->n_memory],
                                         .count = COUNTS[1 + turn % (N_COUNTS - 1)],
                                         .root = turn % s->world_size,
                                         .prescale = 0.5f};
                if (dtype_is_float(what.type))
                    TRY(conformance_case_run(s->group, &s->arena, &what));
            }
    return STATUS_OK;
}

static const conformance_row ROWS[] = {
    {"all_reduce sum", run_operation, COLLECTIVE_ALL_REDUCE, REDUCE_SUM},
    {"all_reduce avg", run_operation, COLLECTIVE_ALL_REDUCE, REDUCE_AVG},
    {"all_reduce min", run_operation, COLLECTIVE_ALL_REDUCE, REDUCE_MIN},
    {"all_reduce max", run_operation, COLLECTIVE_ALL_REDUCE, REDUCE_MAX},
    {"all_reduce prod", run_operation, COLLECTIVE_ALL_REDUCE, REDUCE_PROD},
    {"all_reduce 10^7", run_huge, COLLECTIVE_ALL_REDUCE, REDUCE_SUM},
    {"broadcast", run_operation, COLLECTIVE_BROADCAST, REDUCE_SUM},
    {"reduce sum", run_operation, COLLECTIVE_REDUCE, REDUCE_SUM},
    {"reduce avg", run_operation, COLLECTIVE_REDUCE, REDUCE_AVG},
    {"reduce min", run_operation, COLLECTIVE_REDUCE, REDUCE_MIN},
    {"reduce max", run_operation, COLLECTIVE_REDUCE, REDUCE_MAX},
    {"reduce prod", run_operation, COLLECTIVE_REDUCE, REDUCE_PROD},
    {"all_gather", run_operation, COLLECTIVE_ALL_GATHER, REDUCE_SUM},
    {"gather", run_operation, COLLECTIVE_GATHER, REDUCE_SUM},
    {"scatter", run_operation, COLLECTIVE_SCATTER, REDUCE_SUM},
    {"reduce_scatter sum", run_operation, COLLECTIVE_REDUCE_SCATTER, REDUCE_SUM},
    {"reduce_scatter avg", run_operation, COLLECTIVE_REDUCE_SCATTER, REDUCE_AVG},
    {"reduce_scatter min", run_operation, COLLECTIVE_REDUCE_SCATTER, REDUCE_MIN},
    {"reduce_scatter max", run_operation, COLLECTIVE_REDUCE_SCATTER, REDUCE_MAX},
    {"reduce_scatter prod", run_operation, COLLECTIVE_REDUCE_SCATTER, REDUCE_PROD},
    {"all_to_all", run_operation, COLLECTIVE_ALL_TO_ALL, REDUCE_SUM},
    {"prescale", run_scaled, COLLECTIVE_ALL_REDUCE, REDUCE_SUM},
    {"send, recv", conformance_sends, COLLECTIVE_SEND, REDUCE_SUM},
    {"isend, irecv, tags", conformance_isends, COLLECTIVE_SEND, REDUCE_SUM},
    {"batch_isend_irecv", conformance_batches, COLLECTIVE_SEND, REDUCE_SUM},
    {"barrier", conformance_barrier, COLLECTIVE_BARRIER, REDUCE_SUM},
    {"150 under way", conformance_many, COLLECTIVE_ALL_REDUCE, REDUCE_SUM},
    {"same bits", conformance_bits, COLLECTIVE_ALL_REDUCE, REDUCE_SUM},
    {"new_group", conformance_groups, COLLECTIVE_ALL_REDUCE, REDUCE_SUM},
};

enum { N_ROWS = sizeof ROWS / sizeof ROWS[0] };
_Static_assert((int)N_ROWS <= (int)CONFORMANCE_ROWS, "the board has room");

int conformance_rows(void)
{
    return N_ROWS;
}

const char *conformance_row_name(int row)
{
    return ROWS[row].name;
}

bool conformance_row_is_long(int row)
{
    return ROWS[row].run == run_huge;
}

const char *conformance_result_name(conformance_result result)
{
    static const char *const names[] = {"-", "FAIL", "pass", "refuses", "FAIL"};
    return names[result];
}

static size_t arena_bytes(bool whole, int world_size)
{
    const conformance_case largest[] = {
        {.kind = COLLECTIVE_ALL_GATHER, .type = DTYPE_F64, .count = LARGE_ROWS},
        {.kind = COLLECTIVE_ALL_REDUCE, .type = DTYPE_F64, .count = LARGE},
        {.kind = COLLECTIVE_ALL_REDUCE, .count = does_huge(whole, world_size) ? HUGE : 0},
    };
    size_t most = 0;
    for (int i = 0; i < 3; i++) {
        size_t bytes = conformance_case_bytes(&largest[i], world_size);
        most = bytes > most ? bytes : most;
    }
    return most;
}

size_t conformance_shared_bytes(bool whole, int world_size)
{
    return arena_bytes(whole, world_size) + (1 << 20);
}

static bool is_refusal(status st)
{
    return st == STATUS_INVALID && facts_in_a_line(status_text(), "backend", "has no", NULL);
}

static status run_row(conformance_state *s, int row)
{
    conformance_cell *cell = &s->plan->board->cells[row][s->rank];
    int64_t start_ns = clock_now_ns();
    cell->result = CONFORMANCE_RUNS;
    status st = ROWS[row].run(s, &ROWS[row]);
    cell->st = st;
    cell->result = st == STATUS_OK  ? CONFORMANCE_PASSES
                   : is_refusal(st) ? CONFORMANCE_REFUSES
                                    : CONFORMANCE_FAILS;
    if (st != STATUS_OK)
        snprintf(cell->text, sizeof cell->text, "%s", status_text());
    if (s->plan->whole && s->rank == 0)
        fprintf(stderr, "%d ranks  %-22s %-8s %5.1f s\n", s->world_size, ROWS[row].name,
                conformance_result_name(cell->result), clock_seconds(clock_now_ns() - start_ns));
    return st;
}

status conformance_rank(process_group *group, int rank, int world_size, void *arg)
{
    const conformance_plan *plan = arg;
    conformance_state s = {group, rank, world_size, plan, {0}};
    status st = arena_open(group, arena_bytes(plan->whole, world_size), &s.arena);
    for (int row = plan->first; row < N_ROWS && st == STATUS_OK; row++)
        if (plan->skipped == NULL || !plan->skipped[row])
            st = run_row(&s, row);
    arena_close(&s.arena);
    return st;
}
