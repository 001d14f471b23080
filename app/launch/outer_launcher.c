#include "app/launch/outer_launcher.h"

#include "app/launch/worker_spec.h"
#include "base/digest.h"
#include "base/host.h"
#include "base/log.h"
#include "base/module.h"
#include "base/text.h"
#include "dist/store/store.h"

#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Slurm's short forms of lists: hosts as "n[1-3,7]", tasks per node as "2(x3),1". */

enum { MAX_TASKS = 1 << 20 };

/* The first number of the brackets at *at, which moves after them: "08" of "[08-11,20]". NULL if
 * they are not closed or hold none. */
static const char *first_of_brackets(const char **at, size_t *length)
{
    const char *first = *at + 1, *end = strchr(first, ']');
    *length = strspn(first, "0123456789");
    if (end == NULL || *length == 0 || strcspn(first, ",-]") != *length)
        return NULL;
    *at = end + 1;
    return first;
}

bool slurm_list_first_host(const char *list, char *out, size_t size_bytes)
{
    size_t used = 0;
    for (const char *at = list; *at != '\0' && *at != ',';) {
        const char *piece = at;
        size_t length = strcspn(at, "[,");
        if (length > 0)
            at += length;
        else if ((piece = first_of_brackets(&at, &length)) == NULL)
            return false;
        if (used + length >= size_bytes)
            return false;
        memcpy(out + used, piece, length);
        used += length;
    }
    out[used] = '\0';
    return used > 0;
}

bool slurm_list_tasks(const char *list, int node, int *tasks, int *all)
{
    int nodes = 0, sum = 0, found = -1;
    for (const char *at = list;; at++) {
        int each = 0, times = 1;
        if (!number_next(&at, 1, MAX_TASKS, &each))
            return false;
        if (strncmp(at, "(x", 2) == 0) {
            at += 2;
            if (!number_next(&at, 1, MAX_TASKS, &times) || *at++ != ')')
                return false;
        }
        if (node >= nodes && node < nodes + times)
            found = each;
        if (each > (MAX_TASKS - sum) / times)
            return false;
        nodes += times;
        sum += each * times;
        if (*at == '\0')
            break;
        if (*at != ',')
            return false;
    }
    if (found < 0)
        return false;
    *tasks = found;
    *all = sum;
    return true;
}

/* The first row whose variables are set counts: it is what started this process itself. mpirun
 * inside an allocation sets its own variables beside Slurm's, and torchrun inside either.
 *
 * RANK is torchrun's, or set by hand; but in a pod it may be Kubeflow's, which sets no LOCAL_RANK.
 * A batch script has SLURM_PROCID, and is no step of srun's. SLURM_NTASKS and SLURM_TASKS_PER_NODE
 * may be the job's, so the step's come first. PMIx gives the number of processes to a caller;
 * the environment does not have it. An Indexed Job does not say it: --nnodes has it. */
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

/* The first of the list that is set: its name; NULL. */
static const char *launcher_variable(const launcher_variables list)
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

/* The first launcher from this row on whose variables are set: any for the name "auto", else one of
 * that name. NULL: none. */
static const launcher_row *launcher_table_find(const launcher_row *from, const char *name)
{
    for (const launcher_row *row = from; row < ROWS + N_ROWS; row++)
        if (holds(row, name))
            return row;
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

/* None of the launchers of this name has started this. */
static status refuse_name(const char *name)
{
    char needs[OUTER_LAUNCHER_TEXT_BYTES] = "";
    const char *start = NULL;
    for (int i = 0; i < N_ROWS; i++) {
        char all[LAUNCHER_FROM_BYTES] = "";
        if (strcmp(ROWS[i].name, name) != 0)
            continue;
        start = start != NULL ? start : ROWS[i].start;
        add_words(all, sizeof all, " and ", ROWS[i].needs);
        add_word(needs, sizeof needs, ", or ", all);
    }
    return FAIL(STATUS_INVALID,
                "--launcher=%s, but not all of its variables are set (%s): start it by %s "
                "mnist_ddp, or leave --launcher out",
                name, needs, start != NULL ? start : "");
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

/* Reads the place. STATUS_INVALID if a number is none, a needed one is missing or they contradict
 * each other; the message names the variables. `size` may be -1 only if the row has none. */
static status launcher_place_read(const launcher_row *row, launcher_place *out)
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

/* What no other job of the launcher has, "slurm-17.0"; the variables that say it into `from`. false
 * if they are not set. */
static bool launcher_job_id(const launcher_row *row, char *out, size_t size_bytes,
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

enum { HOST_BYTES = 256 };

static const char VARIABLE[] = "MNIST_DDP_MPIRUN";

static status check(const worker_spec *spec)
{
    const module *found = NULL;
    char path[FILE_PATH_BYTES];
    const char *rank = environment_text("OMPI_COMM_WORLD_RANK");
    if (spec->nnodes > 1)
        return FAIL(STATUS_INVALID,
                    "--backend=mpi on %d nodes: only mpirun can start these ranks; type mpirun -n "
                    "%d -H HOST1:%d,HOST2:%d%s before this command, and --master-addr=HOST1 in it "
                    "instead of the flags of a launcher",
                    spec->nnodes, spec->world_size, spec->nproc, spec->nproc,
                    spec->nnodes > 2 ? ",..." : "");
    if (rank != NULL)
        return FAIL(STATUS_INVALID,
                    "--backend=mpi: mpirun has started this process already "
                    "(OMPI_COMM_WORLD_RANK=%.20s), and cannot be called again: type mpirun -n %d, "
                    "and leave the flags of a launcher out",
                    rank, spec->world_size);
    if (module_open("mpi", &found) != STATUS_OK)
        return status_context(STATUS_INVALID, "backend mpi");
    if (!executable_find("mpirun", path))
        return FAIL(STATUS_INVALID,
                    "backend mpi: there is no mpirun in $PATH: install openmpi-bin, or use "
                    "--backend=shm");
    return STATUS_OK;
}

/* More ranks than cores are nothing to be refused here, nor is root. The ranks choose their cores
 * by themselves, and say themselves why they fail. After a failure the others have some seconds to
 * say what they saw. All are on this host: without its "ras" mpirun does not read which nodes an
 * allocation has, and knows this one as localhost. */
static const char *const MPIRUN =
    "mpirun --oversubscribe --bind-to none --quiet --mca odls_base_sigkill_timeout 5 "
    "--mca ras ^slurm,gridengine,tm,lsf";

status mpirun_become(const worker_spec *spec, int argc, char **argv)
{
    char ranks[16], self[FILE_PATH_BYTES], **list = NULL;
    text_stream words;
    TRY(check(spec));
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length < 0)
        return FAIL(STATUS_IO, "read /proc/self/exe: %s", strerror(errno));
    self[length] = '\0';
    TRY(text_stream_open(&words));
    for (const char *at = MPIRUN, *end; *at != '\0'; at = end + (*end == ' ')) {
        end = strchrnul(at, ' ');
        entrypoint_word(words.file, "%.*s", (int)(end - at), at);
    }
    if (geteuid() == 0)
        entrypoint_word(words.file, "--allow-run-as-root");
    entrypoint_word(words.file, "--host");
    entrypoint_word(words.file, "localhost:%d", spec->nproc);
    entrypoint_word(words.file, "-n");
    entrypoint_word(words.file, "%d", spec->nproc);
    entrypoint_word(words.file, "%s", self);
    for (int i = 1; i < argc; i++)
        entrypoint_word(words.file, "%s", argv[i]);
    TRY(entrypoint_list(&words, &list));
    snprintf(ranks, sizeof ranks, "%d", spec->nproc);
    setenv(VARIABLE, ranks, 1);
    if (!isatty(STDOUT_FILENO)) /* mpirun gives rank 0 a terminal, whatever is behind it */
        setenv("TERM", "dumb", 1);
    execvp(list[0], list);
    status st = FAIL(STATUS_IO, "mpirun: %s", strerror(errno));
    free(list);
    return st;
}

/* Whether this process is one of the ranks that mpirun_become has started. The flags of a launcher
 * have been followed by then. */
static bool mpirun_started_this(void)
{
    const char *ranks = environment_text(VARIABLE),
               *size = environment_text("OMPI_COMM_WORLD_SIZE");
    return ranks != NULL && size != NULL && strcmp(ranks, size) == 0;
}

status pod_name_first(const char *name, int index, char *out, size_t size_bytes)
{
    char end[24];
    size_t host = strcspn(name, ".");
    size_t length = (size_t)snprintf(end, sizeof end, "-%d", index);
    if (host <= length || strncmp(name + host - length, end, length) != 0)
        return FAIL(STATUS_INVALID,
                    "JOB_COMPLETION_INDEX=%d, but this host is %.80s, not <job>%s: give the host "
                    "of pod 0 by --master-addr=HOST",
                    index, name, end);
    if (name[host] == '\0')
        return FAIL(STATUS_INVALID,
                    "the pod %.80s has no domain, so no other pod finds it by name: give its "
                    "template `subdomain:`, the name of a headless service (configs/cluster/), or "
                    "give --master-addr=HOST",
                    name);
    if (strlen(name) + 1 >= size_bytes)
        return FAIL(STATUS_INVALID, "the host name %.80s... is too long", name);
    snprintf(out, size_bytes, "%.*s-0%s", (int)(host - length), name, name + host);
    return STATUS_OK;
}

/* Kubernetes writes the full name into the pod's /etc/hosts. */
/* The name under which other pods find pod 0, from that of pod `index`, which is this one.
 * STATUS_INVALID if this host's name is not a pod's, or has no domain: no headless service. */
static status pod_name_of_first(int index, char *out, size_t size_bytes)
{
    char host[HOST_BYTES] = "", full[HOST_BYTES];
    struct addrinfo hints = {.ai_flags = AI_CANONNAME, .ai_socktype = SOCK_STREAM}, *found = NULL;
    if (gethostname(host, sizeof host - 1) != 0)
        return FAIL(STATUS_INVALID, "this host has no name: give --master-addr=HOST");
    snprintf(full, sizeof full, "%s", host);
    if (getaddrinfo(host, NULL, &hints, &found) == 0) {
        if (found->ai_canonname != NULL)
            snprintf(full, sizeof full, "%s", found->ai_canonname);
        freeaddrinfo(found);
    }
    return pod_name_first(full, index, out, size_bytes);
}

/* Below the ports that the kernel gives out, above those with a name. */
enum { FIRST_PORT = 15000, PORTS = 10000, MAX_PORT = 65535, SHOWN_BYTES = 80 };

/* Nodes are numbered as they come. */
static bool is_elastic(const options *opts)
{
    return strcmp(opts->rdzv_backend, "static") != 0;
}

/* `run` starts any program as ranks; it is none itself. */
static bool is_run(const options *opts)
{
    return (opts->command == COMMAND_DOCTOR ? opts->examined : opts->command) == COMMAND_RUN;
}

/* --nnodes; -1 if it is not given, may change, or is no number of machines, which the launcher
 * says. */
static int given_nodes(const options *opts)
{
    int min = -1, max = -1;
    return worker_spec_nnodes(opts->nnodes, &min, &max) == STATUS_OK && min == max ? max : -1;
}

/* --nproc-per-node may say what is so already: mpirun -n 4 mnist_ddp --nproc-per-node=4. */
static bool are_there(const options *opts, const launcher_place *place)
{
    int ranks = 0;
    return opts->nproc_per_node != NULL && place->local_size > 1 &&
           number_parse(opts->nproc_per_node, 1, INT_MAX, &ranks) && ranks == place->local_size &&
           (opts->nnodes == NULL || (int64_t)given_nodes(opts) * ranks == place->size);
}

/* What starts ranks is asked for: each process is the launcher of its node. */
static bool wants_agent(const options *opts, const launcher_place *place)
{
    bool asked = opts->nproc_per_node != NULL || opts->nnodes != NULL || opts->standalone ||
                 opts->rdzv_endpoint != NULL || is_elastic(opts);
    return is_run(opts) || (asked && !are_there(opts, place) && !mpirun_started_this());
}

static status check_agent(const options *opts, const outer_launcher *outer)
{
    const launcher_place *place = &outer->place;
    int nodes = given_nodes(opts);
    if (opts->standalone)
        return FAIL(STATUS_INVALID,
                    "--standalone means one machine, but %s has started %d of this program (%s); "
                    "leave it out, or for independent runs add --launcher=none",
                    outer->row->title, place->size, place->from);
    if (place->local_size > 1)
        return FAIL(STATUS_INVALID,
                    "%s has started %d of this program on this machine (%s), and each would start "
                    "ranks of its own: start one on each machine, or leave --nproc-per-node, "
                    "--nnodes and --rdzv-* out: then each is a rank. For independent runs add "
                    "--launcher=none",
                    outer->row->title, place->local_size, place->from);
    if (nodes > 0 && nodes != place->size)
        return FAIL(STATUS_INVALID,
                    "--nnodes=%d, but %s has started %d of this program (%s): leave --nnodes out",
                    nodes, outer->row->title, place->size, place->from);
    return STATUS_OK;
}

static status check_rank(const options *opts, const outer_launcher *outer)
{
    if (opts->world_size >= 0 && opts->world_size != outer->place.size)
        return FAIL(STATUS_INVALID,
                    "--world-size=%d, but %s has started %d ranks (%s): leave --world-size out",
                    (int)opts->world_size, outer->row->title, outer->place.size, outer->place.from);
    if (opts->rank >= 0 && opts->rank != outer->place.rank)
        return FAIL(STATUS_INVALID,
                    "--rank=%d, but %s has started this as rank %d (%s): leave --rank out",
                    (int)opts->rank, outer->row->title, outer->place.rank, outer->place.from);
    return STATUS_OK;
}

/* Where rank 0 is. */
static status find_address(const options *opts, outer_launcher *outer)
{
    const launcher_place *place = &outer->place;
    const char *given =
        opts->master_addr != NULL ? opts->master_addr : environment_text("MASTER_ADDR");
    const char *hosts = launcher_variable(outer->row->hosts);
    char *out = outer->master_addr;
    size_t size_bytes = sizeof outer->master_addr;
    if (given == NULL && place->local_size == place->size)
        given = "127.0.0.1";
    if (given != NULL) {
        if (strlen(given) >= size_bytes)
            return FAIL(STATUS_INVALID, "the master address is longer than %zu letters",
                        size_bytes - 1);
        memcpy(out, given, strlen(given) + 1);
        return STATUS_OK;
    }
    if (outer->row->names_host)
        return pod_name_of_first(place->rank, out, size_bytes);
    if (hosts == NULL)
        return FAIL(STATUS_INVALID,
                    "%s has started %d processes (%s), and no variable says %s: give the host of "
                    "rank 0 by --master-addr=HOST or MASTER_ADDR (127.0.0.1 on one host)",
                    outer->row->title, place->size, place->from,
                    place->local_size < 0 ? "how many are on this machine" : "where the first is");
    if (!slurm_list_first_host(getenv(hosts), out, size_bytes))
        return FAIL(STATUS_INVALID, "%s=%.80s names no host: give --master-addr=HOST", hosts,
                    getenv(hosts));
    return STATUS_OK;
}

/* At which port rank 0 serves the store. All processes of the job know the same one without having
 * spoken to each other. */
static status find_port(const options *opts, outer_launcher *outer)
{
    const char *given = environment_text("MASTER_PORT");
    outer->master_port = STORE_DEFAULT_PORT;
    bool has_job = launcher_job_id(outer->row, outer->job, sizeof outer->job, outer->port_from);
    if (has_job)
        outer->master_port =
            FIRST_PORT + (int)(fnv1a(FNV1A_START, outer->job, strlen(outer->job)) % PORTS);
    if (opts->master_port < 0 && given == NULL)
        return STATUS_OK;
    outer->port_from[0] = '\0';
    if (opts->master_port > 0)
        outer->master_port = (int)opts->master_port;
    else if (opts->master_port == 0 || !number_parse(given, 1, MAX_PORT, &outer->master_port))
        return FAIL(STATUS_INVALID,
                    "%s=%.20s: %s starts the ranks, and all must know the same port: give one of 1 "
                    "to %d",
                    opts->master_port == 0 ? "--master-port" : "MASTER_PORT",
                    opts->master_port == 0 ? "0" : given, outer->row->title, MAX_PORT);
    return STATUS_OK;
}

/* The number of processes, if only a flag has it. */
static status find_size(const options *opts, outer_launcher *outer)
{
    launcher_place *place = &outer->place;
    const char *rank = launcher_variable(outer->row->rank);
    int min = -1;
    if (place->size >= 0)
        return STATUS_OK;
    if (!outer->row->names_host && opts->world_size >= 0)
        place->size = (int)opts->world_size;
    else
        TRY(worker_spec_nnodes(opts->nnodes, &min, &place->size));
    if (min < place->size && min > 0)
        return FAIL(STATUS_INVALID,
                    "--nnodes=%d:%d: machines that come and go (elastic) need --rdzv-backend=c10d "
                    "or etcd, and --rdzv-endpoint=HOST:PORT",
                    min, place->size);
    if (place->size < 0)
        return FAIL(STATUS_INVALID,
                    "%s=%d: one of how many processes? %s does not say it; give %s, or for "
                    "independent runs --launcher=none",
                    rank, place->rank, outer->row->title,
                    outer->row->names_host ? "--nnodes=N, the Job's completions"
                                           : "--world-size=N");
    if (place->rank >= place->size)
        return FAIL(STATUS_INVALID, "%s=%d, but only %d processes are to be there", rank,
                    place->rank, place->size);
    return STATUS_OK;
}

static status find_role(const options *opts, outer_launcher *outer)
{
    TRY(launcher_place_read(outer->row, &outer->place));
    TRY(find_size(opts, outer));
    bool agent = wants_agent(opts, &outer->place);
    /* The user has numbered the nodes himself, as one does without a launcher. */
    bool is_numbered = opts->nnodes != NULL && (opts->node_rank >= 0 || is_elastic(opts));
    if (outer->place.size == 1 || (agent && is_numbered))
        return STATUS_OK;
    outer->role = agent ? OUTER_ROLE_AGENT : OUTER_ROLE_RANK;
    TRY(agent ? check_agent(opts, outer) : check_rank(opts, outer));
    if (!agent && opts->init_method != NULL && strncmp(opts->init_method, "env:", 4) != 0)
        return STATUS_OK; /* the ranks meet where that says */
    TRY(find_port(opts, outer));
    return agent && opts->rdzv_endpoint != NULL ? STATUS_OK : find_address(opts, outer);
}

status outer_launcher_find(const options *opts, outer_launcher *out)
{
    outer_launcher outer = {.role = OUTER_ROLE_ALONE};
    bool ours = environment_text("MNIST_DDP_LAUNCHED") != NULL;
    const char *asked = ours ? "auto" : opts->launcher;
    if (strcmp(asked, "none") != 0)
        outer.row = launcher_table_find(ROWS, asked);
    while (outer.row != NULL && outer.row->is_torchrun && is_run(opts)) /* which starts ranks */
        outer.row = launcher_table_find(outer.row + 1, asked);
    if (outer.row == NULL && strcmp(asked, "auto") != 0 && strcmp(asked, "none") != 0)
        return refuse_name(asked);
    if (outer.row != NULL && outer.row->is_torchrun)
        outer.role = OUTER_ROLE_RANK;
    else if (outer.row != NULL)
        TRY(find_role(opts, &outer));
    *out = outer;
    return STATUS_OK;
}

/* What torchrun would have set. What is not known is left as it is. */
static status become_rank(const outer_launcher *outer)
{
    const launcher_place *place = &outer->place;
    const bool in_order = place->local_size > 0 && place->size % place->local_size == 0 &&
                          place->rank % place->local_size == place->local_rank;
    const bool has_store = outer->master_addr[0] != '\0';
    const struct {
        const char *name;
        int value; /* -1: not known */
    } numbers[] = {
        {"RANK", place->rank},
        {"WORLD_SIZE", place->size},
        {"LOCAL_RANK", place->local_rank},
        {"LOCAL_WORLD_SIZE", place->local_size},
        {"GROUP_RANK", place->node < 0 && in_order ? place->rank / place->local_size : place->node},
        {"MASTER_PORT", has_store ? outer->master_port : -1},
    };
    bool all_set = true;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        char text[16];
        snprintf(text, sizeof text, "%d", numbers[i].value);
        all_set = all_set && (numbers[i].value < 0 || setenv(numbers[i].name, text, 1) == 0);
    }
    if (has_store)
        all_set = all_set && setenv("MASTER_ADDR", outer->master_addr, 1) == 0;
    if (outer->job[0] != '\0')
        all_set = all_set && setenv("TORCHELASTIC_RUN_ID", outer->job, 1) == 0;
    return all_set ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "a rank's variables");
}

static status set_flag(char **flag, const char *text)
{
    char *copy = strdup(text);
    if (copy == NULL)
        return FAIL(STATUS_NO_MEMORY, "a flag");
    free(*flag);
    *flag = copy;
    return STATUS_OK;
}

static status become_agent(const outer_launcher *outer, options *opts)
{
    char nodes[16];
    snprintf(nodes, sizeof nodes, "%d", outer->place.size);
    if (opts->nnodes == NULL)
        TRY(set_flag(&opts->nnodes, nodes));
    if (opts->node_rank < 0 && !is_elastic(opts))
        opts->node_rank = outer->place.rank;
    if (opts->rdzv_endpoint != NULL)
        return STATUS_OK;
    opts->master_port = outer->master_port;
    return set_flag(&opts->master_addr, outer->master_addr);
}

status outer_launcher_adopt(const outer_launcher *outer, options *opts)
{
    if (outer->row != NULL && outer->row->is_torchrun)
        return STATUS_OK;
    if (outer->role == OUTER_ROLE_RANK) {
        if (outer->place.rank == 0 &&
            (opts->max_restarts > 0 || opts->log_dir != NULL || strcmp(opts->redirects, "0") != 0 ||
             strcmp(opts->tee, "0") != 0))
            LOG_W("%s starts the ranks: --max-restarts, --log-dir, --redirects and --tee are not "
                  "used",
                  outer->row->title);
        opts->launch_flags_given = false;
        return become_rank(outer);
    }
    if (outer->row != NULL || strcmp(opts->launcher, "none") == 0) {
        unsetenv("RANK"); /* a pod's number, or what is not to count */
        unsetenv("WORLD_SIZE");
    }
    return outer->role == OUTER_ROLE_AGENT ? become_agent(outer, opts) : STATUS_OK;
}

bool outer_launcher_speaks(const outer_launcher *outer)
{
    if (outer->row == NULL || environment_text("MNIST_DDP_LAUNCHED") != NULL ||
        mpirun_started_this())
        return false;
    if (outer->row->is_torchrun)
        return strcmp(getenv("RANK"), "0") == 0;
    return outer->role != OUTER_ROLE_ALONE && outer->place.rank == 0;
}

/* "rank 0 of 4, from A, B". */
static void describe_place(const outer_launcher *outer, char *out, size_t size_bytes)
{
    static const char *const torchruns[] = {
        "RANK",       "WORLD_SIZE",  "LOCAL_RANK", "LOCAL_WORLD_SIZE",
        "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"};
    char names[LAUNCHER_FROM_BYTES] = "";
    const char *size = environment_text("WORLD_SIZE");
    const launcher_place *place = &outer->place;
    if (outer->row->is_torchrun) {
        for (size_t i = 0; i < sizeof torchruns / sizeof torchruns[0]; i++)
            if (environment_text(torchruns[i]) != NULL)
                add_word(names, sizeof names, ", ", torchruns[i]);
        snprintf(out, size_bytes, "rank %.20s of %.20s, from %s", getenv("RANK"),
                 size != NULL ? size : "?", names);
    } else {
        snprintf(out, size_bytes, "%s %d of %d, from %s",
                 outer->role == OUTER_ROLE_AGENT ? "node" : "rank", place->rank, place->size,
                 place->from);
    }
}

void outer_launcher_describe(const outer_launcher *outer, char out[OUTER_LAUNCHER_TEXT_BYTES])
{
    char place[2 * LAUNCHER_FROM_BYTES], where[2 * LAUNCHER_FROM_BYTES + 300] = "", more[200] = "";
    if (outer->row == NULL) {
        snprintf(out, OUTER_LAUNCHER_TEXT_BYTES, "none");
        return;
    }
    describe_place(outer, place, sizeof place);
    if (outer->master_addr[0] != '\0')
        snprintf(where, sizeof where, "; store at %s:%d%s%s%s", outer->master_addr,
                 outer->master_port, outer->port_from[0] != '\0' ? " (port from " : "",
                 outer->port_from, outer->port_from[0] != '\0' ? ")" : "");
    const launcher_row *other = outer->row;
    while (other != NULL && strcmp(other->name, outer->row->name) == 0)
        other = launcher_table_find(other + 1, "auto");
    if (other != NULL)
        snprintf(more, sizeof more, "; not used: %s, which --launcher=%s takes", other->title,
                 other->name);
    snprintf(out, OUTER_LAUNCHER_TEXT_BYTES, "%s: %s%s%s", outer->row->title, place, where, more);
}
