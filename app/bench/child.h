/* Measured runs: other processes, one at a time, each of which ends with one JSON line on stdout.
 */
#ifndef MNIST_DDP_APP_BENCH_CHILD_H
#define MNIST_DDP_APP_BENCH_CHILD_H

#include "app/common/stop_signals.h"
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

/* Several words, of which none has a blank. */
void bench_words_split(bench_words *words, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* The command as one types it in a shell, cut at `size_bytes`. */
void bench_words_line(const bench_words *words, char *out, size_t size_bytes);

/* A program that runs to its end while this process waits. */
typedef struct subprocess {
    char *const *argv;  /* NULL-ended; argv[0] is looked for in $PATH */
    char *const *env;   /* NULL-ended; NULL: as here */
    int64_t timeout_ms; /* after it the program is killed */
    int64_t grace_ms;   /* to end when it is stopped; 0: 10 s */
    /* Those that stop it. NULL: SIGINT, SIGTERM and SIGHUP if they are blocked here; they stay
     * pending. */
    stop_signals *signals;
} subprocess;

/* Of what a program writes to stdout and to stderr, the end is kept. */
enum { SUBPROCESS_KEPT_BYTES = 256 << 10 };

/* Runs the program in a process group of its own, with no signal blocked; its stdin is empty.
 * *out: the end of its stdout, the caller's to free. STATUS_PEER if it ended with another exit code
 * than 0 or by a signal, STATUS_TIMEOUT if it was killed, STATUS_IO if it did not start. The
 * message has the last line of its stderr, fit for a terminal (base/text.h).
 * A stop is passed on as SIGTERM. After grace_ms, or a second one, the program is killed:
 * STATUS_TIMEOUT, and signals->first is set; without signals of the caller's only the time kills.
 * Nothing of the process group outlives the call. What left the group gets SIGPIPE, or EPIPE, if it
 * writes to the program's stdout or stderr after that. */
status subprocess_run(const subprocess *program, char **out);

/* How a program ended. */
typedef struct subprocess_end {
    int wait_status; /* waitpid's */
    char *out, *err; /* the ends of its stdout and stderr; to be freed */
} subprocess_end;

/* The same, but any end of its own is STATUS_OK. */
status subprocess_watch(const subprocess *program, subprocess_end *out);

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
