/* A demonstration: an idea of data-parallel training, shown by ranks that really do it.
 *
 * All ranks run the same function. It shows what it does as frames: a title, sentences, a table
 * with rows of each rank, and arrows for what went from rank to rank. All calls below are made by
 * every rank, in the same order; what the others show comes to rank 0 through the job's store, so
 * that the process group's traffic is the demonstration's alone. Rank 0 shows the frames one by
 * one, at the pace of a reader, while all ranks wait. */
#ifndef MNIST_DDP_APP_DEMO_DEMO_H
#define MNIST_DDP_APP_DEMO_DEMO_H

#include "app/bench/measure.h"
#include "app/options/options.h"
#include "dist/process_group/process_group.h"
#include "dist/rendezvous.h"
#include "dist/rpc.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* A command of this program that a rank has run, the latest one. */
enum { DEMO_LINE_BYTES = 512 };
typedef struct demo_child {
    char line[DEMO_LINE_BYTES]; /* as one types it: "mnist_ddp run --dry-run true" */
    int exit_code;              /* 128 + n for signal n */
    double elapsed_s;
    char *out, *err;        /* what it has written */
    json_t *result, *trace; /* a training's: as --json prints it, and the events of --trace */
    bench_child place;      /* whose folder has the training's files; closed if it is zeroed */
} demo_child;

/* One rank of a demonstration. */
typedef struct demo {
    const options *opts;
    rendezvous_place place;
    int rank, world_size;
    const char *member;     /* what arrows go between: "rank" unless it says otherwise */
    rendezvous *rendezvous; /* NULL: one rank */
    process_group *group;
    rpc *calls;       /* NULL before demo_open_rpc */
    json_t *document; /* rank 0's: what has been shown */
    json_t *frame;    /* this rank's part of the frame under way */
    int frames;
    demo_child child;
    bool lost;       /* memory was short: demo_show fails */
    int print_error; /* stdout took no more, by this errno; the rest is not printed; 0: it does */
} demo;

/* Begins a frame. */
void demo_begin(demo *d, const char *title, ...) __attribute__((format(printf, 2, 3)));

/* A paragraph of the frame, in plain sentences. Only rank 0's is shown. */
void demo_say(demo *d, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Names of the table's next columns, with a bar between two: "|gradient|bytes". Only rank 0's are
 * shown. */
void demo_columns(demo *d, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* A row of the table, of this rank, with a bar between two cells: "rank %d|%.0f ms|#%d". After a #
 * stands a number, an integer or one of "%.17g". No text has a bar. Rows stand in the order of
 * ranks. */
void demo_row(demo *d, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The same of an array of texts and numbers, which is taken. */
void demo_cells(demo *d, json_t *cells);

/* An arrow from one member to another, whichever rank says so. */
void demo_arrow(demo *d, int from, int to, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* A number of the whole demonstration, for --json: `value` is taken. Only rank 0's counts. */
void demo_fact(demo *d, const char *name, json_t *value);

/* All ranks go on at one moment. *start_ns is before it on every rank of this host: what a rank
 * does later by so many ms ends, for all, so many ms after their start or more. */
status demo_begin_together(const demo *d, int64_t *start_ns);
double demo_since_ms(int64_t start_ns);

/* Rank r brings 10^r, so that a sum's digits say whose numbers are in it. */
double demo_digit(const demo *d);

/* A send and a receive, both started before either is waited for. None for a peer that is no rank:
 * who stands at an end has nobody there. */
status demo_swap(const demo *d, int to, const void *out, int from, void *in, size_t size_bytes);

/* A group of all ranks, as d->group is. */
status demo_open_group(const demo *d, int64_t timeout_ms, process_group **out);

/* Rank 0 sets a small text of the demonstration in the job's store, and all get it. */
status demo_share(const demo *d, const char *key, char *text, size_t size_bytes);

/* Sets d->calls: calls among the ranks, through the job's store; once in a demonstration, which
 * need not close them. Borrows functions. */
status demo_open_rpc(demo *d, const rpc_function *functions, int n);

/* Runs mnist_ddp with these words, each of which has no blanks, and waits; sets d->child. What it
 * writes beside stdout and stderr goes to a folder that is removed. STATUS_TIMEOUT if it is killed
 * after 30 s. A signal that stops this process kills the command first. */
status demo_child_run(demo *d, const char *words, ...) __attribute__((format(printf, 2, 3)));

/* Rows of the frame: the lines of a text that begin with one of `starts` (NULL at the end; blanks
 * before them do not count), broken to fit the page; "..." for what is left out between them.
 * `starts` NULL: all lines. */
void demo_child_quote(demo *d, const char *text, const char *const *starts);

/* Trains: one thread a rank on the CPU, no tests, with these flags, none of which has blanks. Those
 * after " -- " do not stand in the line. Sets line, result and trace of d->child. */
status training_run_do(demo *d, const char *flags, ...) __attribute__((format(printf, 2, 3)));

/* A number of the result; "bytes" "sent" is one below another. NaN if it is not there. */
double training_run_number(const demo *d, const char *object, const char *key);

/* "sent_busiest" of result.json's bytes of one optimizer step, and the like. */
static inline int64_t training_run_bytes(const demo *d, const char *key)
{
    return (int64_t)training_run_number(d, "bytes", key);
}

/* A file that the training has left: its path. Valid until the next one. */
void training_run_path(const demo *d, const char *name, char out[FILE_PATH_BYTES]);

/* What one rank did in one optimizer step, from the trace, which its texts belong to. */
typedef struct step_span {
    const char *lane;        /* "main", "communication", "transfers of replica 1" */
    const char *name;        /* "fc1 backward" */
    const char *parameters;  /* a bucket's; else NULL */
    int64_t bytes;           /* that it moves; -1: it moves nothing */
    double begin_ms, end_ms; /* since the step's beginning */
} step_span;

/* Up to `max` spans of rank 0 that begin in step `step`, which itself is the first of them; a
 * lane's are in the order of their beginnings. How many; 0: there is no such step. */
size_t training_run_spans(const demo *d, int64_t step, step_span *out, size_t max);

/* Shows the frame. Blocks until all ranks have given their parts, and the reader has had time. */
status demo_show(demo *d);

/* The same; then STATUS_DEVICE with this text if what it has shown does not hold. */
status demo_show_proof(demo *d, bool holds, const char *else_text);

/* What one rank does. Each stands in a file of its name, app/demo/<name>.c. */
typedef status demo_fn(demo *d);

demo_fn linear_demo, ring_demo, tree_demo, sampler_demo, buckets_demo, dp_demo, ps_demo;
demo_fn rendezvous_demo, store_demo, p2p_demo, groups_demo, world_size_demo, failure_demo;
demo_fn precision_demo, one_batch_four_ways_demo, rpc_demo, async_ps_demo;
demo_fn pipeline_demo, zero_demo, tensor_parallel_demo, mesh_demo;

/* Whether it can show something with these flags and so many ranks. STATUS_INVALID: why not. */
typedef status demo_check_fn(const options *opts, int world_size);

demo_check_fn sampler_check_demo, dp_check_demo, failure_check_demo, one_batch_four_ways_check_demo;

typedef struct demo_entry {
    const char *name;
    const char *summary;         /* half a line, no period */
    int ranks;                   /* if --nproc-per-node is not given */
    int least_ranks, most_ranks; /* with fewer it shows nothing, with more it fills no screen */
    demo_fn *show;
    bool reads_data;      /* MNIST */
    demo_check_fn *check; /* NULL: the number of ranks says all */
} demo_entry;

extern const demo_entry demo_table[];
extern const int demo_table_count;

/* mnist_ddp demo NAME. Before ranks are started: sets how many, if no flag says it. STATUS_INVALID
 * for an unknown name. */
status demo_complete(options *opts);

/* The same: can it be shown with so many? STATUS_INVALID. */
status demo_check(const options *opts, int world_size);

/* The same: are the images there, if this is a demo that trains, and can the page be written?
 * *code: what to exit with on failure. Of ranks started by hand only rank 0 tries the page, in
 * demo_command. */
status demo_check_files(const options *opts, int *code);

/* Prints the names; returns the exit code. */
int demo_list(void);

/* As one rank; returns the exit code. */
int demo_command(const options *opts, const rendezvous_place *place, int64_t started_ns);

#endif
