/* What the files of a process group share, and the small parts of it. */
#ifndef MNIST_DDP_DIST_PROCESS_GROUP_PROCESS_GROUP_STATE_H
#define MNIST_DDP_DIST_PROCESS_GROUP_PROCESS_GROUP_STATE_H

#include "base/memory.h"
#include "base/status.h"
#include "dist/collective/process_group_ops.h"
#include "dist/collective/process_group_options.h"
#include "dist/health/flight_recorder.h"
#include "dist/health/peers.h"
#include "dist/health/rank_status.h"
#include "dist/process_group/process_group.h"
#include "dist/process_group/staging.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Memory that goes with its owner: a list of what was handed out. */

/* All zero is an empty list. The owner locks it. */
typedef struct allocations {
    struct allocation *first;
} allocations;

/* As memory_alloc; freed by allocations_free. */
status allocations_add(allocations *list, size_t size_bytes, void **out);
void allocations_free(allocations *list);

/* Which collectives of a group run for the first time. */

enum { FIRST_RUNS_MOST = 64 };

/* {0}: none so far. */
typedef struct first_runs {
    int n;
    struct {
        collective_kind kind;
        dtype type;
        int root;
        size_t count;
    } seen[FIRST_RUNS_MOST];
} first_runs;

/* Notes the collective; whether none of its kind, type, size and root or peer was noted before.
 * Beyond FIRST_RUNS_MOST of them none counts as the first. */
bool first_runs_note(first_runs *runs, const collective *c);

/* The injected delay: a slow wire that carries one message at a time. A message gets the wire when
 * it is sent, or when the one before has left it, if that is later. It keeps the wire for the
 * delay, and arrives no earlier. The delay runs by the clock, whatever the caller does meanwhile.
 */

typedef struct injected_delay {
    int64_t delay_ns; /* 0: none */
    int64_t free_ns;  /* when the latest message leaves it */
} injected_delay;

/* When a message sent now leaves the wire. */
int64_t injected_delay_send(injected_delay *delay);

/* Returns when `leaves_ns` has passed; raises *done_ns to it. STATUS_TIMEOUT at the deadline. */
status injected_delay_wait(int64_t leaves_ns, int64_t deadline_ns, int64_t *done_ns);

/* A process group and its works, for the files of this folder. */

typedef enum work_state {
    WORK_HELD,       /* its data, or that of works before it, is on its way to host memory */
    WORK_AT_BACKEND, /* `inner` is to be waited for */
    WORK_DONE,
} work_state;

struct work {
    work *next;
    collective what;
    device_stream *stream; /* NULL: host memory */
    staged *copy;          /* in host memory, or NULL */
    work_state state;
    void *inner;
    uint64_t record;    /* in the flight recorder */
    int64_t began_ns;   /* launched; with a backend that works in wait(), waited for */
    int64_t waited_ns;  /* the wait began; held back: its data was copied */
    int64_t done_ns;    /* 0: not known */
    int64_t arrives_ns; /* not done before; 0: no such limit */
};

struct process_group {
    const process_group_ops *ops; /* NULL for one rank */
    void *self;
    device *dev; /* NULL: host memory only */
    int rank, world_size;
    int64_t timeout_ms, patience_ms;
    bool one_host;
    uint64_t hosts;
    peers *watched; /* to say who has ended, of all ranks; NULL unless calls are compared here */
    process_group_options options; /* what it was made from; new_group makes sub-groups from it */
    char prefix[PROCESS_GROUP_PREFIX_BYTES]; /* of its keys in the store */

    pthread_mutex_t abort_lock; /* of `aborted` and `why`: taken for a moment only */
    bool aborted;               /* process_group_abort was called */
    status_kept why;            /* and said this */

    pthread_mutex_t lock; /* of all below; held in a launch, which may take long */
    first_runs known;
    status broken;
    status_kept failure; /* why it is broken */
    uint64_t seq;        /* of the latest collective */
    uint64_t p2p_seq;    /* of the latest send or receive */
    uint64_t barriers;   /* monitored ones so far */
    uint64_t checked;    /* collectives that ranks have compared */
    int sub_groups;      /* that all its ranks have asked for */
    rank_traffic moved;
    work *first, *last; /* launched and not waited for, oldest first */
    int held;           /* of them */
    spares works;
    injected_delay delay;
    size_t shared_left;
    allocations memory;
    staging *staging; /* NULL until it is needed */
    flight_recorder recorder;
    rank_status *page; /* the rank's status page; NULL: none */
};

/* The lock is held. The group is broken since `st`, unless it was before; the first failure's words
 * are kept. Returns st. */
status process_group_break(process_group *group, status st);

/* Blocks until all ranks have called the same, if the group was asked to check that. STATUS_INVALID
 * names who differs and in what, STATUS_TIMEOUT who has not come; then the group is broken. */
status process_group_check_call(process_group *group, const collective *c);

/* The lock is held. STATUS_OK, or why the group is broken. */
status process_group_broken(process_group *group);

/* The lock is held. The same, or STATUS_INVALID: the call blocks, and another one is still to be
 * waited for. */
status process_group_may_begin(process_group *group, const collective *c);

/* Whether a group can be made as asked: STATUS_INVALID with what is wrong. */
status process_group_check_options(const process_group_options *options);
status process_group_check_options(const process_group_options *options);

#endif
