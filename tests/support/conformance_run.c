#include "tests/support/conformance_run.h"

#include "kernels/ops.h"
#include "tests/support/mpi_ranks.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SHORT_TIMEOUT_MS = 10000, SHORT_LIMIT_MS = 60000, TIMEOUT_MS = 60000, LIMIT_MS = 600000 };

/* The file in which ranks of mpirun find the plan and the board. */
static const char VARIABLE[] = "MNIST_DDP_TEST_CONFORMANCE";

typedef struct shared_plan {
    conformance_board board;
    bool whole, skipped[CONFORMANCE_ROWS];
    memory_kind memory[MEMORY_KINDS];
    int n_memory, first;
} shared_plan;

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

static void note(conformance_outcome *out, const conformance_cell *cell, int world_size,
                 bool is_complete)
{
    bool fails = cell->result == CONFORMANCE_REFUSES && is_complete;
    conformance_result result = fails ? CONFORMANCE_FAILS : cell->result;
    if (result <= out->result)
        return;
    out->result = result;
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
                             .timeout_ms = plan->whole ? TIMEOUT_MS : SHORT_TIMEOUT_MS,
                             .shared_bytes = conformance_shared_bytes(plan->whole, world_size),
                             .limit_ms = plan->whole ? LIMIT_MS : SHORT_LIMIT_MS,
                             .open_device = backend->open_device,
                             .close_device = device_destroy};
    memset(plan->board, 0, sizeof *plan->board);
    *setup = (conformance_cell){0};
    mpi_end end;
    status st = backend->are_threads ? run_ranks_with(&options, conformance_rank, plan)
                : backend->by_mpirun
                    ? mpi_ranks_run(&(mpi_run){.world_size = world_size,
                                               .name = "conformance",
                                               .timeout_ms = TIMEOUT_MS,
                                               .limit_s = (int)(options.limit_ms / 1000)},
                                    results, &end)
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
static int take(const conformance_plan *plan, int world_size, bool is_complete,
                conformance_outcome *out)
{
    for (int row = plan->first; row < conformance_rows(); row++) {
        conformance_cell cell = merge(plan->board->cells[row], world_size);
        note(&out[row], &cell, world_size, is_complete);
        if (cell.result > CONFORMANCE_PASSES)
            return row;
    }
    return conformance_rows();
}

static shared_plan *map(int fd)
{
    void *memory = mmap(NULL, sizeof(shared_plan), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ASSERT(memory != MAP_FAILED);
    return memory;
}

void conformance_serve(void)
{
    const char *path = getenv(VARIABLE);
    int fd = path != NULL ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    shared_plan *shared = map(fd);
    conformance_plan plan = {.whole = shared->whole,
                             .memory = shared->memory,
                             .n_memory = shared->n_memory,
                             .first = shared->first,
                             .skipped = shared->skipped,
                             .board = &shared->board};
    mpi_ranks_serve((mpi_function[]){{"conformance", conformance_rank, &plan}, {NULL, NULL, NULL}});
}

/* Starts the ranks again after each row that has ended a run. */
static void run_all(const conformance_backend *backend, int world_size, conformance_plan *plan,
                    int *first, conformance_outcome *out)
{
    while (plan->first < conformance_rows()) {
        conformance_cell setup;
        *first = plan->first;
        start(backend, world_size, plan, &setup);
        int ended = take(plan, world_size, backend->is_complete, out);
        if (ended == conformance_rows() && setup.result == CONFORMANCE_FAILS) { /* at no row */
            for (int row = plan->first; row < conformance_rows(); row++)
                if (!plan->skipped[row])
                    note(&out[row], &setup, world_size, false);
        }
        plan->first = ended + 1;
    }
}

void conformance_run(const conformance_backend *backend, int world_size, bool whole,
                     const bool *skipped, conformance_outcome *out)
{
    char path[] = "/tmp/mnist_ddp-conformance-XXXXXX";
    int fd = mkstemp(path);
    ASSERT(fd >= 0 && ftruncate(fd, sizeof(shared_plan)) == 0);
    shared_plan *shared = map(fd);
    shared->whole = whole;
    shared->n_memory = backend->n_memory;
    memcpy(shared->memory, backend->memory, (size_t)backend->n_memory * sizeof *backend->memory);
    memcpy(shared->skipped, skipped, (size_t)conformance_rows() * sizeof *skipped);
    conformance_plan plan = {.whole = whole,
                             .one_order = backend->one_order,
                             .memory = backend->memory,
                             .n_memory = backend->n_memory,
                             .skipped = skipped,
                             .board = &shared->board};
    if (backend->by_mpirun)
        setenv(VARIABLE, path, 1);
    run_all(backend, world_size, &plan, &shared->first, out);
    unsetenv(VARIABLE);
    munmap(shared, sizeof *shared);
    close(fd);
    unlink(path);
}
