/* Does every backend do every operation? Prints a table of operations and backends, and below it
 * what is wrong, refused or left out. A whole run takes minutes: it says on stderr what is done.
 *
 *   conformance [--whole] [--worlds=2,3] [--rows=WORD] [BACKEND ...]
 */
#include "tests/dist/nccl_ranks.h"
#include "tests/support/conformance_run.h"
#include "tests/support/mpi_ranks.h"

#include "base/clock.h"

#include <stdio.h>
#include <string.h>

static const memory_kind ON_HOST[] = {MEMORY_SYMMETRIC, MEMORY_PLAIN, MEMORY_OUT_OF_PLACE,
                                      MEMORY_OUT_IN_HEAP, MEMORY_MIXED};
static const memory_kind ON_DEVICE[] = {MEMORY_DEVICE, MEMORY_DEVICE_OUT_OF_PLACE, MEMORY_PLAIN,
                                        MEMORY_OUT_OF_PLACE};

static const conformance_backend BACKENDS[] = {
    {.name = "shm", .one_order = true, .is_complete = true, .memory = ON_HOST, .n_memory = 5},
    {.name = "local",
     .one_order = true,
     .is_complete = true,
     .are_threads = true,
     .memory = ON_HOST,
     .n_memory = 5},
    {.name = "gloo", .one_order = true, .is_complete = true, .memory = ON_HOST, .n_memory = 5},
    {.name = "mpi", .is_complete = true, .by_mpirun = true, .memory = ON_HOST, .n_memory = 5},
    {.name = "hierarchical", .is_complete = true, .memory = ON_HOST, .n_memory = 5},
    {.name = "nccl", .memory = ON_DEVICE, .n_memory = 4, .open_device = nccl_open_own},
};
enum { N_BACKENDS = sizeof BACKENDS / sizeof BACKENDS[0] };

static const int SHORT_WORLDS[] = {1, 2, 3, 4, 5};
enum { N_SHORT_WORLDS = sizeof SHORT_WORLDS / sizeof SHORT_WORLDS[0] };

typedef struct request {
    bool whole;
    const char *rows; /* a part of their names; NULL: all */
    bool chosen[N_BACKENDS];
    int worlds[CONFORMANCE_RANKS], n_worlds;
} request;

/* One column, and why it is empty. */
typedef struct column {
    const char *skipped; /* NULL: it is not */
    conformance_outcome rows[CONFORMANCE_ROWS];
    double seconds;
} column;

static bool read_worlds(const char *text, request *r)
{
    for (r->n_worlds = 0; *text != '\0' && r->n_worlds < CONFORMANCE_RANKS;) {
        int world_size = *text++ - '0';
        if (world_size < 1 || world_size > CONFORMANCE_RANKS || (*text != ',' && *text != '\0'))
            return false;
        r->worlds[r->n_worlds++] = world_size;
        text += *text == ',';
    }
    return r->n_worlds > 0;
}

static bool read_backend(const char *name, request *r)
{
    for (int i = 0; i < N_BACKENDS; i++)
        if (strcmp(BACKENDS[i].name, name) == 0)
            return r->chosen[i] = true;
    return false;
}

static bool read_words(int argc, char **argv, request *r)
{
    bool any = false;
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        bool fits = true;
        if (strcmp(word, "--whole") == 0)
            r->whole = true;
        else if (strncmp(word, "--rows=", 7) == 0)
            r->rows = word + 7;
        else if (strncmp(word, "--worlds=", 9) == 0)
            fits = read_worlds(word + 9, r);
        else
            fits = any = read_backend(word, r);
        if (!fits) {
            fprintf(stderr, "usage: %s [--whole] [--worlds=2,3] [--rows=WORD] [BACKEND ...]\n",
                    argv[0]);
            return false;
        }
    }
    for (int i = 0; i < N_BACKENDS && !any; i++)
        r->chosen[i] = true;
    for (int n = 0; r->n_worlds == 0 && n < CONFORMANCE_RANKS; n++)
        r->worlds[n] = r->whole ? n + 1 : SHORT_WORLDS[n % N_SHORT_WORLDS];
    if (r->n_worlds == 0)
        r->n_worlds = r->whole ? CONFORMANCE_RANKS : N_SHORT_WORLDS;
    return true;
}

/* Why a backend cannot be tried here; NULL: it can. */
static const char *missing(const conformance_backend *backend)
{
    if (strcmp(backend->name, "nccl") == 0)
        return nccl_choose() ? NULL : "there is no GPU, and no emulated one";
    return backend->by_mpirun ? mpi_ranks_missing() : ranks_lack_backend(backend->name);
}

static bool is_chosen(const request *r, int row)
{
    if (r->rows != NULL && strstr(conformance_row_name(row), r->rows) == NULL)
        return false;
    return r->whole || !conformance_row_is_long(row);
}

static void run_column(const conformance_backend *backend, const request *r, column *out)
{
    bool skipped[CONFORMANCE_ROWS] = {false};
    int64_t start_ns = clock_now_ns();
    out->skipped = missing(backend);
    if (r->whole && out->skipped == NULL)
        fprintf(stderr, "%s, as rank 0 sees it:\n", backend->name);
    for (int row = 0; row < conformance_rows(); row++)
        skipped[row] = !is_chosen(r, row);
    for (int i = 0; i < r->n_worlds && out->skipped == NULL; i++)
        if (backend->open_device == NULL || r->worlds[i] <= nccl_gpus)
            conformance_run(backend, r->worlds[i], r->whole, skipped, out->rows);
    out->seconds = clock_seconds(clock_now_ns() - start_ns);
}

static const char *word_of(const column *c, int row)
{
    return c->skipped != NULL ? "SKIP" : conformance_result_name(c->rows[row].result);
}

static void print_table(const column *columns, const request *r)
{
    printf("%-22s", "operation");
    for (int i = 0; i < N_BACKENDS; i++)
        if (r->chosen[i])
            printf(" %-8s", BACKENDS[i].name);
    for (int row = 0; row < conformance_rows(); row++) {
        if (!is_chosen(r, row))
            continue;
        printf("\n%-22s", conformance_row_name(row));
        for (int i = 0; i < N_BACKENDS; i++)
            if (r->chosen[i])
                printf(" %-8s", word_of(&columns[i], row));
    }
    printf("\n\nf32, f64, i64, bf16, f16, u8; counts of %s; in place and not; worlds of",
           r->whole ? "0 to 300,001, and 10^7 of 2 and 4 ranks" : "0, 1, 7, 1,009 and 300,001");
    for (int i = 0; i < r->n_worlds; i++)
        printf(" %d", r->worlds[i]);
    printf(" ranks\n");
}

/* False: something fails. */
static bool print_reasons(const column *columns, const request *r)
{
    bool fine = true;
    for (int i = 0; i < N_BACKENDS; i++) {
        const column *c = &columns[i];
        if (!r->chosen[i])
            continue;
        if (c->skipped != NULL) {
            printf("SKIP of %s: %s\n", BACKENDS[i].name, c->skipped);
            continue;
        }
        printf("%s took %.1f s\n", BACKENDS[i].name, c->seconds);
        for (int row = 0; row < conformance_rows(); row++)
            if (c->rows[row].result > CONFORMANCE_PASSES)
                printf("  %s %s: %s\n", word_of(c, row), conformance_row_name(row),
                       c->rows[row].text);
        for (int row = 0; row < conformance_rows(); row++)
            fine = fine && c->rows[row].result < CONFORMANCE_FAILS;
    }
    return fine;
}

int main(int argc, char **argv)
{
    static column columns[N_BACKENDS];
    request r = {0};
    int n_chosen = 0, n_skipped = 0;
    conformance_serve();
    if (!read_words(argc, argv, &r))
        return EXIT_FAILURE;
    for (int i = 0; i < N_BACKENDS; i++) {
        if (!r.chosen[i])
            continue;
        run_column(&BACKENDS[i], &r, &columns[i]);
        n_chosen++;
        n_skipped += columns[i].skipped != NULL;
    }
    print_table(columns, &r);
    bool fine = print_reasons(columns, &r);
    return !fine ? EXIT_FAILURE : n_skipped == n_chosen ? TEST_SKIPPED : EXIT_SUCCESS;
}
