/* A command of this program that a demonstration runs, and quotes. */
#ifndef MNIST_DDP_APP_DEMO_DEMO_CHILD_H
#define MNIST_DDP_APP_DEMO_DEMO_CHILD_H

#include "app/bench/child.h"
#include "app/demo/demo.h"

enum { DEMO_CHILD_LINE_BYTES = 512 };

typedef struct demo_child {
    char line[DEMO_CHILD_LINE_BYTES]; /* as one types it: "mnist_ddp run --dry-run true" */
    int exit_code;                    /* 128 + n for signal n */
    double elapsed_s;
    char *out, *err; /* what it has written; to be freed */
} demo_child;

/* Runs mnist_ddp with these words, each of which has no blanks, and waits. What it writes beside
 * stdout and stderr goes to a folder that is removed. STATUS_TIMEOUT if it is killed after 30 s. A
 * signal that stops this process kills the command first. Free with demo_child_free. */
status demo_child_run(demo_child *out, const char *words, ...)
    __attribute__((format(printf, 2, 3)));
void demo_child_free(demo_child *child);

/* bench_child_close; then a signal that came since bench_child_open ends this process, as it would
 * have. Leaves this thread's message alone. */
void demo_child_close_place(bench_child *place);

/* Rows of the frame: the lines of a text that begin with one of `starts` (NULL at the end; blanks
 * before them do not count), broken to fit the page; "..." for what is left out between them.
 * `starts` NULL: all lines. */
void demo_child_quote(demo *d, const char *text, const char *const *starts);

#endif
