/* Commands of this program that a demonstration runs and quotes, and short trainings of which it
 * shows what they printed and traced. */
#ifndef MNIST_DDP_APP_DEMO_CHILD_H
#define MNIST_DDP_APP_DEMO_CHILD_H

#include "app/bench/child.h"
#include "app/demo/demo.h"

enum { DEMO_LINE_BYTES = 512 };

typedef struct demo_child {
    char line[DEMO_LINE_BYTES]; /* as one types it: "mnist_ddp run --dry-run true" */
    int exit_code;              /* 128 + n for signal n */
    double elapsed_s;
    char *out, *err; /* what it has written; to be freed */
} demo_child;

/* Runs mnist_ddp with these words, each of which has no blanks, and waits. What it writes beside
 * stdout and stderr goes to a folder that is removed. STATUS_TIMEOUT if it is killed after 30 s. A
 * signal that stops this process kills the command first. Free with demo_child_free. */
status demo_child_run(demo_child *out, const char *words, ...)
    __attribute__((format(printf, 2, 3)));
void demo_child_free(demo_child *child);

/* Rows of the frame: the lines of a text that begin with one of `starts` (NULL at the end; blanks
 * before them do not count), broken to fit the page; "..." for what is left out between them.
 * `starts` NULL: all lines. */
void demo_child_quote(demo *d, const char *text, const char *const *starts);

/* Trainings of rank 0, one after the other. Begins zeroed. */
typedef struct training_run {
    const demo *d;
    bench_child place;
    char line[DEMO_LINE_BYTES]; /* "mnist_ddp train --mode=dp": the latest's own flags */
    json_t *result;             /* as --json prints it */
    json_t *trace;              /* as --trace writes it */
} training_run;

/* Accepts a zeroed one. */
status training_run_open(const demo *d, training_run *out);
void training_run_close(training_run *t);

/* Runs one: one thread a rank on the CPU, no tests, with these flags, none of which has blanks.
 * Those after " -- " do not stand in the line. Sets line, result and trace. */
status training_run_do(training_run *t, const char *flags, ...)
    __attribute__((format(printf, 2, 3)));

/* A number of the result; "bytes" "sent" is one below another. NaN if it is not there. */
double training_run_number(const training_run *t, const char *object, const char *key);

/* "sent_busiest" of result.json's bytes of one optimizer step, and the like. */
static inline int64_t training_run_bytes(const training_run *t, const char *key)
{
    return (int64_t)training_run_number(t, "bytes", key);
}

/* A file that the run has left: its path. Valid until the next run. */
void training_run_path(const training_run *t, const char *name, char out[FILE_PATH_BYTES]);

/* What one rank did in one optimizer step, from the trace, which its texts belong to. */
typedef struct step_span {
    const char *lane;        /* "main", "communication", "transfers of replica 1" */
    const char *name;        /* "fc1 backward" */
    const char *parameters;  /* of a bucket; NULL */
    int64_t bytes;           /* that it moves; -1: it moves nothing */
    double begin_ms, end_ms; /* since the step's beginning */
} step_span;

/* Up to `max` spans of rank 0 that begin in step `step`, which itself is the first of them; a
 * lane's are in the order of their beginnings. How many; 0: there is no such step. */
size_t training_run_spans(const training_run *t, int64_t step, step_span *out, size_t max);

#endif
