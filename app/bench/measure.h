/* Measured runs: other processes, one at a time, each of which ends with one JSON line on stdout.
 * Every case once per repeat, and what a few noisy samples tell: median, its confidence interval,
 * outliers. No distribution is assumed. */
#ifndef MNIST_DDP_APP_BENCH_MEASURE_H
#define MNIST_DDP_APP_BENCH_MEASURE_H

#include "app/common/stop_signals.h"
#include "base/file.h"
#include "base/status.h"
#include "dist/health/rank_status.h"

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
    int64_t timeout_ms;           /* one child's; then it is killed */
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

enum { BENCH_STATS_MIN = 6 }; /* samples that a 95 % interval takes: 1 - 2 / 2^6 = 96.9 % */

typedef struct bench_summary {
    int n;
    double median;                /* NAN if n is 0 */
    double low, high;             /* the interval in which the median of all possible runs lies */
    double coverage;              /* how probably, >= 0.95; all three NAN if n < BENCH_STATS_MIN */
    double low_fence, high_fence; /* samples outside are outliers: 1.5 times the distance of the
                                     quartiles beyond them */
    int outliers;
} bench_summary;

/* Sorts the values and summarises them. An outlier is noted and stays in. */
bench_summary bench_stats_summary(double *values, int n);

bool bench_stats_is_outlier(const bench_summary *summary, double value);

/* Of sorted values, n >= 1: the share p (0..1) of them lies below; between two, linear. */
double bench_stats_quantile(const double *sorted, int n, double p);

/* Sorts the values; their median, NAN if n is 0. */
double bench_stats_median(double *values, int n);

/* Everything is NAN (peak_mib_count 0) if the line does not say it. `counts`: the reader's. */
enum { BENCH_MAX_DEVICES = 64 };
typedef struct bench_sample {
    bool counts;
    double images_per_s;      /* over the epochs after the warm-up, together */
    double step_s;            /* one optimizer step in those epochs */
    double whole_step_s;      /* one optimizer step in all epochs: the phases are its parts */
    double phase_s[N_PHASES]; /* those parts, by the main thread of rank 0 or dp's master */
    double comm_total_s, comm_exposed_s;               /* in the same step */
    double sent_bytes, received_bytes;                 /* rank 0's, of one optimizer step */
    double sent_busiest_bytes, received_busiest_bytes; /* the busiest rank's */
    double peak_mib[BENCH_MAX_DEVICES];                /* per rank or replica */
    int peak_mib_count;
    double test_acc, last_loss;
    double train_loss; /* mean of the last epoch, over all ranks */
    double state_mib;  /* a peer's: parameters, gradients, optimizer state; the largest rank's */
} bench_sample;

/* What a run has left in its folder: its last epoch's train_loss; NAN if it is not known. */
double bench_train_loss(const char *run_folder);

/* Reads a line. `global_batch`: images of an optimizer step. STATUS_PEER if it is not a run of more
 * epochs than `warmup`. */
status bench_sample_read(const json_t *line, int warmup, int global_batch, bench_sample *out);

enum { BENCH_FIGURE_BYTES = 64, BENCH_CASE_BYTES = 96 };

/* What is measured, as the loop asks for it. `i`: the case. */
typedef struct bench_measurement {
    int cases, repeats;
    void *ctx;
    /* The case's name, and the words of its command. */
    void (*command)(void *ctx, int i, char name[BENCH_CASE_BYTES], bench_words *out);
    /* The figures of one run, from its line; `figure`: what the progress says of them. */
    status (*take)(void *ctx, int i, int repeat, const json_t *line,
                   char figure[BENCH_FIGURE_BYTES]);
    void (*failed)(void *ctx, int i, const char *name); /* a run; status_text() says why */
    bool shows;                                         /* a status line, if stderr is a terminal */
} bench_measurement;

/* Runs the cases in turn, A B C A B C, so that a slow minute of the machine hits all. A case that
 * fails twice in a row is given up. Ends early, and that is no failure, if a signal came.
 * STATUS_NO_MEMORY. */
status bench_measure(const bench_measurement *m, bench_child *place);

#endif
