/* A demonstration: an idea of data-parallel training, shown by ranks that really do it.
 *
 * All ranks run the same function. It tells what it does as frames: a title, sentences, a table
 * with rows of each rank, and arrows for what went from rank to rank. All calls below are made by
 * every rank, in the same order; what the others tell comes to rank 0 through the job's store, so
 * that the process group's traffic is the demonstration's alone. Rank 0 shows the frames one by
 * one, at the pace of a reader, while all ranks wait. */
#ifndef MNIST_DDP_APP_DEMO_DEMO_H
#define MNIST_DDP_APP_DEMO_DEMO_H

#include "app/options/options.h"
#include "dist/process_group/process_group.h"
#include "dist/rendezvous.h"

#include <jansson.h>
#include <stdbool.h>

/* One rank of a demonstration. */
typedef struct demo {
    const options *opts;
    rendezvous_place place;
    int rank, world_size;
    const char *member; /* what arrows go between: "rank" unless it says otherwise */
    rendezvous *rdzv;   /* NULL: one rank */
    process_group *group;
    json_t *document; /* of rank 0: what has been shown */
    json_t *frame;    /* what this rank tells of the frame under way */
    int frames;
    bool lost;       /* memory was short: demo_show fails */
    int print_error; /* stdout took no more, by this errno; the rest is not printed; 0: it does */
} demo;

/* Begins a frame. */
void demo_begin(demo *d, const char *title, ...) __attribute__((format(printf, 2, 3)));

/* A paragraph of the frame, in plain sentences. Only rank 0's is shown. */
void demo_say(demo *d, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The names of the table's columns, after which a NULL stands. Only rank 0's are shown. */
void demo_columns(demo *d, ...) __attribute__((sentinel));

/* A row of the table, of this rank: an array of texts and numbers, which is taken. Rows stand in
 * the order of ranks. */
void demo_row(demo *d, json_t *cells);

/* An arrow from this rank to another one. */
void demo_arrow(demo *d, int to, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* From one member to another, whichever rank says so. */
void demo_arrow_between(demo *d, int from, int to, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* A number of the whole demonstration, for --json: `value` is taken. Only rank 0's counts. */
void demo_fact(demo *d, const char *name, json_t *value);

/* All ranks go on at one moment. *start_ns is before it on every rank of this host: what a rank
 * does later by so many ms ends, for all, so many ms after their start or more. */
status demo_begin_together(const demo *d, int64_t *start_ns);
double demo_since_ms(int64_t start_ns);

/* Shows the frame. Blocks until all ranks have told theirs, and the reader has had time. */
status demo_show(demo *d);

#endif
