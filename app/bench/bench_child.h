/* Measured runs: other processes, one at a time, each of which ends with one JSON line on stdout.
 */
#ifndef MNIST_DDP_APP_BENCH_CHILD_H
#define MNIST_DDP_APP_BENCH_CHILD_H

#include "app/bench/bench_words.h"
#include "app/launch/launch_signals.h"
#include "base/file.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* Where children are run, one at a time. */
typedef struct bench_child {
    launch_signals signals;
    int64_t timeout_ms; /* of one child; then it is killed */
    bool stopped;       /* SIGINT, SIGTERM or SIGHUP came: no more children */
    int stop_signal;    /* the first of them */
    char folder[64];    /* a temporary one, for what children write */
    char **env;         /* NULL at the end; the entries are this process's own */
} bench_child;

/* From here on the three signals only set `stopped`. The children's environment is ours without
 * the settings of our own flags (MNIST_DDP_EPOCHS, PET_NNODES) and without what makes a process a
 * rank of another job (RANK): their command line says everything. MNIST_DDP_DATA stays. */
status bench_child_open(int64_t timeout_ms, bench_child *out);

/* Removes the folder and what is in it. Accepts a zeroed one. The signals stay blocked. */
void bench_child_close(bench_child *place);

/* Runs a command and waits for it. *out: the last line of its stdout that is a JSON object, for
 * json_decref. A failure names the exit code and the last line of its stderr.
 * A stop is passed on as SIGTERM and enforced after 10 s, or when it comes a second time:
 * STATUS_TIMEOUT, with `stopped` set. Nothing of the child's process group outlives the call. */
status bench_child_run(bench_child *place, const bench_words *words, json_t **out);

/* Has one of the signals come? Does not wait. */
bool bench_child_stopped(bench_child *place);

/* Empties the folder: for children that have written results there. */
void bench_child_tidy(const bench_child *place);

#endif
