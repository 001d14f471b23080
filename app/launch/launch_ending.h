/* How a rank ended, as it is told to people, to other nodes and in error.json. */
#ifndef MNIST_DDP_APP_LAUNCH_ENDING_H
#define MNIST_DDP_APP_LAUNCH_ENDING_H

#include "app/launch/launch_worker.h"
#include "dist/health/first_cause.h"
#include "dist/rank_page.h"

enum { ENDING_TEXT_BYTES = 160, ENDING_HOST_BYTES = 256, ENDING_SAYS_BYTES = 2000 };

/* Plain data; lines are owned. */
typedef struct launch_ending {
    int node, rank, local_rank, pid;
    int wait_status; /* as of waitpid */
    int start_errno; /* why it could not be executed; 0 */
    cause_weight weight;
    double after_s;     /* from the launch to its end */
    bool memory_killed; /* the kernel's out-of-memory killer was at work meanwhile */
    char host[ENDING_HOST_BYTES];
    char says[ENDING_SAYS_BYTES]; /* the message in its error.json; "" */
    char doing[RANK_TEXT_BYTES];  /* where it was last, as it noted itself; "" */
    char folder[FILE_PATH_BYTES]; /* of its log and error.json, on its host; "" */
    char *others;                 /* what became of the other ranks of its node; "" or lines */
    char *lines[STREAM_LINES];    /* the last ones of its stderr */
    int n_lines;
} launch_ending;

/* Survivors of a dead or stuck rank of ours leave with two codes: those that waited for it
 * themselves know more than those that lost a survivor, whichever of them ends first. Of a foreign
 * program the last lines tell. */
cause_weight launch_ending_weight(const launch_worker *worker);

/* "exit code 7", "SIGKILL (Killed)" */
void launch_ending_text(int wait_status, int start_errno, char out[ENDING_TEXT_BYTES]);

/* What a shell calls it: the exit code, or 128 + signal. */
int launch_ending_code(int wait_status);

/* The number of processes that the kernel has killed for want of memory since it started; -1
 * unknown. */
int64_t launch_ending_memory_kills(void);

/* How this worker ended, with copies of its last lines. */
status launch_ending_read(const launch_worker *worker, const launch_start *start,
                          launch_ending *out);
void launch_ending_free(launch_ending *ending);

/* One line of JSON; free with free(). */
status launch_ending_write_json(const launch_ending *ending, char **out);
/* From another node: checked. STATUS_PEER where it is nonsense. */
status launch_ending_read_json(const char *text, launch_ending *out);

#endif
