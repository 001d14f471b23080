/* How a worker failed: what the report, the other nodes and error.json are made of. */
#ifndef MNIST_DDP_APP_LAUNCH_PROCESS_FAILURE_H
#define MNIST_DDP_APP_LAUNCH_PROCESS_FAILURE_H

#include "app/launch/worker.h"
#include "dist/health/first_cause.h"
#include "dist/health/rank_status.h"

#include <jansson.h>

enum { FAILURE_TEXT_BYTES = 160, FAILURE_HOST_BYTES = 256, FAILURE_SAYS_BYTES = 2000 };

/* Plain data; lines are owned. */
typedef struct process_failure {
    int node, rank, local_rank, pid;
    int wait_status;         /* as of waitpid */
    int start_errno;         /* why it could not be executed; 0 */
    cause_priority priority; /* "weight" in the JSON for other nodes */
    double after_s;          /* from the launch to its end */
    bool memory_killed;      /* the kernel's out-of-memory killer was at work meanwhile */
    char host[FAILURE_HOST_BYTES];
    char says[FAILURE_SAYS_BYTES]; /* the message in its error.json; "" */
    char doing[RANK_TEXT_BYTES];   /* where it was last, by its status page; "" */
    char folder[FILE_PATH_BYTES];  /* of its log and error.json, on its host; "" */
    char *others;                  /* what became of the other ranks of its node; "" or lines */
    char *lines[OUTPUT_LINES];     /* the last ones of its stderr */
    int n_lines;
} process_failure;

/* Its place in the order of root causes. A rank of ours that has waited in vain ends with a code of
 * its own, one that has lost another rank with one of its own: the first says more, whichever ends
 * first. Of a foreign program the last lines tell. */
cause_priority process_failure_priority(const worker *w);

/* "exit code 7", "SIGKILL (Killed)" */
void process_failure_text(int wait_status, int start_errno, char out[FAILURE_TEXT_BYTES]);

/* What a shell calls it: the exit code, or 128 + signal. */
int process_failure_code(int wait_status);

/* Whether the kernel has killed a process for want of memory since the last call. *kills: how many
 * it had killed then, -1 if that is not known; updated. */
bool process_failure_memory_was_short(int64_t *kills);

/* How this worker ended, with copies of its last lines and the message in its error.json. */
status process_failure_read(const worker *w, const worker_start *start, process_failure *out);
status process_failure_copy(const process_failure *failure, process_failure *out);
void process_failure_free(process_failure *failure);

/* Writes error.json of a rank that left none, with its last lines. If it cannot be written, that is
 * a line of the log. */
void process_failure_write_error_file(const process_failure *failure);

/* The same to $TORCHELASTIC_ERROR_FILE, the launcher's own. `here`: the rank was one of this
 * node's, and its file is copied. */
void process_failure_pass_on(const process_failure *failure, bool here);

/* For the other nodes. */
json_t *process_failure_to_json(const process_failure *failure);
/* From another node: every value is checked. STATUS_PEER if one is out of its range. */
status process_failure_from_json(const json_t *object, process_failure *out);

#endif
