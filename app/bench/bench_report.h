/* DIR/report.html: what the benchmarks in a folder have left there, on one page that needs nothing
 * else: no network, no script, plots in it. */
#ifndef MNIST_DDP_APP_BENCH_REPORT_H
#define MNIST_DDP_APP_BENCH_REPORT_H

#include "base/status.h"

/* Renders dp-vs-ddp.json and scaling.json, those of them that are in `folder`, with their .svg
 * plots. STATUS_INVALID for a document that is none. */
status bench_report_write(const char *folder);

#endif
