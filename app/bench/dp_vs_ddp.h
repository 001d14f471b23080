/* The parts of `mnist_ddp bench dp-vs-ddp`. */
#ifndef MNIST_DDP_APP_BENCH_DP_VS_DDP_H
#define MNIST_DDP_APP_BENCH_DP_VS_DDP_H

#include "app/bench/cases.h"
#include "app/bench/child.h"
#include "app/bench/commands.h"
#include "app/bench/measure.h"
#include "app/bench/stats.h"
#include "app/bench/why.h"
#include "base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

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
bench_summary bench_row_summary(const bench_rows *rows, int row, size_t field);

/* NAN if no sample knows it. */
double bench_row_median(const bench_rows *rows, int row, size_t field);

/* Seconds of a step (whole_step_s) that are this field's: the median of its shares in each run,
 * times the median step. A slow run has the same shares as a fast one, so this is steadier than the
 * median of seconds. NAN if no sample knows it. */
double bench_row_part(const bench_rows *rows, int row, size_t field);

/* The same for all phases, scaled to add up as they do in a run: medians alone need not. */
void bench_row_phases(const bench_rows *rows, int row, double out[N_PHASES]);

/* The largest peak of a device, in MiB; NAN if it is not known. */
double bench_row_peak(const bench_rows *rows, int row);

/* Images per second of row a through those of row b, pair by pair of the same repeat. */
bench_summary bench_rows_ratio(const bench_rows *rows, int a, int b);

/* Its speed through that of as many devices that each work as fast as the one alone; NAN if
 * nothing was measured on one. */
double bench_row_efficiency(const bench_rows *rows, int row);

/* Share of the step that the phases of a run add up to; NAN if none is known. */
double bench_row_phase_sum(const bench_rows *rows, int row);

void bench_row_why(const bench_rows *rows, int row, char out[BENCH_WHY_BYTES]);

/* Samples of all cases (app/bench/measure.h), and failures, go into the rows. */
status dp_vs_ddp_measure(const bench_commands *commands, bench_child *place, bench_rows *rows);

/* Fills the document: settings, rows, tables, summary, limits. `notes`: what cases were left out.
 */
void dp_vs_ddp_document(const bench_commands *commands, const bench_rows *rows, const json_t *notes,
                        json_t *document);

/* Adds plots of what the rows give to the document. */
void dp_vs_ddp_plots(const bench_rows *rows, json_t *document);

#endif
