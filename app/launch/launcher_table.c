#include "app/launch/launcher_table.h"

#include "app/launch/slurm_list.h"
#include "base/host.h"
#include "base/text.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first row whose variables are set counts: it is what started this process itself. mpirun
 * inside an allocation sets its own variables beside Slurm's, and torchrun inside either.
 *
 * RANK is torchrun's, or set by hand; but in a pod it may be Kubeflow's, which sets no LOCAL_RANK.
 * A batch script has SLURM_PROCID, and is no step of srun's. SLURM_NTASKS and SLURM_TASKS_PER_NODE
 * may be the job's, so the step's come first. PMIx tells the number of processes to who calls it;
 * the environment does not have it. Of an Indexed Job it is not told at all: --nnodes has it. */
/* clang-format off */
static const launcher_row ROWS[] = {
    {.name = "torchrun", .title = "torchrun's variables",
     .start = "torchrun --nproc-per-node=4 --no-python",
     .needs = {"RANK"}, .lacks = {"KUBERNETES_SERVICE_HOST"},
     .rank = {"RANK"}, .size = {"WORLD_SIZE"}, .is_torchrun = true},
    {.name = "torchrun", .title = "torchrun's variables",
     .needs = {"RANK", "LOCAL_RANK"},
     .rank = {"RANK"}, .size = {"WORLD_SIZE"}, .is_torchrun = true},

    {.name = "openmpi", .title = "mpirun (Open MPI)", .start = "mpirun -n 4",
     .needs = {"OMPI_COMM_WORLD_RANK"},
     .rank = {"OMPI_COMM_WORLD_RANK"}, .size = {"OMPI_COMM_WORLD_SIZE"},
     .local_rank = {"OMPI_COMM_WORLD_LOCAL_RANK"}, .local_size = {"OMPI_COMM_WORLD_LOCAL_SIZE"},
     .job = {"PMIX_NAMESPACE"}},
    {.name = "openmpi", .title = "mpirun (MVAPICH2)",
     .needs = {"MV2_COMM_WORLD_RANK"},
     .rank = {"MV2_COMM_WORLD_RANK"}, .size = {"MV2_COMM_WORLD_SIZE"},
     .local_rank = {"MV2_COMM_WORLD_LOCAL_RANK"}, .local_size = {"MV2_COMM_WORLD_LOCAL_SIZE"}},
    {.name = "openmpi", .title = "mpiexec (MPICH, Intel MPI)",
     .needs = {"PMI_RANK"},
     .rank = {"PMI_RANK"}, .size = {"PMI_SIZE"},
     .local_rank = {"MPI_LOCALRANKID", "PMI_LOCAL_RANK"},
     .local_size = {"MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"}, .in_step = true},
    {.name = "openmpi", .title = "a launcher with PMIx",
     .needs = {"PMIX_RANK"},
     .rank = {"PMIX_RANK"}, .in_step = true},

    {.name = "slurm", .title = "srun", .start = "srun -n 4",
     .needs = {"SLURM_PROCID", "SLURM_STEP_ID"},
     .rank = {"SLURM_PROCID"}, .size = {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"},
     .local_rank = {"SLURM_LOCALID"}, .node = {"SLURM_NODEID"},
     .tasks = {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"},
     .hosts = {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"},
     .job = {"SLURM_JOB_ID", "SLURM_STEP_ID"}},

    {.name = "kubernetes", .title = "Kubeflow (PET_*)", .start = "a Job with completionMode: Indexed",
     .needs = {"KUBERNETES_SERVICE_HOST", "PET_NODE_RANK", "PET_NNODES"},
     .rank = {"PET_NODE_RANK"}, .size = {"PET_NNODES"}, .is_pod = true},
    {.name = "kubernetes", .title = "Kubeflow's PyTorchJob",
     .needs = {"KUBERNETES_SERVICE_HOST", "RANK", "WORLD_SIZE", "MASTER_ADDR"},
     .rank = {"RANK"}, .size = {"WORLD_SIZE"}, .is_pod = true},
    {.name = "kubernetes", .title = "a Kubernetes Indexed Job",
     .needs = {"JOB_COMPLETION_INDEX"},
     .rank = {"JOB_COMPLETION_INDEX"}, .is_pod = true, .names_host = true},
};
/* clang-format on */
enum { N_ROWS = sizeof ROWS / sizeof ROWS[0] };

const char *launcher_variable(const launcher_variables list)
{
    for (int i = 0; i < LAUNCHER_VARIABLES && list[i] != NULL; i++)
        if (environment_text(list[i]) != NULL)
            return list[i];
    return NULL;
}

static bool all_are_set(const launcher_variables list)
{
    for (int i = 0; i < LAUNCHER_VARIABLES && list[i] != NULL; i++)
        if (environment_text(list[i]) == NULL)
            return false;
    return true;
}

static bool same_text(const char *a, const char *b)
{
    const char *one = environment_text(a), *other = environment_text(b);
    return one != NULL && other != NULL && strcmp(one, other) == 0;
}

/* With --mpi=pmi2 or pmix, srun sets PMI's variables beside its own. mpiexec may use srun as well,
 * to start a process of its own on each node; its numbers are others then. */
static bool is_srun(const launcher_row *row)
{
    if (!row->in_step || environment_text("SLURM_STEP_ID") == NULL ||
        !same_text(row->rank[0], "SLURM_PROCID"))
        return false;
    const char *name_space = environment_text("PMIX_NAMESPACE");
    return row->size[0] != NULL ? same_text(row->size[0], "SLURM_STEP_NUM_TASKS")
                                : name_space != NULL && strncmp(name_space, "slurm.", 6) == 0;
}

static bool holds(const launcher_row *row, const char *name)
{
    bool any = strcmp(name, "auto") == 0;
    return (any || strcmp(name, row->name) == 0) && all_are_set(row->needs) &&
           !(any && (launcher_variable(row->lacks) != NULL || is_srun(row)));
}

const launcher_row *launcher_table_find(const char *name, bool with_torchrun)
{
    for (int i = 0; i < N_ROWS; i++)
        if (holds(&ROWS[i], name) && (with_torchrun || !ROWS[i].is_torchrun))
            return &ROWS[i];
    return NULL;
}

const launcher_row *launcher_table_next(const launcher_row *row)
{
    for (int i = (int)(row - ROWS) + 1; i < N_ROWS; i++)
        if (strcmp(ROWS[i].name, row->name) != 0 && holds(&ROWS[i], "auto"))
            return &ROWS[i];
    return NULL;
}

/* Adds a word to a list of them. */
static void add_word(char *list, size_t size_bytes, const char *separator, const char *word)
{
    size_t length = strlen(list);
    snprintf(list + length, size_bytes - length, "%s%s", length > 0 ? separator : "", word);
}

static void add_words(char *list, size_t size_bytes, const char *separator,
                      const launcher_variables names)
{
    for (int i = 0; i < LAUNCHER_VARIABLES && names[i] != NULL; i++)
        add_word(list, size_bytes, separator, names[i]);
}

void launcher_table_needs(const char *name, char *out, size_t size_bytes)
{
    out[0] = '\0';
    for (int i = 0; i < N_ROWS; i++) {
        char all[LAUNCHER_FROM_BYTES] = "";
        add_words(all, sizeof all, " and ", ROWS[i].needs);
        if (strcmp(ROWS[i].name, name) == 0)
            add_word(out, size_bytes, ", or ", all);
    }
}

const char *launcher_table_start(const char *name)
{
    for (int i = 0; i < N_ROWS; i++)
        if (strcmp(ROWS[i].name, name) == 0)
            return ROWS[i].start;
    return "";
}

/* *out: the number in the first of the variables that is set, which is noted; -1 if none is. */
static status read_number(const launcher_variables list, int least, int *out, char *from)
{
    const char *name = launcher_variable(list);
    *out = -1;
    if (name == NULL)
        return STATUS_OK;
    if (!number_parse(getenv(name), least, INT_MAX, out))
        return FAIL(STATUS_INVALID,
                    "environment variable %s=%.40s is not a whole number from %d on", name,
                    getenv(name), least);
    add_word(from, LAUNCHER_FROM_BYTES, ", ", name);
    return STATUS_OK;
}

/* Slurm says how many tasks each node has in one list. */
static status read_tasks(const launcher_row *row, launcher_place *place)
{
    const char *name = launcher_variable(row->tasks);
    int all = 0;
    if (name == NULL || place->node < 0)
        return STATUS_OK;
    if (!slurm_list_tasks(getenv(name), place->node, &place->local_size, &all))
        return FAIL(STATUS_INVALID, "%s=%.80s does not say how many tasks node %s=%d has", name,
                    getenv(name), launcher_variable(row->node), place->node);
    if (all != place->size)
        return FAIL(STATUS_INVALID, "%s=%.80s is %d tasks, but %s=%d", name, getenv(name), all,
                    launcher_variable(row->size), place->size);
    add_word(place->from, sizeof place->from, ", ", name);
    return STATUS_OK;
}

static status check_place(const launcher_row *row, const launcher_place *place)
{
    const char *rank = launcher_variable(row->rank), *size = launcher_variable(row->size);
    const char *local_rank = launcher_variable(row->local_rank);
    if (size == NULL && row->size[0] != NULL)
        return FAIL(STATUS_INVALID, "%s=%d is set, but %s is not: how many processes are there?",
                    rank, place->rank, row->size[0]);
    if (size != NULL && place->rank >= place->size)
        return FAIL(STATUS_INVALID, "%s=%d, but %s=%d: it is to be 0 to %d", rank, place->rank,
                    size, place->size, place->size - 1);
    if (place->local_size > place->size && size != NULL)
        return FAIL(STATUS_INVALID, "%s=%d, but %s=%d: more processes on this node than in all",
                    launcher_variable(row->local_size), place->local_size, size, place->size);
    if (place->local_size >= 0 && place->local_rank >= place->local_size)
        return FAIL(STATUS_INVALID, "%s=%d, but this node has %d processes, as %s says", local_rank,
                    place->local_rank, place->local_size,
                    launcher_variable(row->tasks[0] != NULL ? row->tasks : row->local_size));
    return STATUS_OK;
}

/* A launcher that srun has started on each node may leave its processes srun's variables, which are
 * not theirs. */
static status check_step(const launcher_row *row)
{
    if (strcmp(row->name, "slurm") != 0 || environment_text("PMIX_RANK") == NULL ||
        same_text("PMIX_RANK", "SLURM_PROCID"))
        return STATUS_OK;
    return FAIL(
        STATUS_INVALID,
        "SLURM_PROCID=%.20s, but PMIX_RANK=%.20s: another launcher runs inside srun's step, "
        "and does not say how many processes it has started; use srun alone, or Open MPI's "
        "mpirun",
        getenv("SLURM_PROCID"), getenv("PMIX_RANK"));
}

status launcher_place_read(const launcher_row *row, launcher_place *out)
{
    launcher_place place = {.rank = -1};
    TRY(check_step(row));
    TRY(read_number(row->rank, 0, &place.rank, place.from));
    TRY(read_number(row->size, 1, &place.size, place.from));
    TRY(read_number(row->local_rank, 0, &place.local_rank, place.from));
    TRY(read_number(row->local_size, 1, &place.local_size, place.from));
    TRY(read_number(row->node, 0, &place.node, place.from));
    if (row->is_pod) {
        place.local_rank = 0;
        place.local_size = 1;
        place.node = place.rank;
    }
    TRY(read_tasks(row, &place));
    TRY(check_place(row, &place));
    *out = place;
    return STATUS_OK;
}

bool launcher_job_id(const launcher_row *row, char *out, size_t size_bytes,
                     char from[LAUNCHER_FROM_BYTES])
{
    out[0] = from[0] = '\0';
    if (row->job[0] == NULL || !all_are_set(row->job))
        return false;
    snprintf(out, size_bytes, "%s", row->name);
    for (int i = 0; i < LAUNCHER_VARIABLES && row->job[i] != NULL; i++)
        add_word(out, size_bytes, i == 0 ? "-" : ".", getenv(row->job[i]));
    add_words(from, LAUNCHER_FROM_BYTES, " and ", row->job);
    return true;
}
