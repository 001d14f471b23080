/* mnist_ddp bench: what all benchmarks share, and one function for each of them. */
#ifndef MNIST_DDP_APP_BENCH_BENCH_H
#define MNIST_DDP_APP_BENCH_BENCH_H

#include "app/bench/cases.h"
#include "app/bench/measure.h"
#include "app/options/options.h"
#include "base/file.h"
#include "dist/rendezvous.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* Measures; opts->benchmark says what. Returns the exit code, and has said why on stderr if it is
 * not 0. `argc`, `argv`: the whole command line, for the record. */
int bench_command(const options *opts, int argc, char **argv);

/* The same, of one benchmark. */
int dp_vs_ddp_command(const options *opts, int argc, char **argv); /* DP beside DDP */
int scaling_command(const options *opts, int argc, char **argv);   /* by ranks */

/* bench all-reduce, broadcast, ... measure as one rank, which main starts; rank 0 prints.
 * EXIT_CODE_INTERNAL also if results were wrong. */
int collective_command(const options *opts, const rendezvous_place *place, int64_t started_ns);

/* Is this one of those? */
bool collective_is_meant(const options *opts);

/* Of its flags, for an error that comes once and not from every rank. */
status collective_check_flags(const options *opts);

/* STATUS_INVALID if the command line has a flag that this benchmark does not know. */
status bench_check_flags(const options *opts);

/* Is a report asked for, of several backends, beside a peer, or in --out? Then this does so, in
 * children of its own. */
bool collective_compares(const options *opts);
int collective_compare_command(const options *opts, int argc, char **argv);

/* Makes the folder that takes what the benchmark leaves, and sets `path` (FILE_PATH_BYTES): --out,
 * or a new runs/<local time>-bench-<name>. */
status bench_folder_make(const options *opts, char *path);

/* A new document of the benchmark that was named (app/report/report.h). */
json_t *bench_document(const options *opts, const char *title, int argc, char **argv);

/* Warns, and notes in the document, if other programs keep half of this machine's cores or more
 * busy: what else runs here is in every figure. To be called before anything is measured. */
void bench_say_if_busy(json_t *document);

/* Writes <name>.json and report.html into the folder. Then a signal ends this process again
 * (bench_child_release_signals), and the document is printed on stdout: for people, or with --json
 * as one line. */
status bench_leave(const options *opts, bench_child *place, const char *folder, json_t *document);

/* Writes FOLDER/report.html of all benchmarks' documents that are there. */
status bench_page_write(const char *folder);

enum { BENCH_FAILURE_BYTES = 512, BENCH_COMMAND_BYTES = 2048 };

/* What was measured: one row per case, one sample per repeat. */
typedef struct bench_row {
    const bench_case *c;
    bench_sample *samples;             /* [repeat] */
    bool *counts;                      /* [repeat]: is there such a sample? */
    char failure[BENCH_FAILURE_BYTES]; /* the last one; "" */
    char command[BENCH_COMMAND_BYTES];
} bench_row;

typedef struct bench_rows {
    const bench_cases *cases;
    bench_row *list; /* [case] */
    int repeats;     /* room in each row */
    int threads, cores;
    bool is_cuda;
} bench_rows;

/* A number of a sample, by its place: offsetof(bench_sample, step_s). */
#define BENCH_FIELD(field) offsetof(bench_sample, field)

/* Borrows the cases. */
status bench_rows_create(const bench_cases *cases, int repeats, bench_rows *out);
void bench_rows_free(bench_rows *rows);

int bench_row_samples(const bench_rows *rows, int row);

/* NAN if no sample knows it. */
double bench_row_median(const bench_rows *rows, int row, size_t field);

/* Samples of all cases (app/bench/measure.h), and failures, go into the rows. */
status dp_vs_ddp_measure(const bench_commands *commands, bench_child *place, bench_rows *rows);

/* Fills the document: settings, rows, tables, summary, limits. `notes`: what cases were left out.
 */
void dp_vs_ddp_document(const bench_commands *commands, const bench_rows *rows, const json_t *notes,
                        json_t *document);

/* Adds plots of what the rows give to the document. */
void dp_vs_ddp_plots(const bench_rows *rows, json_t *document);

#endif
