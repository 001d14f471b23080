/* Where the workers' output goes: to the agent's own, to files, or both; and the folders of those
 * files, laid out as torchrun's:
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
#ifndef MNIST_DDP_APP_LAUNCH_WORKER_LOGS_H
#define MNIST_DDP_APP_LAUNCH_WORKER_LOGS_H

#include "app/options/options.h"
#include "base/file.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LINE_FILTER_WORDS = 16, LINE_FILTER_BYTES = 512 };

/* Which lines of a worker go to filtered_stdout.log and filtered_stderr.log. */
typedef struct line_filter {
    int n;                         /* words; 0: no line matches */
    int begins[LINE_FILTER_WORDS]; /* of each word, in `text` */
    char text[LINE_FILTER_BYTES];
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
    char folder[FILE_PATH_BYTES]; /* of this launch, once open; "" if none */
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
    const line_filter *filter;  /* of the lines that go to `filtered` too; NULL: none; the logs' */
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

#endif
