/* What is launched: how many workers on this node and where it stands among the others, which
 * program they run, where their output goes, and when they are stopped. */
#ifndef MNIST_DDP_APP_LAUNCH_WORKER_SPEC_H
#define MNIST_DDP_APP_LAUNCH_WORKER_SPEC_H

#include "app/launch/output.h"
#include "app/options/options.h"
#include "app/train/agreement.h"
#include "base/text.h"
#include "dist/elastic/etcd.h"
#include "dist/elastic/rdzv.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum {
    SPEC_ADDRESS_BYTES = 256,
    SPEC_RUN_ID_BYTES = 128,
    SPEC_ROLE_BYTES = 64,
    SPEC_RANKS_BYTES = 64,
    SPEC_ENDPOINTS_BYTES = 1024,
};

typedef enum rdzv_backend {
    RDZV_STATIC, /* nodes are numbered by --node-rank, and all are there for the whole job */
    RDZV_C10D,   /* they meet at a store of ours, and may come and go */
    RDZV_ETCD,   /* they meet at etcd, likewise */
} rdzv_backend;

extern const char *const RDZV_BACKEND_NAMES[]; /* as --rdzv-backend has them */

/* Who serves the store: node 0's, or of c10d the one at which the nodes meet. */
typedef enum rdzv_host {
    RDZV_HOST_HERE,
    RDZV_HOST_ELSEWHERE,
    RDZV_HOST_FIRST, /* by the first agent on the host of the endpoint */
} rdzv_host;

enum {
    SHUTDOWN_GRACE_MS = 300,   /* after a failure: survivors may say what they saw */
    SHUTDOWN_CAUSE_MS = 2000,  /* longer, for the rank that they have lost to end, too */
    SHUTDOWN_STOP_MS = 2000,   /* then our own workers get SIGTERM; this much later SIGKILL */
    SHUTDOWN_SIGNAL_MS = 5000, /* the same after a signal to the agent */
    SHUTDOWN_SIGNALS_BYTES = 160,
};

/* What the agent does if it is told to stop, and how long it waits for its workers then. */
typedef struct shutdown_policy {
    bool own;         /* the workers are this program's `train` or `bench` */
    bool listens;     /* they are `train`: SIGUSR1 asks them for a checkpoint
                       * (app/train/preempt.h) */
    bool saves;       /* and they leave one: neither --no-save-model nor --dry-run */
    sigset_t signals; /* that stop the workers, unless they were ignored at the start */
    char signal_names[SHUTDOWN_SIGNALS_BYTES];
    int64_t stop_ms;    /* after a failure: from SIGTERM to SIGKILL */
    int64_t signal_ms;  /* after a signal to the agent, likewise */
    int64_t save_ms;    /* if it `listens`: from SIGUSR1 (write a checkpoint and end) to SIGTERM */
    bool torchrun_code; /* exit with 1 after any failure */
    bool keeps;         /* elastic: the workers go on in their processes (elastic_link.h) */
} shutdown_policy;

/* What a worker executes: this program again, a Python script, or any executable. */
typedef struct entrypoint {
    char path[FILE_PATH_BYTES]; /* for execve */
    char **words;               /* argv for every worker; NULL-ended: free with free() */
    int count;
    int local_rank_at; /* where the word "--local-rank=N" goes; -1: nowhere */
    const char *local_rank_flag;
    bool own_session; /* it leaves the agent's process group: no signal of the terminal */
} entrypoint;

/* What `run` was given: a script (".py", or what is no executable) is run by $PYTHON_EXEC or
 * python3, unbuffered. STATUS_INVALID if it is not there, with what was looked for. out->words are
 * to be freed also after a failure. */
status entrypoint_find(const options *opts, entrypoint *out);

/* Writes a word with a zero byte. */
__attribute__((format(printf, 2, 3))) void entrypoint_word(FILE *words, const char *fmt, ...);

/* The words that were written, as a list that ends with NULL, in one block of memory: free with
 * free(). Closes the stream. */
status entrypoint_list(text_stream *words, char ***out);

/* argv for one worker, "${local_rank}" replaced; likewise. */
status entrypoint_argv(const entrypoint *program, int local_rank, char ***out);

typedef struct worker_spec {
    const options *opts;           /* what was asked for; borrowed. NULL: of no command line */
    bool counts_nodes;             /* only world_size is known: nnodes is the most there can be, and
                                    * nproc, until the nodes have met */
    int nproc, nnodes, world_size; /* elastic: of the round; at first, as if it had all max_nodes */
    int node_rank;                 /* elastic: likewise; at first -1 */
    round_state now;               /* the round; elastic: none before the first. A static job's has
                                    * no ids; its attempts are rounds from 0; owned */
    rdzv_backend backend;          /* RDZV_STATIC also of one machine: it needs none */
    rdzv_options rdzv;             /* how many nodes there may be, and the times, also of a static
                                    * job; the rest is the agent's to fill in */
    char endpoints[SPEC_ENDPOINTS_BYTES]; /* elastic: where nodes meet, with ports: "h1:p,h2:p" */
    etcd_access access;                   /* likewise: of etcd */
    rdzv_host server;
    char master_addr[SPEC_ADDRESS_BYTES];
    int master_port;        /* 0: one node, a free one, until it is known */
    bool store_on_loopback; /* it is served on master_addr only, not on all addresses */
    char local_addr[SPEC_ADDRESS_BYTES]; /* this machine, as others know it; "": by the route */
    char run_id[SPEC_RUN_ID_BYTES];
    char role[SPEC_ROLE_BYTES];
    int max_restarts;
    int64_t monitor_ms; /* between two looks at the other nodes */

    /* By worker_spec_complete. */
    shutdown_policy policy;
    worker_logs logs;
    entrypoint program;
    char alike[AGREEMENT_BYTES];   /* for `train` on several nodes; else "" */
    char run_dir[FILE_PATH_BYTES]; /* for the workers of `train`; "" if they need not be told */
    bool name_is_loopback;         /* for `run` on several hosts: this host's own name is */
    bool virtual_local_rank;       /* each worker sees one GPU, and LOCAL_RANK=0 */
    bool stdout_has_result;        /* what the ranks print is no mere progress */
    bool port_busy;                /* --inject=port-busy: the store's port is taken already */
    const char *event_log;         /* the options' own; NULL */
    int health_check_port;         /* -1: none */
} worker_spec;

/* *out: the GPUs of this machine if the number of ranks depends on them; else 0, and no driver is
 * asked. */
status worker_spec_count_gpus(const options *opts, int *out);

/* --nnodes or PET_NNODES: "2", or "1:4". Both are -1 for NULL. STATUS_INVALID if it is no number of
 * machines. */
status worker_spec_nnodes(const char *text, int *min, int *max);

/* How many workers each node starts, and where the store is: from flags, else from
 * PET_NPROC_PER_NODE and so on. If world_size and nnodes are 1, `train` needs no agent.
 * STATUS_INVALID if the settings do not fit each other; the message says what to type. */
status worker_spec_read(const options *opts, int cpu_count, int gpu_count, worker_spec *out);

/* The rest of it, for the launch of `train` (this program again, with argv) or `run` (any program).
 * STATUS_INVALID likewise. worker_spec_free also after a failure. */
status worker_spec_complete(const options *opts, int argc, char **argv, worker_spec *spec);
void worker_spec_free(worker_spec *spec);

/* Hides USER:PASSWORD@ of --rdzv-endpoint in the process's own arguments and variables, for others
 * who list processes, and for the workers. It stands in `access`, and endpoints have none. */
void worker_spec_hide(const options *opts, int argc, char **argv);

/* STATUS_INVALID, with what to type, if the mode is not for so many ranks, or not for those of the
 * least nodes that may be left. */
status worker_spec_check_mode(const worker_spec *spec, const options *opts);

/* Whether nodes may come and go. */
static inline bool worker_spec_is_elastic(const worker_spec *spec)
{
    return spec->backend != RDZV_STATIC;
}

/* Who has not been heard of for so long is taken for dead. */
static inline int64_t worker_spec_lease_ms(const worker_spec *spec)
{
    return spec->rdzv.keep_alive_ms * spec->rdzv.keep_alive_misses;
}

/* The first rank of a node, and how many it has. */
int worker_spec_first_rank(const worker_spec *spec, int node);
int worker_spec_ranks_of(const worker_spec *spec, int node);

/* "rank 1 of 2" or "ranks 2 to 3 of 4": those of the node, into `out`, which is returned. */
const char *worker_spec_ranks(const worker_spec *spec, char out[SPEC_RANKS_BYTES]);

#endif
