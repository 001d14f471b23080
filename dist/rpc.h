/* Calls from rank to rank, under the names of torch.distributed.rpc: messages in the job's store.
 *
 *   rpc_async     a function of another rank is called; a future stands for what it returns
 *   rpc_sync      the same, and the wait for it
 *   rpc_remote    what it returns stays there, and the caller has a reference to it
 *   rpc_shutdown  serves the others' calls until no rank has any more
 *
 * A rank serves only inside rpc_serve_one and rpc_shutdown: none of its own threads does. One
 * thread calls all functions. A call costs about eight requests to the store; each key goes with
 * its message. */
#ifndef MNIST_DDP_DIST_RPC_H
#define MNIST_DDP_DIST_RPC_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct store;
typedef struct rpc rpc;

enum { RPC_NAME_BYTES = 48, RPC_VALUE_BYTES = 4 << 20 }; /* at most, of arguments and of results */

/* A call as a function gets it; `args` is valid until it returns. */
typedef struct rpc_call {
    int from, id;
    const void *args;
    size_t size;
} rpc_call;

/* What a function returns: freed by whoever has it last, with free(). */
typedef struct rpc_value {
    void *data;
    size_t size;
    bool later; /* the function has returned nothing yet: rpc_reply follows */
} rpc_value;

/* *out is zeroed. A failure travels to the caller, with code and text; that of a function which has
 * set `later` is its own rank's, and ends rpc_serve_one. */
typedef status rpc_fn(void *ctx, const rpc_call *call, rpc_value *out);

typedef struct rpc_function {
    const char *name;
    rpc_fn *call;
    void *ctx;
} rpc_function;

typedef struct rpc_options {
    struct store *store; /* the job's; borrowed, as the functions are */
    int rank, world_size;
    const rpc_function *functions; /* that others may call */
    int n_functions;
    int64_t timeout_ms; /* of each wait */
    bool watches;       /* the store is ours: a rank whose process ends is noticed at once */
} rpc_options;

/* All ranks call it, once per job: returns when all have. STATUS_TIMEOUT: who has not. */
status rpc_open(const rpc_options *options, rpc **out);
void rpc_close(rpc *r); /* accepts NULL */

typedef struct rpc_future {
    int to, id;
    const char *name; /* the call's; borrowed */
} rpc_future;

/* STATUS_INVALID: no such rank, or arguments that are too large. */
status rpc_async(rpc *r, int to, const char *name, const void *args, size_t size, rpc_future *out);

/* STATUS_TIMEOUT: no answer by then, and it may be waited for again; STATUS_PEER: the rank is gone,
 * or its answer makes no sense; else the function's own failure. A zero byte follows the value. */
status rpc_wait(rpc *r, const rpc_future *future, rpc_value *out);
status rpc_sync(rpc *r, int to, const char *name, const void *args, size_t size, rpc_value *out);

/* A value that stays with the rank that has made it. Any rank may have a copy of the reference. */
typedef struct rpc_rref {
    int owner, creator, id;
} rpc_rref;

/* Does not wait. If the function fails, rref_to_here says so. */
status rpc_remote(rpc *r, int to, const char *name, const void *args, size_t size, rpc_rref *out);
status rref_to_here(rpc *r, const rpc_rref *ref, rpc_value *out);
status rref_delete(rpc *r, const rpc_rref *ref); /* the owner frees it; does not wait */

/* Serves one message. STATUS_TIMEOUT if none comes, STATUS_PEER if a rank is gone. */
status rpc_serve_one(rpc *r);

/* The answer to a call whose function has set `later`. `st`: its failure is this thread's. */
status rpc_reply(rpc *r, int to, int id, status st, const rpc_value *value);

/* All ranks call it when they have nothing to ask any more. */
status rpc_shutdown(rpc *r);

#endif
