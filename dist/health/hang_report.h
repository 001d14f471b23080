/* What is known of a collective that failed: this rank's last ones, and what the others did. */
#ifndef MNIST_DDP_DIST_HEALTH_HANG_REPORT_H
#define MNIST_DDP_DIST_HEALTH_HANG_REPORT_H

#include "dist/collective/collective.h"
#include "dist/health/rank_status.h"
#include "dist/store/store.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* The last collectives of a rank, always kept: what ran before one failed. */

enum { FLIGHT_RECORDER_LENGTH = 1000 };

typedef enum flight_stage {
    COLLECTIVE_LAUNCHED,
    COLLECTIVE_WAITED, /* a thread waits for it */
    COLLECTIVE_DONE,
    COLLECTIVE_FAILED,
} flight_stage;

typedef struct flight_record {
    uint64_t number; /* sends and receives count here too; 0: none */
    collective what; /* its arrays may be gone */
    flight_stage stage;
    bool on_device; /* then "done" means that the host need not wait for it */
    int64_t launched_ns, waited_ns, ended_ns; /* 0: not yet */
} flight_record;

/* All zero is an empty recorder. The caller locks it. */
typedef struct flight_recorder {
    flight_record records[FLIGHT_RECORDER_LENGTH]; /* number n is at n % length */
    uint64_t last;                                 /* the latest one's number; 0: none */
    struct trace_lane *lane;                       /* gets a span of each that ended; NULL: none */
} flight_recorder;

/* The record's number, for the calls below. */
uint64_t flight_recorder_launch(flight_recorder *recorder, const collective *c, bool on_device,
                                int64_t now_ns);
void flight_recorder_wait(flight_recorder *recorder, uint64_t number, int64_t now_ns);
void flight_recorder_end(flight_recorder *recorder, uint64_t number, bool ok, int64_t now_ns);

/* One JSON object a line, the oldest first. */
void flight_recorder_write(const flight_recorder *recorder, FILE *file);

/* Which rank the others waited for, and what it did last: from what each rank notes of itself
 * (dist/health/rank_status.h), also of ranks that are stopped or dead.
 *
 * A rank whose collective has failed asks for it, and so does the launcher when its ranks end. A
 * rank that fails publishes its status under the store's key "seen/<rank>", and that of the ranks
 * of its host that cannot.
 */

typedef struct hang_report_options {
    struct store *store; /* NULL: none, or out of reach */
    const char *folder;  /* where the status pages of this host's ranks are; NULL */
    const rank_status *page;
    int rank, world_size, attempt;
    int64_t wait_ms; /* for ranks of other hosts to publish their status */
    status why;      /* its failure; who is only late is named only if that is STATUS_TIMEOUT */
} hang_report_options;

enum { HANG_REPORT_BYTES = 1024 };

/* By a rank that fails: publishes what is known here, then writes into `out` (HANG_REPORT_BYTES)
 * how the other ranks differ from this one, as "rank 2 never entered all_reduce #17 (bucket 1:
 * fc1.weight, fc1.bias); it was last in the data loader, step 12 in epoch 1, 3.2 s ago"; "" if
 * nothing is known. Blocks wait_ms at most, and some seconds more if the store does not answer. */
void hang_report_explain(const hang_report_options *options, char *out);

/* By the launcher of ranks of this host, as they were when trouble began; one whose pid is 0 is not
 * known. How they differ, as lines: who never entered the collective that others wait in, who is
 * stopped, who was elsewhere. Free with free(); NULL: nothing. */
char *hang_report_lines(const rank_snapshot *ranks, int n);

/* Of the same ranks: whom the others wait for, as "rank 2 hangs (stopped)"; "" if none is known. */
enum { HANG_REPORT_WHO_BYTES = 32 };
void hang_report_name(const rank_snapshot *ranks, int n, char out[HANG_REPORT_WHO_BYTES]);

#endif
