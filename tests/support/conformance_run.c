#include "tests/support/conformance_run.h"

#include "kernels/ops.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum { TIMEOUT_MS = 10000, SHORT_LIMIT_MS = 60000, LIMIT_MS = 600000 };

/* A failed rank closes its group, and the others fail because of that: their words tell less. */
static bool tells_more(const conformance_cell *a, const conformance_cell *b)
{
    bool a_follows = a->st == STATUS_PEER || a->st == STATUS_TIMEOUT;
    bool b_follows = b->st == STATUS_PEER || b->st == STATUS_TIMEOUT;
    return a->result != b->result ? a->result > b->result : b_follows && !a_follows;
}

/* A row as all ranks see it. If nobody says what is wrong, who has not come to its end is. */
static conformance_cell merge(const conformance_cell *cells, int world_size)
{
    conformance_cell worst = {0};
    int missing = -1;
    for (int rank = 0; rank < world_size; rank++) {
        const conformance_cell *cell = &cells[rank];
        if (cell->result == CONFORMANCE_NOT_RUN || cell->result == CONFORMANCE_RUNS)
            missing = rank;
        if (rank == 0 || tells_more(cell, &worst))
            worst = *cell;
    }
    if (missing >= 0 && (worst.result == CONFORMANCE_RUNS || worst.result == CONFORMANCE_PASSES)) {
        worst = (conformance_cell){.result = CONFORMANCE_FAILS, .st = STATUS_TIMEOUT};
        snprintf(worst.text, sizeof worst.text, "rank %d has not come to its end", missing);
    }
    return worst;
}

static void note(conformance_outcome *out, const conformance_cell *cell, int world_size)
{
    if (cell->result <= out->result)
        return;
    out->result = cell->result;
    snprintf(out->text, sizeof out->text, "%d ranks: %s", world_size, cell->text);
}

/* One start of the ranks; `setup` is what kept them from the first row. */
static void start(const conformance_backend *backend, int world_size, conformance_plan *plan,
                  conformance_cell *setup)
{
    rank_result results[CONFORMANCE_RANKS];
    ranks_options options = {.world_size = world_size,
                             .backend = backend->name,
                             .hosts =
                                 strcmp(backend->name, "hierarchical") == 0 ? "aabbccdd" : NULL,
                             .timeout_ms = TIMEOUT_MS,
                             .shared_bytes = conformance_shared_bytes(plan->whole, world_size),
                             .limit_ms = plan->whole ? LIMIT_MS : SHORT_LIMIT_MS,
                             .open_device = backend->open_device,
                             .close_device = device_destroy};
    memset(plan->board, 0, sizeof *plan->board);
    *setup = (conformance_cell){0};
    status st = backend->are_threads
                    ? run_ranks_with(&options, conformance_rank, plan)
                    : run_rank_processes(&options, conformance_rank, plan, results);
    for (int rank = 0; rank < world_size && !backend->are_threads && st == STATUS_OK; rank++) {
        if (results[rank].reported && results[rank].st == STATUS_OK)
            continue;
        st = results[rank].reported ? results[rank].st : STATUS_PEER;
        snprintf(setup->text, sizeof setup->text, "%.*s", CONFORMANCE_TEXT_BYTES - 1,
                 results[rank].message);
    }
    setup->st = st;
    setup->result = st == STATUS_OK ? CONFORMANCE_PASSES : CONFORMANCE_FAILS;
    if (st != STATUS_OK && setup->text[0] == '\0')
        snprintf(setup->text, sizeof setup->text, "%s", status_text());
}

/* Takes the board into `out`; the row that ended the run, or conformance_rows(). */
static int take(const conformance_plan *plan, int world_size, conformance_outcome *out)
{
    for (int row = plan->first; row < conformance_rows(); row++) {
        conformance_cell cell = merge(plan->board->cells[row], world_size);
        note(&out[row], &cell, world_size);
        if (cell.result > CONFORMANCE_PASSES)
            return row;
    }
    return conformance_rows();
}

void conformance_run(const conformance_backend *backend, int world_size, bool whole,
                     const bool *skipped, conformance_outcome *out)
{
    void *memory = mmap(NULL, sizeof(conformance_board), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT(memory != MAP_FAILED);
    conformance_plan plan = {.whole = whole,
                             .one_order = backend->one_order,
                             .memory = backend->memory,
                             .n_memory = backend->n_memory,
                             .skipped = skipped,
                             .board = memory};
    while (plan.first < conformance_rows()) {
        conformance_cell setup;
        start(backend, world_size, &plan, &setup);
        int ended = take(&plan, world_size, out);
        if (ended == conformance_rows() && setup.result == CONFORMANCE_FAILS) { /* at no row */
            for (int row = plan.first; row < conformance_rows(); row++)
                if (!skipped[row])
                    note(&out[row], &setup, world_size);
        }
        plan.first = ended + 1;
    }
    munmap(memory, sizeof(conformance_board));
}
