#include "app/launch/outer_launcher.h"

#include "base/environment.h"
#include "base/number.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first row whose variables are set counts: mpirun inside a Slurm job sets its own beside
 * Slurm's. */
static const struct {
    const char *name;
    const char *rank;       /* set for each process */
    const char *also;       /* must be set too; NULL */
    const char *sizes[2];   /* the first that is set says how many processes; NULL: nothing does */
    const char *local_size; /* NULL: nothing says it */
} LAUNCHERS[] = {
    {"mpirun (Open MPI)",
     "OMPI_COMM_WORLD_RANK",
     NULL,
     {"OMPI_COMM_WORLD_SIZE", NULL},
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"mpirun (MVAPICH2)",
     "MV2_COMM_WORLD_RANK",
     NULL,
     {"MV2_COMM_WORLD_SIZE", NULL},
     "MV2_COMM_WORLD_LOCAL_SIZE"},
    /* A batch script has SLURM_PROCID too, but is no step of srun's. SLURM_NTASKS is the job's. */
    {"srun", "SLURM_PROCID", "SLURM_STEP_ID", {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, NULL},
    {"mpiexec (MPICH, Intel MPI)", "PMI_RANK", NULL, {"PMI_SIZE", NULL}, "MPI_LOCALNRANKS"},
    {"a launcher with PMIx", "PMIX_RANK", NULL, {NULL, NULL}, NULL},
};
enum { N_LAUNCHERS = sizeof LAUNCHERS / sizeof LAUNCHERS[0] };

static bool is_set(const char *name)
{
    return name != NULL && environment_text(name) != NULL;
}

/* -1 if it is not set, or no number from `least` on. */
static int number_in(const char *name, int least)
{
    int number = -1;
    if (!is_set(name) || !number_parse(getenv(name), least, INT_MAX, &number))
        return -1;
    return number;
}

bool outer_launcher_find(outer_launcher *out)
{
    for (int i = 0; i < N_LAUNCHERS; i++) {
        if (!is_set(LAUNCHERS[i].rank) || (LAUNCHERS[i].also != NULL && !is_set(LAUNCHERS[i].also)))
            continue;
        const char *size =
            is_set(LAUNCHERS[i].sizes[0]) ? LAUNCHERS[i].sizes[0] : LAUNCHERS[i].sizes[1];
        *out = (outer_launcher){.name = LAUNCHERS[i].name,
                                .variable = LAUNCHERS[i].rank,
                                .rank = number_in(LAUNCHERS[i].rank, 0),
                                .size = number_in(size, 1),
                                .local_size = number_in(LAUNCHERS[i].local_size, 1)};
        return out->size != 1;
    }
    return false;
}

/* "mnist_ddp --nproc-per-node=4", without the launcher, once or once a machine. */
static void describe_ours(const outer_launcher *outer, char *out, size_t size_bytes)
{
    int size = outer->size, local = outer->local_size;
    if (size < 0)
        snprintf(out, size_bytes, "mnist_ddp --nproc-per-node=N");
    else if (local < 1 || local >= size || size % local != 0)
        snprintf(out, size_bytes, "mnist_ddp --nproc-per-node=%d", size);
    else
        snprintf(out, size_bytes,
                 "once on each of %d machines mnist_ddp --nproc-per-node=%d --nnodes=%d "
                 "--node-rank=N --master-addr=HOST",
                 size / local, local, size / local);
}

status outer_launcher_check(const options *opts, int nnodes)
{
    outer_launcher outer;
    char ours[200], copies[32] = "several";
    if (strcmp(opts->launcher, "none") == 0 || nnodes > 1 || !outer_launcher_find(&outer))
        return STATUS_OK;
    if (outer.rank > 0) /* one long message is enough */
        return FAIL(STATUS_INVALID,
                    "%s=%d: started by %s, each process would train alone; see the "
                    "message of process 0",
                    outer.variable, outer.rank, outer.name);
    describe_ours(&outer, ours, sizeof ours);
    if (outer.size > 0)
        snprintf(copies, sizeof copies, "%d", outer.size);
    return FAIL(STATUS_INVALID,
                "started by %s (%s=%s): %s copies would train, each alone. Leave it out and let "
                "mnist_ddp start the ranks: %s. For independent runs add --launcher=none",
                outer.name, outer.variable, getenv(outer.variable), copies, ours);
}
