/* Who has started this process: a launcher that is not ours (app/launch/launcher_table.h), or
 * nobody. Its processes are the ranks of one job; or launchers of ours, one on each node, if the
 * settings ask for several ranks a node. */
#ifndef MNIST_DDP_APP_LAUNCH_OUTER_LAUNCHER_H
#define MNIST_DDP_APP_LAUNCH_OUTER_LAUNCHER_H

#include "app/launch/launcher_table.h"
#include "app/options/options.h"
#include "base/status.h"

#include <stddef.h>

/* "<job>-0.<service>..." of "<job>-<index>.<service>...", the full name of an Indexed Job's pod. */
status pod_name_first(const char *name, int index, char *out, size_t size_bytes);

enum { OUTER_LAUNCHER_TEXT_BYTES = 1200 };

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

#endif
