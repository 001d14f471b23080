/* What a rank does, and where it is, for itself and for others on its host. */
#ifndef MNIST_DDP_DIST_HEALTH_RANK_STATUS_H
#define MNIST_DDP_DIST_HEALTH_RANK_STATUS_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The moments of a rank: what it does, one thing after the other.
 *
 * One table (rank_status.c) is all that the program knows of them. A rank enters a moment once,
 * through app/train/timeline.h; the phases of result.json, the spans of a trace, the times of an
 * accelerator's stream and what a hang report says of a rank all come from the table. A new moment
 * is a name here and a row there.
 */

typedef enum moment {
    /* The phases: all training time counts as one of these. */
    MOMENT_LOAD,
    MOMENT_BROADCAST, /* parameters to replicas or ranks */
    MOMENT_SCATTER,   /* inputs to replicas */
    MOMENT_FORWARD,
    MOMENT_GATHER, /* dp: logits to the master, and their gradients back; zero1, fsdp:
                      parameters */
    MOMENT_BACKWARD,
    MOMENT_REDUCE,  /* gradients */
    MOMENT_WAITING, /* for a replica or rank that is not there yet; never entered: MOMENT_STAGE and
                       MOMENT_SERVE count as it, else it is a part of the moments above, found out
                       later */
    MOMENT_OPTIMIZER,
    MOMENT_ACCELERATOR, /* all of it, if the host only enqueues */
    N_PHASES,

    MOMENT_START = N_PHASES,
    MOMENT_BARRIER,  /* an epoch begins when all ranks have come */
    MOMENT_STAGE,    /* a pipeline's stage waits for another one */
    MOMENT_PUSH,     /* gradients to an asynchronous parameter server, or parameters from it */
    MOMENT_SERVE,    /* there: the server waits for a push, a trainer for its answer */
    MOMENT_PARTIAL,  /* tp: the sums of what each rank has a part of */
    MOMENT_DDP_WAIT, /* for the gradients that backward has not hidden */
    MOMENT_GRAPH,    /* a recorded step is replayed */
    MOMENT_BETWEEN,  /* two steps */
    MOMENT_EVALUATION,
    MOMENT_CHECKPOINT,
    MOMENT_LEAVE,
    N_MOMENTS,
} moment;

typedef struct moment_facts {
    const char *name;  /* in result.json and in a trace; NULL: a trace has no span of it */
    const char *doing; /* in a hang report: "in the forward pass" */
    moment phase;      /* what its time is counted as */
    bool meets;        /* all ranks meet here: a rank that comes early waits for the others */
} moment_facts;

/* The table's row, which lives as long as the program. */
const moment_facts *moment_about(moment m);

/* Where a rank is: its status page, which it keeps up to date with a few stores per change. Others
 * on its host can read it even if the rank hangs, is stopped or was killed. "Page" here is always
 * this one.
 *
 * With a folder the page is the file <folder>/rank<r>.page, mapped; without one it is only its own.
 */

typedef struct rank_status rank_status;
struct collective; /* dist/collective/collective.h */

typedef struct rank_status_options {
    const char *folder; /* made if missing; NULL: nobody else reads the page */
    int rank, world_size, attempt;
} rank_status_options;

/* A file that cannot be made is only logged: then there is no other reader. An older attempt's
 * file is replaced. */
status rank_status_create(const rank_status_options *options, rank_status **out);

/* Accepts NULL. The file stays. */
void rank_status_destroy(rank_status *page);

/* All accept NULL. One thread moves moment and step, the group's lock is held for collectives. */
void rank_status_enter(rank_status *page, moment m);
void rank_status_step(rank_status *page, int64_t epoch, int64_t step);
void rank_status_pace(rank_status *page, double loss, double images_per_s); /* rank 0's */
void rank_status_launch(rank_status *page, const struct collective *c);
void rank_status_wait(rank_status *page, const struct collective *c, int64_t now_ns);
void rank_status_end_wait(rank_status *page); /* not after a failure: it stays there */
void rank_status_fail(rank_status *page);     /* the rank has failed, and says why itself */

typedef enum rank_state {
    RANK_WORKS,
    RANK_WAITS,   /* in a collective */
    RANK_STOPPED, /* by a signal (SIGSTOP) or a debugger */
    RANK_GONE,    /* its process has ended without a word */
    RANK_FAILED,
    RANK_LEFT,
} rank_state;

enum { RANK_TEXT_BYTES = 256 };

/* What a status page says. */
typedef struct rank_snapshot {
    int rank, pid, attempt;
    char host[64];
    rank_state state;
    moment now;                         /* the latest on the page; N_MOMENTS: unknown */
    int64_t epoch, step;                /* step: of the run, from 1; 0: none has begun */
    double loss, images_per_s;          /* rank 0's, as last told; images_per_s 0: never */
    uint64_t entered, waits;            /* numbers of collectives; 0: none */
    int peer;                           /* it waits for this rank in a send or receive; -1: none */
    char entered_text[RANK_TEXT_BYTES]; /* "all_reduce #17 (bucket 0: fc2.weight, fc2.bias)" */
    char waits_text[RANK_TEXT_BYTES];
    char doing[RANK_TEXT_BYTES]; /* "in the forward pass, step 12 in epoch 1, 3.2 s ago" */
} rank_snapshot;

/* Of this process. */
void rank_status_look(const rank_status *page, rank_snapshot *out);

/* Of a rank whose page lies in `folder`. STATUS_IO if there is none; STATUS_PEER if it is no page,
 * or of a process on another host, whose page may be out of date. */
status rank_status_read(const char *folder, int rank, rank_snapshot *out);

#ifdef __cplusplus
}
#endif
#endif
