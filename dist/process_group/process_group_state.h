/* What the files of a process group share. */
#ifndef MNIST_DDP_DIST_PROCESS_GROUP_PROCESS_GROUP_STATE_H
#define MNIST_DDP_DIST_PROCESS_GROUP_PROCESS_GROUP_STATE_H

#include "base/memory.h"
#include "base/status.h"
#include "dist/collective/process_group_ops.h"
#include "dist/collective/process_group_options.h"
#include "dist/health/hang_report.h"
#include "dist/health/peers.h"
#include "dist/health/rank_status.h"
#include "dist/process_group/process_group.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Collectives on device memory for backends that take host memory only. What they read is copied to
 * pinned host memory, they work there, and what they set is copied back.
 *
 * The calls marked "group's lock" are made by one thread at a time, the others by the thread that
 * waits for the work.
 */

typedef struct staging staging;

/* One collective's stay in host memory. */
typedef struct staged {
    collective host; /* the same collective, there */
    size_t in_bytes, out_bytes;
    struct device_event *copied; /* reached when its data is there */
    struct staging_chunk *chunk; /* whose memory it takes */
    struct staged *next;         /* spare ones */
} staged;

/* Sets *out to *got_bytes of host memory, at least size_bytes, aligned to 64 bytes, which lives
 * until after staging_destroy. Called with the group's lock. */
typedef status (*staging_memory_fn)(void *ctx, size_t size_bytes, void **out, size_t *got_bytes);

/* Borrows dev, an accelerator. */
status staging_create(struct device *dev, staging_memory_fn memory, void *ctx, staging **out);

/* Accepts NULL. What it has staged must no longer be in use, by the device's copies either. */
void staging_destroy(staging *s);

/* Enqueues the copy of `c`, whose arrays are device memory of in_bytes and out_bytes, to the host,
 * after the device's work so far. Group's lock. */
status staging_copy_out(staging *s, const collective *c, size_t in_bytes, size_t out_bytes,
                        staged **out);

/* Returns when copied out: item->host may now be done. Blocks on the device alone. */
status staging_wait(staging *s, staged *item);

/* Enqueues the copy of the result to `out` on the device. */
status staging_copy_in(staging *s, const staged *item, void *out);

/* Its memory is free for the next copy out, which comes after the copy in. Accepts NULL. Group's
 * lock. */
void staging_release(staging *s, staged *item);

/* Memory that goes with its owner: a list of what was handed out. */

/* All zero is an empty list. The owner locks it. */
typedef struct allocations {
    struct allocation *first;
} allocations;

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

/* The injected delay: a slow wire that carries one message at a time. A message gets the wire when
 * it is sent, or when the one before has left it, if that is later. It keeps the wire for the
 * delay, and arrives no earlier. The delay runs by the clock, whatever the caller does meanwhile.
 */

typedef struct injected_delay {
    int64_t delay_ns; /* 0: none */
    int64_t free_ns;  /* when the latest message leaves it */
} injected_delay;

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
    char prefix[PROCESS_GROUP_PREFIX_BYTES]; /* its keys in the store begin so */
    char of_ranks[72]; /* of a sub-group, in the group's numbers: " of ranks 1, 3" */
    int *whole;        /* (world_size), likewise; NULL: it is no sub-group */

    pthread_mutex_t abort_lock; /* guards `aborted` and `why`: taken for a moment only */
    bool aborted;               /* process_group_abort was called */
    status_kept why;            /* what process_group_abort was given */

    pthread_mutex_t lock; /* guards all below; held in a launch, which may take long */
    first_runs known;
    status broken;
    status_kept failure; /* why it is broken */
    uint64_t seq;        /* the latest collective's */
    uint64_t p2p_seq;    /* the latest send's or receive's */
    uint64_t barriers;   /* monitored ones so far */
    uint64_t checked;    /* collectives that ranks have compared */
    int sub_groups;      /* how many all its ranks have asked for */
    rank_traffic moved;
    work *first, *last; /* launched and not waited for, oldest first */
    int held;           /* how many of them are held back */
    spares works;
    injected_delay delay;
    size_t shared_left;
    allocations memory;
    staging *staging; /* NULL until it is needed */
    flight_recorder recorder;
    rank_status *page; /* the rank's status page; NULL: none */
};

/* Barrier `number` of the group, from 1, that goes through the store: so it can say who is missing,
 * also if the backend hangs, and its failure says nothing about the backend. */
status store_meeting_barrier(const process_group *group, uint64_t number, int64_t timeout_ms);

/* Blocks until all ranks have come with their call, `number` of those compared. STATUS_INVALID
 * names who differs and in what, STATUS_TIMEOUT who has not come. */
status store_meeting_compare(const process_group *group, uint64_t number, const collective *c);

#endif
