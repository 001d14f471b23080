/* One rank's part of a trace file, as text. */
#ifndef MNIST_DDP_APP_TRACE_TRACE_PART_H
#define MNIST_DDP_APP_TRACE_TRACE_PART_H

#include "app/trace/trace_clock.h"
#include "base/trace.h"

#include <stdio.h>

/* Writes the events of all lanes of `t`, JSON objects with commas between them, at least one: a
 * process per rank, a thread per lane, and as many further ones as overlapping spans need. Times
 * are microseconds from clock->zero_ns, spans of a thread in the order of their beginnings, outer
 * ones first. *dropped: spans that the lanes had no room for. */
status trace_part_write(FILE *file, int rank, const char *host, const trace_clock *clock, trace *t,
                        size_t *dropped);

#endif
