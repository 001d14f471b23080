/* How output flows. A worker writes to a pipe, a stream. The agent reads it, keeps its last lines
 * for the report, copies it to a log file, and shows it on its own stdout or stderr, the console.
 * Its own log takes the same way.
 *
 *   worker ──► pipe ──► stream ──┬─► console ──► the agent's stdout, stderr
 *   the agent's log ─────────────┼───────┘
 *                                ├─► stdout.log, stderr.log
 *                                └─► filtered_stdout.log, filtered_stderr.log: some lines of it
 *
 * A reader of the console that does not read (a stopped terminal, a pager) does not keep the agent
 * from its workers, nor the job from ending. What it does not take waits here, and only a worker
 * that writes so much waits with it.
 *
 * Files lie where torchrun has them:
 *
 *   <--log-dir>/
 *     <run id>_<random>/            this launch
 *       attempt_<attempt>/
 *         <local rank>/
 *           stdout.log
 *           stderr.log
 *           error.json              why the rank failed, as torch's workers write it
 *         filtered_stdout.log       lines of --tee that --duplicate-stdout-filters names, of all
 *         filtered_stderr.log       workers, each with its prefix
 *         ranks/                    what the ranks note of themselves: $MNIST_DDP_DUMP_DIR
 */
#ifndef MNIST_DDP_APP_LAUNCH_OUTPUT_H
#define MNIST_DDP_APP_LAUNCH_OUTPUT_H

#include "app/common/terminal.h"
#include "app/options/options.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/status.h"

#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LINE_FILTER_WORDS = 16, LINE_FILTER_BYTES = 512 };

/* Which lines of a worker go to filtered_stdout.log and filtered_stderr.log. */
typedef struct line_filter {
    int n;                        /* words; 0: no line matches */
    char text[LINE_FILTER_BYTES]; /* the words, one after the other, each with a zero byte */
} line_filter;

/* "apple,orange": two words. Two commas are one comma of a word, as torchrun has it. NULL: none.
 * STATUS_INVALID, with the flag, if there are too many or too long ones. */
status line_filter_parse(const char *flag, const char *list, line_filter *out);

/* Does the line hold one of the words? */
bool line_filter_matches(const line_filter *filter, const char *line, size_t size_bytes);

/* Streams of a worker. Bits: --redirects and --tee take their sum. */
enum { LOGS_STDOUT = 1, LOGS_STDERR = 2 };

/* Workers of one node, at most. */
enum { NPROC_PER_NODE_MAX = 1024 };

enum { LOGS_TEMPLATE_BYTES = 256, LOGS_PREFIX_BYTES = 320 };

typedef struct worker_logs {
    uint8_t redirects[NPROC_PER_NODE_MAX], tees[NPROC_PER_NODE_MAX]; /* by local rank */
    bool hidden[NPROC_PER_NODE_MAX];                                 /* by --local-ranks-filter */
    line_filter out_filter, err_filter;
    char template_text[LOGS_TEMPLATE_BYTES];
    char base[FILE_PATH_BYTES];   /* --log-dir; "": a temporary folder */
    bool none;                    /* --log-dir=/dev/null: nothing is written */
    bool outlive;                 /* elastic: workers may outlive attempts, so all have one ranks/,
                                     beside the attempts' folders */
    char folder[FILE_PATH_BYTES]; /* this launch's, once open; "" if none */
} worker_logs;

/* From --log-dir, --redirects, --tee, --local-ranks-filter, --duplicate-stdout-filters,
 * --duplicate-stderr-filters and --log-line-prefix-template, for `nproc` workers. STATUS_INVALID
 * with what is allowed. */
status worker_logs_read(const options *opts, int nproc, worker_logs *out);

/* Makes the folder of this launch. STATUS_IO. */
status worker_logs_open(worker_logs *logs, const char *run_id);

/* Makes the folders of one attempt. */
status worker_logs_start(const worker_logs *logs, int attempt, int nproc);

/* Paths into `out` (FILE_PATH_BYTES); "" if nothing is written. */
void worker_logs_file(const worker_logs *logs, int attempt, int local_rank, const char *name,
                      char *out);
void worker_logs_dumps(const worker_logs *logs, int attempt, char *out);

/* Where one stream of a worker goes. Neither a pipe nor a file: to the agent's own stdout. */
typedef struct worker_route {
    bool piped;                 /* through the agent, which keeps its last lines */
    int target;                 /* if piped: STDOUT_FILENO, STDERR_FILENO, or -1: it is not shown */
    bool prefixed;              /* what is shown begins with worker_logs_prefix */
    char file[FILE_PATH_BYTES]; /* takes all of it, or a copy of what is piped; "": no file */
    const line_filter *filter;  /* picks lines that go to `filtered` too; NULL: none; the logs' */
    char filtered[FILE_PATH_BYTES];
} worker_route;

/* `which`: LOGS_STDOUT or LOGS_STDERR. stderr is piped unless it goes to a file alone. */
void worker_logs_route(const worker_logs *logs, int attempt, int local_rank, int which,
                       worker_route *out);

/* What stands before a worker's lines of --tee: LOGS_PREFIX_BYTES. */
void worker_logs_prefix(const worker_logs *logs, const char *role, int rank, int local_rank,
                        char *out);

/* Says so if the disk is full: what a worker has written to a file itself is cut, and not even why
 * it ends is in it. */
void worker_logs_check_disk(const worker_logs *logs);

/* Removes a temporary folder, unless it is to be kept. */
void worker_logs_close(worker_logs *logs, bool keep);

/* What one descriptor has not taken yet. */
typedef struct output_backlog {
    int fd; /* to write to: the descriptor, or the same file opened again, not blocking */
    terminal_facts terminal; /* what it is */
    bool begun;              /* what was written last is the begin of a line */
    byte_buffer waiting;
    int error; /* errno of a write, after which nothing more is written; 0: none */
} output_backlog;

typedef struct output_console {
    int stop_fd;  /* readable: the agent was told to stop, and text may be dropped; -1: none */
    bool hurried; /* the workers are being stopped: they wait for no reader */
    int wait_ms;  /* if hurried: how long the agent waits, once, for a reader that does not read */
    int wake_fd;  /* readable: text waits; -1: not to be had, and the next turn sees to it */
    bool own;     /* the workers are this program's: their lines are shown as those of the log */
    pthread_mutex_t lock;       /* guards what follows */
    output_backlog backlogs[3]; /* by descriptor */
} output_console;

/* From here until it is closed, this process's log goes through the console (base/log.h), from any
 * thread. All else is for one thread. */
void output_console_init(output_console *console);
void output_console_close(output_console *console); /* what still waits is dropped */

/* Writes to STDOUT_FILENO or STDERR_FILENO what these take at once; the rest waits. */
void output_console_write(output_console *console, int fd, const char *text, size_t size_bytes);

/* The same for lines of a log, each as a terminal is to get it (app/common/terminal.h). */
void output_console_say(output_console *console, int fd, const char *text, size_t size_bytes);

/* Whether a worker whose output goes to this descriptor (-1: nowhere) is to wait. */
bool output_console_is_full(output_console *console, int fd);

/* For poll(): fills and returns up to OUTPUT_CONSOLE_FDS entries. After it: writes what is taken
 * now. */
enum { OUTPUT_CONSOLE_FDS = 3 };
int output_console_poll(output_console *console, struct pollfd *out);
void output_console_push(output_console *console);

/* Why not all of it could be written to the descriptor (errno); 0: it was, or waits. */
int output_console_error(const output_console *console, int fd);

/* Waits until all is written, as long as it takes; for wait_ms if hurried or told to stop. */
void output_console_flush(output_console *console);

enum { OUTPUT_LINES = 20, OUTPUT_LINE_BYTES = 4096, OUTPUT_KEPT_BYTES = 1000 };

/* One stream of a worker: its stdout or stderr. */
typedef struct output_stream {
    int fd;       /* the reading end, not blocking; -1: none, or at its end */
    bool polled;  /* it is, in this turn */
    int file;     /* takes a copy of every byte; -1 */
    int filtered; /* takes the lines that match `filter`; -1 */
    const line_filter *filter;
    int target;                     /* the agent's stdout or stderr; -1: not shown */
    char prefix[LOGS_PREFIX_BYTES]; /* before each line that is shown */
    bool begun;                     /* a line is shown in part, its prefix too */
    char line[OUTPUT_LINE_BYTES];   /* what was read and is not yet shown */
    size_t line_bytes;
    char *lines[OUTPUT_LINES]; /* the last ones: line k is at k % OUTPUT_LINES; owned */
    int64_t lines_seen;
} output_stream;

/* Reads nothing, shows nothing. */
void output_stream_init(output_stream *stream);

/* Opens the worker's end of a stream that reads nothing yet. *fd: what the worker writes to, the
 * caller's to close; -1: the agent's own. STATUS_IO. */
status output_stream_open(output_stream *stream, const worker_route *route, int *fd);

/* Reads what the pipe holds now, as far as the console takes it; shows whole lines and keeps the
 * last ones. Never blocks. At the pipe's end closes `fd` and shows a line that has no end. false:
 * the pipe is empty. */
bool output_stream_read(output_stream *stream, output_console *console);

/* Line k, one of the last OUTPUT_LINES: lines_seen - OUTPUT_LINES <= k < lines_seen. */
const char *output_stream_line(const output_stream *stream, int64_t k);

/* Keeps the last lines of a file that the worker wrote itself. */
void output_stream_take_file(output_stream *stream, const char *path);

/* Shows a line that has no end, closes and frees everything. */
void output_stream_close(output_stream *stream, output_console *console);

#endif
