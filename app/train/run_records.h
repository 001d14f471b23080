/* What a run's loop publishes: a step, a test, an epoch, a checkpoint. The log with the status
 * line, metrics.jsonl with TensorBoard's event file, --event-log and result.json listen. The trace,
 * the times of a run's phases and a rank's status listen to the moments of timeline.h.
 *
 * An accelerator goes on while a step's loss is on its way: what is said of a step comes one such
 * step late, and the last one with run_records_flush. */
#ifndef MNIST_DDP_APP_TRAIN_RUN_RECORDS_H
#define MNIST_DDP_APP_TRAIN_RUN_RECORDS_H

#include "app/common/event_log.h"
#include "app/train/metrics.h"
#include "app/train/progress.h"
#include "app/train/result.h"
#include "kernels/readback.h"

/* Begins with these three set, and all else zeroed. */
typedef struct run_records {
    progress *progress;
    result *result;
    int64_t started_ns; /* of the program */

    const rank_context *rank;
    metrics *metrics; /* owned; NULL: none are kept */

    event_log *events; /* NULL: there is no --event-log */
    bool has_stepped;
    event_log_step step; /* the latest one that began */

    readback totals; /* with the loss of `late` */
    step_facts late;
    bool shows, keeps; /* who wants to hear of it: the log, metrics */

    int64_t rate_since_ns;    /* a step's images_per_s counts from here, and */
    uint32_t rate_since;      /* from this many of the epoch's samples on */
    device_use before, moved; /* before the step; by a step like the last one enqueued */
} run_records;

/* `rank` is open, and borrowed. run_records_close accepts a zeroed one. STATUS_IO,
 * STATUS_NO_MEMORY. */
status run_records_open(const rank_context *rank, run_records *r);
void run_records_close(run_records *r);

/* The round's ranks have begun, or gone on, at `at`. `opening`: its times and state are set. */
void run_records_round(run_records *r, const position *at, event_log_opening *opening);

/* From here on time counts for a step's images per second, with so many of the epoch's samples
 * done. */
void run_records_begin_rate(run_records *r, uint32_t samples);

/* The rank is about to make `step` of the epoch, at `at`; it has made it. */
void run_records_step_begins(run_records *r, const position *at, int step);
status run_records_step_ends(run_records *r);

/* The step that was enqueued last; `totals`, device memory, is what that step leaves. */
status run_records_step(run_records *r, const step_facts *f, const score *totals);

void run_records_test(run_records *r, const test_facts *f);
void run_records_epoch(run_records *r, const epoch_facts *f);

/* One was due, and written if `st` is STATUS_OK. */
void run_records_checkpoint(run_records *r, status st);

/* What is known is said, and is in the files. run_records_say: the former only. */
status run_records_say(run_records *r);
status run_records_flush(run_records *r);

#endif
