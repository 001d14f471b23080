/* What a run's loop publishes: a step, a test, an epoch, a checkpoint. The log with the status
 * line, metrics.jsonl with TensorBoard's event file, --event-log and result.json listen. The trace,
 * the times of a run's phases and a rank's status listen to the moments of timeline.h.
 *
 * An accelerator goes on while a step's loss is on its way: what is said of a step comes one such
 * step late, and the last one with run_records_flush. */
#ifndef MNIST_DDP_APP_TRAIN_RUN_RECORDS_H
#define MNIST_DDP_APP_TRAIN_RUN_RECORDS_H

#include "app/common/event_log.h"
#include "app/common/terminal.h"
#include "app/train/metrics.h"
#include "app/train/preempt.h"
#include "app/train/rank_context.h"
#include "app/train/result.h"
#include "kernels/readback.h"

#include <stdatomic.h>
#include <stdio.h>

/* A step that was made. */
typedef struct step_facts {
    int64_t number;        /* in the run, from 1 */
    int64_t epoch, now_ns; /* epoch: from 0 */
    int step, steps;       /* step: of the epoch's `steps`, from 0 */
    uint32_t samples;      /* how many of this rank's epoch are done */
    int batch_n;           /* the last batch's */
    double lr;
    double loss, grad_norm; /* this rank's last batch's */
} step_facts;

typedef struct test_facts {
    const evaluation *found;
    int64_t number, epoch; /* number: steps that are done; epoch: from 0 */
    int step, steps; /* step: the last one, from 0, of the epoch's; steps 0: at the run's end */
} test_facts;

typedef struct epoch_facts {
    int64_t number, epoch; /* as of a test */
    double train_s, train_loss;
    int64_t images; /* all ranks' in train_s */
    double lr;
    const evaluation *tested; /* NULL: it was not */
} epoch_facts;

/* What a person reads of a run while it goes on. The log, on stdout, has a header, lines about
 * steps, tests and epochs. On a terminal a status line stands below it on stderr: how far the
 * training is, how fast it goes, and what rank 0 does when it does not train: it tests, saves, or
 * waits for a rank. Only rank 0's prints. The run's folder gets the same lines
 * (app/common/run_log.h). */

typedef enum progress_style {
    PROGRESS_PLAIN,
    PROGRESS_PYTORCH, /* the lines of pytorch/examples' mnist/main.py */
} progress_style;

/* When the log has a line about a step. */
typedef enum progress_due {
    PROGRESS_BY_STEPS, /* every --log-interval of them */
    PROGRESS_BY_TIME,  /* every two seconds */
} progress_due;

/* How fast a training goes, and when it ends if it goes on so. Begins zeroed. */
typedef struct pace {
    double images_per_s, steps_per_s; /* all ranks', in the epoch so far */
    int64_t end_ns;                   /* when the last epoch ends; 0: not known yet */

    int64_t epoch_started_ns;     /* later by each test since then */
    int64_t first_step, first_ns; /* the first step of the run that was noted, and when */
    bool is_under_way;            /* such a step was noted */
} pace;

enum { PROGRESS_PLACE_BYTES = 64, LATE_RANKS_BYTES = 80 };

/* Begins zeroed, and stays where it is while it is open. */
typedef struct progress {
    const rank_context *rank;
    const rank_signals *signals;
    FILE *out; /* stdout; stderr with --json */
    progress_style style;
    progress_due by;
    bool prints;             /* this is rank 0 */
    bool is_quiet;           /* nothing is for `out` */
    bool bar_tells_steps;    /* nothing about steps is */
    bool is_cut;             /* lines are dropped */
    terminal_facts terminal; /* what `out` is */
    int terminal_fd;         /* where the status line is drawn; -1: nowhere */
    int64_t next_line_ns;    /* when the next is due, with PROGRESS_BY_TIME */
    int64_t started_ns;      /* when the program started */
    int64_t start_epoch;     /* completed before this start of the run */

    status_line bar;
    step_facts step; /* the latest, and its pace: with the bar's lock */
    pace pace;
    atomic_bool bar_has_step; /* the bar has shown the latest step: another one is wanted */

    /* Of the bar's thread: the collective that rank 0 waits in, and for whom. */
    uint64_t waits;
    int64_t since_ns, looked_ns;
    char late[LATE_RANKS_BYTES];
} progress;

/* Borrows both; `rank` is open. `started_ns`: when the program was started. As with any program, a
 * reader that takes nothing, such as a pager, holds the rank up until it reads on; but a rank that
 * is asked to stop drops its lines and goes on without them. */
void progress_open(const rank_context *rank, const rank_signals *signals, int64_t started_ns,
                   progress *out);

/* Erases the status line; the log goes on. Accepts a zeroed one. */
void progress_close_bar(progress *p);

/* "epoch 2", "step 159 of epoch 3": what was done last, `step` steps after `epoch` epochs. */
void progress_name_place(int64_t epoch, int64_t step, char out[PROGRESS_PLACE_BYTES]);

/* After it the status line stands below the log. */
void progress_header(progress *p, const char *run_dir, int64_t start_epoch, int64_t start_step);

void progress_epoch_start(progress *p);
void progress_line(progress *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* "what: path", whatever bytes the path is of. */
void progress_path(progress *p, const char *what, const char *path);

/* The last line, after `epochs` epochs of this start of the run: which, and how long it took. */
void progress_end(progress *p, int64_t epochs);

/* Begins with these three set, and all else zeroed. */
typedef struct run_records {
    progress *progress;
    result *result;
    int64_t started_ns; /* when the program started */

    const rank_context *rank;
    metrics *metrics; /* owned; NULL: none are kept */

    event_log *events; /* NULL: there is no --event-log */
    bool has_stepped;
    event_log_step step; /* the latest one that began */

    readback totals; /* with the loss of `late` */
    step_facts late;
    bool shows, keeps; /* who wants to hear of it: the log, metrics */

    int64_t rate_since_ns; /* a step's images_per_s counts from here, and */
    uint32_t rate_since;   /* from this many of the epoch's samples on */
    device_use before;     /* the step */
    device_use moved[2];   /* by the last full step that was enqueued; by the last shorter one */
    bool is_short;         /* the step has fewer samples than a full one */
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
status run_records_publish_step(run_records *r, const step_facts *f, const score *totals);

void run_records_test(run_records *r, const test_facts *f);
void run_records_epoch(run_records *r, const epoch_facts *f);

/* One was due, and written if `st` is STATUS_OK. */
void run_records_checkpoint(run_records *r, status st);

/* What is known is said, and is in the files. run_records_say: the former only; run_records_keep:
 * the latter only, without a wait. */
status run_records_say(run_records *r);
status run_records_flush(run_records *r);
void run_records_keep(run_records *r);

#endif
