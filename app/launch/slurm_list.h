/* Slurm's short forms of lists: hosts as "n[1-3,7]", tasks per node as "2(x3),1". */
#ifndef MNIST_DDP_APP_LAUNCH_SLURM_LIST_H
#define MNIST_DDP_APP_LAUNCH_SLURM_LIST_H

#include <stdbool.h>
#include <stddef.h>

/* The first host of the list, "n1" of "n[1-3,7],login"; numbers keep their zeros. false if the text
 * is no such list, or the host does not fit. */
bool slurm_list_first_host(const char *list, char *out, size_t size_bytes);

/* The tasks of node `node`, and those of all nodes. false if the text is no such list, or it has no
 * such node. */
bool slurm_list_tasks(const char *list, int node, int *tasks, int *all);

#endif
