/* The launchers that are not ours: by which variables each is known, and which of them say where a
 * process stands among the others. docs/internals/cluster.md shows this table. */
#ifndef MNIST_DDP_APP_LAUNCH_LAUNCHER_TABLE_H
#define MNIST_DDP_APP_LAUNCH_LAUNCHER_TABLE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

enum { LAUNCHER_VARIABLES = 4, LAUNCHER_FROM_BYTES = 320 };

/* A list of variables; NULL at its end. */
typedef const char *launcher_variables[LAUNCHER_VARIABLES];

typedef struct launcher_row {
    const char *name;         /* as --launcher has it: "openmpi" */
    const char *title;        /* for messages: "mpirun (Open MPI)" */
    const char *start;        /* how to start four processes by it */
    launcher_variables needs; /* it is this launcher if all are set, */
    launcher_variables lacks; /* and none of these, unless it is asked for by name */

    /* Of each list, the first one that is set counts. */
    launcher_variables rank, size, local_rank, local_size, node;
    launcher_variables tasks; /* processes of each node, as "2(x3),1" (app/launch/slurm_list.h) */
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

/* The first launcher whose variables are set: any for the name "auto", else one of that name.
 * NULL: none. `with_torchrun` is false for who starts ranks himself, and is none. */
const launcher_row *launcher_table_find(const char *name, bool with_torchrun);

/* Another launcher after it whose variables are set as well; NULL. */
const launcher_row *launcher_table_next(const launcher_row *row);

/* The variables that the launchers of this name are known by, for messages. */
void launcher_table_needs(const char *name, char *out, size_t size_bytes);

/* How its processes are started, "mpirun -n 4". */
const char *launcher_table_start(const char *name);

/* Reads the place. STATUS_INVALID if a number is none, a needed one is missing or they contradict
 * each other; the message names the variables. `size` may be -1 only if the row has none. */
status launcher_place_read(const launcher_row *row, launcher_place *out);

/* The first of the list that is set: its name; NULL. */
const char *launcher_variable(const launcher_variables list);

/* What no other job of the launcher has, "slurm-17.0"; the variables that say it into `from`. false
 * if they are not set. */
bool launcher_job_id(const launcher_row *row, char *out, size_t size_bytes,
                     char from[LAUNCHER_FROM_BYTES]);

#endif
