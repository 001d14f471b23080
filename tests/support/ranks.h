/* Runs a function as the ranks of a job: each with its own process group, over a store server on a
 * free port of the loopback interface. */
#ifndef MNIST_DDP_TESTS_SUPPORT_RANKS_H
#define MNIST_DDP_TESTS_SUPPORT_RANKS_H

#include "base/status.h"
#include "dist/process_group/process_group.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Must not ck_assert (Check aborts badly off the main thread): return a status instead. */
typedef status (*rank_fn)(process_group *group, int rank, int world_size, void *arg);

typedef struct ranks_options {
    int world_size;
    const char *backend;     /* NULL: "shm" */
    const char *odd_backend; /* what odd ranks ask for; NULL: the same */
    int64_t timeout_ms;      /* 0: 20 s */
    size_t shared_bytes;
    int64_t inject_delay_ms;
    process_group_debug debug;
    bool eager;
    int64_t limit_ms;  /* for all that the processes do; 0: 60 s */
    const char *hosts; /* "aab": each rank's letter names its host; NULL: all are on this one */

    /* Makes a rank's device, before its group, and ends it after; NULL: no rank has one. *out may
     * stay NULL. */
    status (*open_device)(int rank, struct device **out);
    void (*close_device)(struct device *dev);
} ranks_options;

/* Why there is no such backend here, for suite_add; NULL: it is there. */
const char *ranks_lack_backend(const char *name);

/* The device of the rank that asks, or NULL. */
struct device *ranks_device(void);

/* Runs fn once per rank, each on its own thread and group. Prints every failing rank's message and
 * returns the first failure. */
status run_ranks(int world_size, rank_fn fn, void *arg); /* on shm */
status run_ranks_with(const ranks_options *options, rank_fn fn, void *arg);

enum { RANK_MESSAGE_BYTES = 1024 };

/* How a rank's process ended. */
typedef struct rank_result {
    bool reported; /* false: killed, or stopped to the end; then st and message mean nothing */
    status st;
    double seconds; /* in fn */
    char message[RANK_MESSAGE_BYTES];
} rank_result;

/* Runs fn once per rank, each in a process forked from this one, and sets results[0..world_size-1].
 * Returns when all processes have ended; those that have stopped (SIGSTOP) are killed once the
 * others are through, and all of them at the limit: STATUS_TIMEOUT then. */
status run_rank_processes(const ranks_options *options, rank_fn fn, void *arg,
                          rank_result *results);

/* Runs fn as one rank of a job whose store is at this port, with its group. */
typedef struct rank_job {
    const ranks_options *options;
    int rank, port;
    rank_fn fn;
    void *arg;
} rank_job;
void run_as_rank(const rank_job *job, rank_result *result);

#endif
