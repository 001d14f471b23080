/* Who has started this process: a launcher that is not ours (the table in outer_launcher.c, which
 * docs/internals/cluster.md shows), or nobody. Its processes are the ranks of one job; or launchers
 * of ours, one on each node, if the settings ask for several ranks a node. */
#ifndef MNIST_DDP_APP_LAUNCH_OUTER_LAUNCHER_H
#define MNIST_DDP_APP_LAUNCH_OUTER_LAUNCHER_H

#include "app/launch/worker_spec.h"

#include <stdbool.h>
#include <stddef.h>

/* The first host of a list of Slurm's, "n1" of "n[1-3,7],login"; numbers keep their zeros. false if
 * the text is no such list, or the host does not fit. */
bool slurm_list_first_host(const char *list, char *out, size_t size_bytes);

/* The tasks of node `node`, and those of all nodes. false if the text is no such list, or it has no
 * such node. */
bool slurm_list_tasks(const char *list, int node, int *tasks, int *all);

/* "<job>-0.<service>..." of "<job>-<index>.<service>...", the full name of an Indexed Job's pod. */
status pod_name_first(const char *name, int index, char *out, size_t size_bytes);

enum { OUTER_LAUNCHER_TEXT_BYTES = 1200 };

enum { LAUNCHER_VARIABLES = 4, LAUNCHER_FROM_BYTES = 320 };

/* A list of variables; NULL at its end. */
typedef const char *launcher_variables[LAUNCHER_VARIABLES];

typedef struct launcher_row {
    const char *name;         /* as --launcher has it: "openmpi" */
    const char *title;        /* for messages: "mpirun (Open MPI)" */
    const char *start;        /* how to start four processes by it */
    launcher_variables needs; /* it is this launcher if all of these are set */
    launcher_variables lacks; /* but not if one of these is, unless it is asked for by name */

    /* Of each list, the first one that is set counts. */
    launcher_variables rank, size, local_rank, local_size, node;
    launcher_variables tasks; /* processes of each node, as "2(x3),1" */
    launcher_variables hosts; /* all nodes, as "n[1-3,7]" */
    launcher_variables job;   /* all of them together are what no other job has */
    bool in_step;             /* srun sets these variables too, and then Slurm's say more */
    bool is_torchrun;         /* they are what a rank reads itself (dist/rendezvous.h) */
    bool is_pod;              /* its processes are on hosts of their own */
    bool names_host;          /* the host's name ends with the process's number */
} launcher_row;

/* What the variables say; -1: nothing. */
typedef struct launcher_place {
    int rank, size;
    int local_rank, local_size; /* among the processes of this node */
    int node;
    char from[LAUNCHER_FROM_BYTES]; /* the variables that said it: "PMI_RANK, PMI_SIZE" */
} launcher_place;

typedef enum outer_role {
    OUTER_ROLE_ALONE, /* no launcher, or one with a single process */
    OUTER_ROLE_RANK,
    OUTER_ROLE_AGENT,
} outer_role;

typedef struct outer_launcher {
    const launcher_row *row; /* NULL: none */
    outer_role role;
    launcher_place place; /* but for torchrun, whose variables dist/rendezvous.h reads */

    /* The job's store. */
    char master_addr[256]; /* "": --init-method, or an agent's --rdzv-endpoint, has it */
    int master_port;
    char port_from[LAUNCHER_FROM_BYTES]; /* the variables that the port was made of; "" */
    char job[128];                       /* "slurm-17.0"; "" */
} outer_launcher;

/* Which one it is, by --launcher or else by the environment, for the commands that run as ranks or
 * start them. May look up this host's own name. STATUS_INVALID, with the variables' names, if they
 * are not complete, contradict each other or the flags, or --launcher names one that is not there.
 */
status outer_launcher_find(const options *opts, outer_launcher *out);

/* Makes it so. A rank gets torchrun's variables, which all that asks for its place reads; an agent
 * the flags --nnodes, --node-rank, --master-addr and --master-port, unless they were given. Call it
 * before there are threads. */
status outer_launcher_adopt(const outer_launcher *outer, options *opts);

/* Is this the one process of its job that says who has started it? Ranks of ours never do. */
bool outer_launcher_speaks(const outer_launcher *outer);

/* "srun: rank 0 of 4, from SLURM_PROCID, ...", one line. */
void outer_launcher_describe(const outer_launcher *outer, char out[OUTER_LAUNCHER_TEXT_BYTES]);

/* Ranks of backend mpi, which MPI's own launcher starts. */

/* Becomes mpirun, which starts this program with the same arguments as each rank of this host; so
 * its exit code is this process's. Returns only on failure: STATUS_INVALID, with what to type, if
 * there are several nodes, mpirun has started this process itself, or there is no mpirun or no
 * module mpi. */
status mpirun_become(const worker_spec *spec, int argc, char **argv);

#endif
