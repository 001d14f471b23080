/* A stand-in for a measured run: a shell script that prints the JSON line that a run of the asked
 * mode, world size and batch might end with. Its figures are simple formulas, so that tests know
 * what must come out; a repeat differs from the other by a little. */
#ifndef MNIST_DDP_TESTS_APP_SUPPORT_BENCH_FIXTURE_H
#define MNIST_DDP_TESTS_APP_SUPPORT_BENCH_FIXTURE_H

#include "app/bench/bench.h"
#include "app/report/report.h"
#include "tests/app/support/command_line.h"
#include "tests/app/support/test_folder.h"

/* One comparison by such runs, up to its document. */
typedef struct bench_fixture {
    options opts;
    bench_cases cases;
    bench_rows rows;
    bench_child place;
    bench_commands commands;
    json_t *notes, *document;
} bench_fixture;

/* Writes the script into the test's folder; its path. */
const char *bench_fixture_program(void);

/* Parses the line and makes everything ready to measure. */
void bench_fixture_open(const char *line, bench_fixture *out);

void bench_fixture_close(bench_fixture *b);

/* The row of the document; fails the test if there is none. */
json_t *bench_fixture_row(const bench_fixture *b, const char *mode, int world, int global_batch);

double bench_fixture_number(const json_t *row, const char *key);

#endif
