/* Where the workers' output goes: to the launcher's own, to files, or both; and the folders of
 * those files, laid out as torchrun's:
 *
 *   <--log-dir>/
 *     <run id>_<random>/            this launch
 *       attempt_<generation>/
 *         <local rank>/
 *           stdout.log
 *           stderr.log
 *           error.json              why the rank failed, as torch's workers write it
 *         ranks/                    what the ranks note of themselves: $MNIST_DDP_DUMP_DIR
 */
#ifndef MNIST_DDP_APP_LAUNCH_LOGS_H
#define MNIST_DDP_APP_LAUNCH_LOGS_H

#include "app/launch/launch_plan.h"
#include "app/options/options.h"
#include "base/file.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

/* Streams of a worker; bits, as --redirects and --tee count them. */
enum { LAUNCH_STDOUT = 1, LAUNCH_STDERR = 2 };

enum { LAUNCH_TEMPLATE_BYTES = 256, LAUNCH_PREFIX_BYTES = 320 };

typedef struct launch_logs {
    uint8_t redirects[LAUNCH_MAX_NPROC], tees[LAUNCH_MAX_NPROC]; /* by local rank */
    bool hidden[LAUNCH_MAX_NPROC];                               /* by --local-ranks-filter */
    char template_text[LAUNCH_TEMPLATE_BYTES];
    char base[FILE_PATH_BYTES];   /* --log-dir; "": a temporary folder */
    bool none;                    /* --log-dir=/dev/null: nothing is written */
    char folder[FILE_PATH_BYTES]; /* of this launch, once open; "" if none */
} launch_logs;

/* From --log-dir, --redirects, --tee, --local-ranks-filter and --log-line-prefix-template, for
 * `nproc` workers. STATUS_INVALID with what is allowed. */
status launch_logs_read(const options *opts, int nproc, launch_logs *out);

/* Makes the folder of this launch. STATUS_IO. */
status launch_logs_open(launch_logs *logs, const char *run_id);

/* Makes the folders of one generation. */
status launch_logs_start(const launch_logs *logs, int generation, int nproc);

/* Paths into `out` (FILE_PATH_BYTES); "" where nothing is written. */
void launch_logs_file(const launch_logs *logs, int generation, int local_rank, const char *name,
                      char *out);
void launch_logs_dumps(const launch_logs *logs, int generation, char *out);

/* What stands before a worker's lines of --tee: LAUNCH_PREFIX_BYTES. */
void launch_logs_prefix(const launch_logs *logs, const launch_plan *plan, int rank, int local_rank,
                        char *out);

/* Removes a temporary folder, unless it is to be kept. */
void launch_logs_close(launch_logs *logs, bool keep);

#endif
