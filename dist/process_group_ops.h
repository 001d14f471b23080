/* What a backend implements. Callers include dist/process_group.h instead. */
#ifndef MNIST_DDP_DIST_PROCESS_GROUP_OPS_H
#define MNIST_DDP_DIST_PROCESS_GROUP_OPS_H

#include "dist/process_group.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum collective_kind {
    COLLECTIVE_ALL_REDUCE,
    COLLECTIVE_BROADCAST,
    COLLECTIVE_BARRIER,
    COLLECTIVE_REDUCE,
    COLLECTIVE_ALL_GATHER,
    COLLECTIVE_REDUCE_SCATTER,
    COLLECTIVE_SEND,
    COLLECTIVE_RECV,
} collective_kind;

typedef struct collective {
    collective_kind kind;
    reduce_op op;
    dtype type;
    const void *in; /* count elements of type; may equal out */
    void *out;
    size_t count;   /* elements, > 0 but for a barrier */
    int root;       /* or the peer of a send or recv */
    float prescale; /* every element is multiplied by it on the way in (float types); 1 if unused */
    uint64_t seq;   /* this group's running number, from 1: names the collective in errors */
    int64_t
        timeout_ms; /* of this one: process_group_patience_ms where it is the first of its kind */
    const char *label; /* what it carries, as process_group_keep_label gave it; NULL: not said */
} collective;

/* Bytes that a rank sends to others and gets from them. */
typedef struct rank_traffic {
    uint64_t sent, received;
} rank_traffic;

/* What a backend's create gets. */
typedef struct group_setup {
    const process_group_options *options; /* valid only during create */
    const char *prefix; /* of this group's keys in the store, "pg/3/"; valid only during create */
    bool one_host;      /* all ranks share host, network and process namespace, and user */
} group_setup;

/* Arguments arrive checked; world_size > 1. launch() starts behind the work already on `stream`
 * (NULL: host memory, starts at once) and may be called again before the first is done. A kind that
 * a backend cannot do is STATUS_INVALID, by name. wait() of a work with a stream orders that stream
 * behind it and does not block the host; else it
 * returns when the result is in place, or STATUS_TIMEOUT at the deadline, after which only
 * destroy() may be called. Works are waited for in the order of their launch, by one thread at a
 * time; launch() may be called from another thread meanwhile. Messages say what went wrong with
 * which peer; the front door puts the collective, the rank and the backend in front. */
typedef struct process_group_ops {
    const char *name;   /* as --backend spells it */
    bool device_memory; /* takes a stream and device memory; false: host memory only */
    status (*create)(const group_setup *setup, void **self);
    status (*launch)(void *self, const collective *c, device_stream *stream, void **out_work);
    /* Consumes out_work, also on failure. *done_ns: when the result was in place. */
    status (*wait)(void *self, void *w, int64_t deadline_ns, int64_t *done_ns);
    /* As process_group_check, without blocking. NULL: nothing to find out. */
    status (*check)(void *self);
    /* Memory as in process_group_alloc. NULL: the front door makes it. */
    status (*alloc)(void *self, size_t size_bytes, void **out);
    /* Also after a failure, and with works not waited for, which it frees. */
    void (*destroy)(void *self);
    /* What a collective moves on rank `rank`, by the backend's algorithm. */
    rank_traffic (*traffic)(const collective *c, int rank, int world_size);
    /* Of the library it calls, "2.28.9". NULL: none is told. */
    void (*version)(char *out, size_t size_bytes);
} process_group_ops;

extern const process_group_ops shm_ops, local_ops;

const char *collective_kind_name(collective_kind kind); /* "all_reduce" */
size_t dtype_size(dtype type);                          /* bytes */
const char *dtype_name(dtype type);                     /* "f32" */

#ifdef __cplusplus
}
#endif
#endif
