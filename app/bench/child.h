/* Measured runs: other processes, one at a time, each of which ends with one JSON line on stdout.
 */
#ifndef MNIST_DDP_APP_BENCH_CHILD_H
#define MNIST_DDP_APP_BENCH_CHILD_H

#include "app/common/subprocess.h"
#include "base/file.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BENCH_WORDS = 96, BENCH_WORD_BYTES = 16384 };

/* The words of a command. Begins zeroed. */
typedef struct bench_words {
    char *words[BENCH_WORDS + 1]; /* into text; NULL at the end */
    int n;
    char text[BENCH_WORD_BYTES];
    size_t used;
    bool overflow; /* a word found no room; bench_child_run refuses the command */
} bench_words;

void bench_words_add(bench_words *words, const char *fmt, ...)
    __attribute__((format(printf, 2, 3))); /* one word */

/* The command as one types it in a shell, cut at `size_bytes`. */
void bench_words_line(const bench_words *words, char *out, size_t size_bytes);

/* Where children run. */
typedef struct bench_child {
    stop_signals signals;
    int64_t timeout_ms;           /* of one child; then it is killed */
    char folder[FILE_PATH_BYTES]; /* a temporary one, for what children write */
    char **env;                   /* NULL at the end; the entries are this process's own */
} bench_child;

/* From here on SIGINT, SIGTERM and SIGHUP only stop the measuring. A line of the log waits for a
 * slow reader until one of them comes, and is lost then; `out` must stay where it is. The
 * children's environment is ours without the settings of our own flags (MNIST_DDP_EPOCHS,
 * PET_NNODES) and without what makes a process a rank of another job (RANK): their command line
 * says everything. MNIST_DDP_DATA stays. */
status bench_child_open(int64_t timeout_ms, bench_child *out);

/* The measuring is over, and its figures are written: a signal ends this process again, for one may
 * wait for whoever reads stdout. Those that came before have only stopped the measuring. */
void bench_child_release_signals(bench_child *place);

/* Does the same, and removes the folder with what is in it. Accepts a zeroed one. */
void bench_child_close(bench_child *place);

/* Runs a command in an empty folder and waits for it, as subprocess_run does. *out: the last line
 * of its stdout that is a JSON object, for json_decref. */
status bench_child_run(bench_child *place, const bench_words *words, json_t **out);

/* Did a signal come that stops the measuring? Does not wait. */
bool bench_child_stopped(bench_child *place);

#endif
