/* The parts of `mnist_ddp bench dp-vs-ddp`. */
#ifndef MNIST_DDP_APP_DP_VS_DDP_H
#define MNIST_DDP_APP_DP_VS_DDP_H

#include "app/bench/child.h"
#include "app/bench/commands.h"
#include "app/bench/rows.h"

#include <jansson.h>

/* Runs every case once per repeat, in turn, as children; a case that fails twice in a row is given
 * up. Samples go into the rows. Ends early, and that is no failure, if a
 * signal came. */
void dp_vs_ddp_measure(const bench_commands *commands, bench_child *place, bench_rows *rows);

/* Fills the document: settings, rows, tables, summary, limits. `notes`: what cases were left out.
 */
void dp_vs_ddp_document(const bench_commands *commands, const bench_rows *rows, const json_t *notes,
                        json_t *document);

/* Draws what the rows give, into `folder`, and names it in the document; what cannot be drawn is
 * said in its notes. */
void dp_vs_ddp_plots(const bench_rows *rows, const char *folder, json_t *document);

#endif
