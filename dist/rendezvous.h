/* How the ranks of a job find each other: by the environment (RANK, WORLD_SIZE, MASTER_ADDR,
 * MASTER_PORT), or as --init-method says. */
#ifndef MNIST_DDP_DIST_RENDEZVOUS_H
#define MNIST_DDP_DIST_RENDEZVOUS_H

#include "base/status.h"
#include "dist/store/store.h"

#include <stdbool.h>
#include <stdint.h>

/* How the ranks of a job meet, as init_method of torch.distributed.init_process_group says it:
 *
 *     env://              RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say it
 *     tcp://HOST:PORT     rank 0 serves the store there
 *     file:///PATH        rank 0 serves it anywhere, and says where in this file
 *
 * Each may end in ?rank=R&world_size=N. */
enum { INIT_METHOD_HOST_BYTES = 256, INIT_METHOD_PATH_BYTES = 1024 };

typedef enum init_method_kind {
    INIT_METHOD_ENV,
    INIT_METHOD_TCP,
    INIT_METHOD_FILE
} init_method_kind;

typedef struct init_method {
    init_method_kind kind;
    char host[INIT_METHOD_HOST_BYTES]; /* tcp's, without brackets */
    int port;
    char path[INIT_METHOD_PATH_BYTES]; /* file's; absolute */
    int rank, world_size;              /* -1: it does not say */
} init_method;

/* STATUS_INVALID, with what is expected. */
status init_method_parse(const char *text, init_method *out);

/* This process's place in the job. */
typedef struct rendezvous_place {
    int rank, world_size;
    int local_rank, local_world_size;
    int node_rank;
    char master_addr[INIT_METHOD_HOST_BYTES];
    int master_port;
    char init_file[INIT_METHOD_PATH_BYTES]; /* where the two are found; "": they are known */
    bool agent_store;  /* the launcher holds master_port and serves the store there */
    int restart_count; /* restarts after a rank's failure, so far */
    int64_t round;     /* an elastic job's, from 1; 0: the job is none */
    char run_id[128];
    struct socket_breaker *breaker; /* breaks the connection to the store; borrowed; NULL */
} rendezvous_place;

/* What keys, files and ports of this start of the ranks carry, so that those of an older one are
 * never read: the round of an elastic job, else how often the ranks were started again. */
static inline int64_t rendezvous_place_attempt(const rendezvous_place *place)
{
    return place->round > 0 ? place->round : place->restart_count;
}

/* What the command line says of this process's place. */
typedef struct rendezvous_request {
    const char *init_method; /* NULL: env:// */
    int rank, world_size;    /* -1: not given */
    const char *own_address; /* rank 0's, for file://; NULL: this host's own, or loopback */
} rendezvous_request;

/* Reads RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK or
 * NODE_RANK, TORCHELASTIC_RUN_ID, TORCHELASTIC_RESTART_COUNT, TORCHELASTIC_USE_AGENT_STORE and
 * MNIST_DDP_ROUND, and what is asked for (NULL: nothing else). What two of flag, query and
 * environment say of rank and world size has to be the same. With file:// on several hosts
 * LOCAL_RANK has to be set. *found is false, and *out untouched, if nothing names a rank, and the
 * method is env://: this is no worker. STATUS_INVALID with the variable's name if one is missing or
 * makes no sense. */
status rendezvous_place_read(const rendezvous_request *asked, rendezvous_place *out, bool *found);

/* The file of --init-method=file://PATH: one line, by which ranks that see one file system find the
 * store that rank 0 serves.
 *
 *     rank 0     serves the store on a free port, writes the line to PATH.next, which only one can
 *                make, looks whether the path is free, and moves the line there
 *     others     read the line as soon as it is there, and look whether its store lives
 *     rank 0     removes the file once all have joined
 *
 * A line is of a living job if a store answers at its address and holds INIT_FILE_KEY under the
 * line's id. So a line that a killed job has left does not count, also if another store has its
 * port by now. PyTorch's FileStore keeps all keys in the file, under locks that not every file
 * system has, and takes those of an older job for its own. */

enum { INIT_FILE_ID_BYTES = 33, INIT_FILE_NAME_BYTES = 256 };

/* A key of the store, in every job under the prefix of its id. */
#define INIT_FILE_KEY "init"

typedef struct init_file {
    char id[INIT_FILE_ID_BYTES]; /* 128 random bits in hexadecimal: the job's run id */
    char address[INIT_FILE_NAME_BYTES];
    int port;
    int pid; /* rank 0's */
    char host[INIT_FILE_NAME_BYTES];
    uint64_t host_number; /* base/host.h */
} init_file;

/* Sets the fields of a new line that this process knows by itself: all but address and port. */
void init_file_init(init_file *line);

/* Rank 0, whose store answers already: puts the line at the path. STATUS_INVALID if the path holds
 * anything but nothing, or what a job has left that is gone; a line of the log says then that it is
 * replaced. Of several that come at once one succeeds, and the others fail with its name. Waits 2 s
 * at most for a store that does not answer, and 5 s for another rank 0. */
status init_file_publish(const char *path, const init_file *line);

typedef struct rendezvous rendezvous;

/* Joins the job's store (rank 0 serves it if no agent does; with an init file at any port) and
 * returns once all ranks have joined; meanwhile logs every few seconds who is missing.
 * STATUS_TIMEOUT, with the missing ranks, after timeout_ms (--join-timeout). STATUS_INVALID if two
 * processes claim one rank, or the ranks disagree on the world size, or of an init file;
 * STATUS_IO if rank 0 cannot have the port; STATUS_PEER if the store goes away. One rank's failure
 * ends the join of all that still wait. A world of one without an agent opens no socket. */
status rendezvous_join(const rendezvous_place *place, int64_t timeout_ms, int64_t store_timeout_ms,
                       rendezvous **out);

/* The place as it was given, with the store's address that an init file has led to. */
const rendezvous_place *rendezvous_joined(const rendezvous *r);

/* The job's store, keys under mnist_ddp/<run id>/<attempt>/. Owned by the rendezvous; NULL
 * for a world of one without an agent. */
store *rendezvous_store(rendezvous *r);

/* Whether that store is ours, and not torchrun's: it has watched keys. */
bool rendezvous_watches(const rendezvous *r);

/* Says goodbye and, if this rank serves the store, waits up to 5 s for all others to. Only after
 * a run that went well; otherwise just destroy. The run is over: what fails here is only logged. */
void rendezvous_leave(rendezvous *r);
void rendezvous_destroy(rendezvous *r);

#endif
