/* The parts of `mnist_ddp bench dp-vs-ddp`. */
#ifndef MNIST_DDP_APP_BENCH_DP_VS_DDP_H
#define MNIST_DDP_APP_BENCH_DP_VS_DDP_H

#include "app/bench/child.h"
#include "app/bench/commands.h"
#include "app/bench/rows.h"

#include <jansson.h>

/* Samples of all cases (app/bench/measure.h), and failures, go into the rows. */
status dp_vs_ddp_measure(const bench_commands *commands, bench_child *place, bench_rows *rows);

/* Fills the document: settings, rows, tables, summary, limits. `notes`: what cases were left out.
 */
void dp_vs_ddp_document(const bench_commands *commands, const bench_rows *rows, const json_t *notes,
                        json_t *document);

/* Draws what the rows give, into `folder`, and names it in the document; what cannot be drawn is
 * said in its notes. */
void dp_vs_ddp_plots(const bench_rows *rows, const char *folder, json_t *document);

#endif
