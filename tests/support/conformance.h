/* What every backend must do: rows of operations, which the ranks of a group do together, and a
 * board on which each rank notes how they ended. */
#ifndef MNIST_DDP_TESTS_SUPPORT_CONFORMANCE_H
#define MNIST_DDP_TESTS_SUPPORT_CONFORMANCE_H

#include "tests/support/conformance_case.h"

#include <stdatomic.h>

typedef enum conformance_result {
    CONFORMANCE_NOT_RUN,
    CONFORMANCE_RUNS, /* begun */
    CONFORMANCE_PASSES,
    CONFORMANCE_REFUSES, /* the backend says that it has no such operation */
    CONFORMANCE_FAILS,
} conformance_result;

enum { CONFORMANCE_RANKS = 8, CONFORMANCE_ROWS = 32, CONFORMANCE_TEXT_BYTES = 512 };

/* How a row ended on a rank. */
typedef struct conformance_cell {
    conformance_result result;
    status st;
    char text[CONFORMANCE_TEXT_BYTES];
} conformance_cell;

/* In memory that all ranks share; zeroed for each run. */
typedef struct conformance_board {
    _Atomic int entered; /* of the barrier's row */
    conformance_cell cells[CONFORMANCE_ROWS][CONFORMANCE_RANKS];
} conformance_board;

/* What the ranks do. */
typedef struct conformance_plan {
    bool whole;     /* each root and kind of memory with every type and count, and 10^7 elements */
    bool one_order; /* the backend promises sums in rank order */
    const memory_kind *memory;
    int n_memory;
    int first;           /* row */
    const bool *skipped; /* (conformance_rows()) */
    conformance_board *board;
} conformance_plan;

int conformance_rows(void);
const char *conformance_row_name(int row);
bool conformance_row_is_long(int row);                          /* only for a whole run */
const char *conformance_result_name(conformance_result result); /* "pass", "FAIL" */

/* What a group needs to be created with. */
size_t conformance_shared_bytes(bool whole, int world_size);

/* A rank_fn; arg: conformance_plan. Does the rows from plan->first on, up to the first that fails
 * or is refused, which breaks the group. Returns its status. In a whole run rank 0 says on stderr
 * how each row ended for it. */
status conformance_rank(process_group *group, int rank, int world_size, void *arg);

/* A row's function. */
typedef struct conformance_state {
    process_group *group;
    int rank, world_size;
    const conformance_plan *plan;
    arena arena;
} conformance_state;

typedef struct conformance_row {
    const char *name;
    status (*run)(conformance_state *s, const struct conformance_row *row);
    collective_kind kind;
    reduce_op op;
} conformance_row;

/* conformance_messages.c */
status conformance_sends(conformance_state *s, const conformance_row *row);
status conformance_isends(conformance_state *s, const conformance_row *row);
status conformance_batches(conformance_state *s, const conformance_row *row);

/* conformance_order.c */
status conformance_barrier(conformance_state *s, const conformance_row *row);
status conformance_many(conformance_state *s, const conformance_row *row);
status conformance_bits(conformance_state *s, const conformance_row *row);
status conformance_groups(conformance_state *s, const conformance_row *row);

#endif
