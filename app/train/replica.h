/* One replica's thread, and what it shares with the master: for strategy_dp.c and replica.c. */
#ifndef MNIST_DDP_APP_TRAIN_REPLICA_H
#define MNIST_DDP_APP_TRAIN_REPLICA_H

#include "app/train/rank_context.h"
#include "dist/backends/local/backend_local.h"
#include "dist/process_group/process_group.h"
#include "dist/store/store.h"
#include "kernels/device.h"
#include "model/network.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
    REPLICAS_MAX = 64,
    REPLICA_MESSAGE_BYTES = 1024,
    REPLICA_GROUPS = 2, /* an epoch has full batches and at most one smaller one */
};

/* Where a replica and the master meet in the course of a batch. */
typedef enum replica_point { AT_PARAMETERS, AT_LOGITS, AT_GRADIENTS, REPLICA_POINTS } replica_point;

typedef enum task_kind {
    TASK_OPEN, /* device and network */
    TASK_LOAD, /* the kernels */
    TASK_JOIN, /* the process groups */
    TASK_WORK, /* on a chunk of a batch */
    TASK_END,
} task_kind;

typedef struct task {
    task_kind kind;
    bool begins_step;
    step_plan plan; /* of the step */
    int n;          /* samples of the whole batch */
    int group;
} task;

/* The first `n` replicas: those in use for batches of one size. */
typedef struct replica_group {
    int n;
    local_hub *hub; /* NULL: they meet through the store */
} replica_group;

struct replicas;

typedef struct replica {
    struct replicas *all;
    int index;
    pthread_t thread; /* of all but the master */
    device_options where;
    device *dev;
    struct trace_lane *lane; /* of its transfers; NULL: no trace */
    network *net;
    step_state *state;                          /* device memory, as the next two: */
    float *x;                                   /* (chunk, 784) */
    uint32_t *samples;                          /* (chunk) */
    store *keys[REPLICA_GROUPS];                /* NULL: none is needed */
    process_group *groups[REPLICA_GROUPS];      /* NULL: not of this group, or a group of one */
    _Atomic int64_t arrived_ns[REPLICA_POINTS]; /* when it last was ready for the master */

    /* under the lock of `all` */
    uint64_t done; /* tasks */
    status st;
    char message[REPLICA_MESSAGE_BYTES];
} replica;

typedef struct replicas {
    int n, chunk;                /* chunk: samples of the largest */
    int batches[REPLICA_GROUPS]; /* samples of a full batch and of an epoch's last; 0: there is none
                                 */
    int n_groups;
    replica_group groups[REPLICA_GROUPS];
    replica members[REPLICAS_MAX]; /* the first one is the master */
    network_options network;
    char backend[8];
    store_server *server; /* of the groups that meet through it; NULL */
    int64_t timeout_ms;
    void (*stuck)(void *all, status st); /* of the process groups */
    bool ready; /* all have what they need: until then they open libraries, which takes longer */
    rank_context *rank;     /* the master */
    float *logits;          /* (batch, 10): all replicas', in the master's memory */
    unsigned char *dlogits; /* (batch): rows of network_dlogits_row_bytes() */
    step_plan plan;         /* of the step that the next batch begins */
    bool begins_step;
    int started; /* threads */

    pthread_mutex_t lock; /* of the tasks and what members say of them */
    pthread_cond_t changed;
    task current;
    uint64_t issued; /* tasks so far */
} replicas;

/* A replica's thread; arg is the replica. Ends with TASK_END. */
void *replica_main(void *arg);

/* Of replicas that talk through nccl, before there is a communicator: runs this replica's part of a
 * batch of every size once, on zeros, so that every kernel of it is loaded. A kernel's first launch
 * may wait for all that runs on the device, or on any (CUDA's programming guide, "Lazy Loading"):
 * with replicas in one process then for a transfer whose other end waits for that launch. What
 * runs only when all transfers of a step are enqueued, as the optimizer, need not be loaded.
 * Weights, optimizer, totals and loss scale stay as they are; gradients do not. */
status replica_load_kernels(replica *r);

/* Opens this replica's process groups, one per replica_group that it belongs to. */
status replica_join(replica *r);
void replica_leave(replica *r);

#endif
