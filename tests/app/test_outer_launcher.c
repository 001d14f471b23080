/* Who has started a process, from environments as the launchers make them: mpirun of Open MPI 4.1,
 * srun of Slurm 22.05, and as their documents have them MVAPICH2, MPICH and Intel's Hydra, PMIx,
 * Kubernetes, Kubeflow's training operator and trainer. tests/app/test_mpirun.sh and
 * tests/app/test_slurm.sh start the real ones. */
#include "app/launch/outer_launcher.h"

#include "dist/rendezvous.h"
#include "tests/app/support/command_line.h"
#include "tests/app/support/training.h"

#include <stdlib.h>

enum { MOST_VARIABLES = 16, MOST_FACTS = 8 };

/* Rank 3 of mpirun -n 4 on one host; rank 5 of eight on two. */
#define OPEN_MPI \
    "OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_RANK=3", \
        "OMPI_COMM_WORLD_LOCAL_SIZE=4", "OMPI_COMM_WORLD_NODE_RANK=3", "PMIX_RANK=3", \
        "PMIX_NAMESPACE=119275521"
#define OPEN_MPI_HOSTS \
    "OMPI_COMM_WORLD_RANK=5", "OMPI_COMM_WORLD_SIZE=8", "OMPI_COMM_WORLD_LOCAL_RANK=1", \
        "OMPI_COMM_WORLD_LOCAL_SIZE=4", "PMIX_RANK=5", "PMIX_NAMESPACE=119275521"
/* mpirun with one process on each of two hosts. */
#define OPEN_MPI_NODES \
    "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_RANK=0", \
        "OMPI_COMM_WORLD_LOCAL_SIZE=1", "PMIX_NAMESPACE=119275521"
/* A batch script, which is no step; then task 4 of srun -n 7 on three nodes, and of srun -n 4 on
 * one. */
#define BATCH \
    "SLURM_JOB_ID=17", "SLURM_PROCID=0", "SLURM_NTASKS=7", "SLURM_NODEID=0", "SLURM_LOCALID=0"
#define STEP \
    "SLURM_JOB_ID=17", "SLURM_STEP_ID=2", "SLURM_PROCID=4", "SLURM_NTASKS=7", \
        "SLURM_STEP_NUM_TASKS=7", "SLURM_LOCALID=1", "SLURM_NODEID=1", \
        "SLURM_STEP_TASKS_PER_NODE=3(x2),1", "SLURM_STEP_NODELIST=n[08-09,12]", \
        "SLURM_JOB_NODELIST=n[01-12]"
#define STEP_HERE \
    "SLURM_JOB_ID=17", "SLURM_STEP_ID=0", "SLURM_PROCID=2", "SLURM_STEP_NUM_TASKS=4", \
        "SLURM_LOCALID=2", "SLURM_NODEID=0", "SLURM_STEP_TASKS_PER_NODE=4", \
        "SLURM_STEP_NODELIST=localhost"
/* srun --ntasks-per-node=1 on three nodes. */
#define STEP_NODES \
    "SLURM_JOB_ID=17", "SLURM_STEP_ID=0", "SLURM_PROCID=2", "SLURM_STEP_NUM_TASKS=3", \
        "SLURM_LOCALID=0", "SLURM_NODEID=2", "SLURM_STEP_TASKS_PER_NODE=1(x3)", \
        "SLURM_STEP_NODELIST=gpu[7-9]"
/* MPICH's and Intel's mpiexec. */
#define HYDRA "PMI_RANK=1", "PMI_SIZE=4", "MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=4"
/* A pod of a PyTorchJob of Kubeflow's training operator: 1.5, then 1.7 with nprocPerNode; a pod of
 * its trainer 2. */
#define PYTORCH_JOB \
    "KUBERNETES_SERVICE_HOST=10.96.0.1", "RANK=1", "WORLD_SIZE=3", "MASTER_ADDR=mnist-master-0", \
        "MASTER_PORT=23456", "PYTHONUNBUFFERED=0"
#define PYTORCH_JOB_PET \
    "KUBERNETES_SERVICE_HOST=10.96.0.1", "RANK=1", "WORLD_SIZE=8", "MASTER_ADDR=mnist-master-0", \
        "MASTER_PORT=23456", "PET_NNODES=2", "PET_NODE_RANK=1", "PET_NPROC_PER_NODE=4", \
        "PET_MASTER_ADDR=mnist-master-0", "PET_MASTER_PORT=23456"
#define TRAIN_JOB \
    "KUBERNETES_SERVICE_HOST=10.96.0.1", "JOB_COMPLETION_INDEX=2", "PET_NNODES=3", \
        "PET_NODE_RANK=2", "PET_NPROC_PER_NODE=2", "PET_MASTER_ADDR=mnist-node-0-0.mnist", \
        "PET_MASTER_PORT=29400"
#define INDEXED_JOB "KUBERNETES_SERVICE_HOST=10.96.0.1", "JOB_COMPLETION_INDEX=2"

/* clang-format off */
static const struct {
    const char *environment[MOST_VARIABLES]; /* "NAME=VALUE" */
    const char *flags;
    const char *name; /* the row's; NULL: none */
    outer_role role;
    int rank, size, local_rank, local_size; /* of a rank */
    int node;
    const char *master_addr;
    int master_port; /* 0: made of the job's id */
} FOUND[] = {
    {{OPEN_MPI}, "", "openmpi", OUTER_ROLE_RANK, 3, 4, 3, 4, 0, "127.0.0.1", 0},
    {{OPEN_MPI}, "--nproc-per-node=4", "openmpi", OUTER_ROLE_RANK, 3, 4, 3, 4, 0, "127.0.0.1", 0},
    {{OPEN_MPI}, "--nproc-per-node=4 --nnodes=1:1", "openmpi", OUTER_ROLE_RANK, 3, 4, 3, 4, 0,
     "127.0.0.1", 0},
    {{OPEN_MPI}, "--nproc-per-node=4 --rdzv-endpoint=h:17", "openmpi", OUTER_ROLE_RANK, 3, 4, 3, 4,
     0, "127.0.0.1", 0},
    {{OPEN_MPI}, "--world-size=4", "openmpi", OUTER_ROLE_RANK, 3, 4, 3, 4, 0, "127.0.0.1", 0},
    {{OPEN_MPI}, "--master-port=17", "openmpi", OUTER_ROLE_RANK, 3, 4, 3, 4, 0, "127.0.0.1", 17},
    {{OPEN_MPI, "MASTER_ADDR=h", "MASTER_PORT=18"}, "", "openmpi", OUTER_ROLE_RANK, 3, 4, 3, 4, 0,
     "h", 18},
    {{OPEN_MPI, "MASTER_ADDR=h", "MASTER_PORT=18"}, "--master-addr=g --master-port=19", "openmpi",
     OUTER_ROLE_RANK, 3, 4, 3, 4, 0, "g", 19},
    {{OPEN_MPI_HOSTS}, "--master-addr=10.0.0.1", "openmpi", OUTER_ROLE_RANK, 5, 8, 1, 4, 1,
     "10.0.0.1", 0},
    {{OPEN_MPI_NODES}, "--nproc-per-node=4 --master-addr=10.0.0.1", "openmpi", OUTER_ROLE_AGENT, 1,
     2, 0, 1, 1, "10.0.0.1", 0},
    {{"MV2_COMM_WORLD_RANK=2", "MV2_COMM_WORLD_SIZE=3", "MV2_COMM_WORLD_LOCAL_RANK=2",
     "MV2_COMM_WORLD_LOCAL_SIZE=3"}, "", "openmpi", OUTER_ROLE_RANK, 2, 3, 2, 3, 0, "127.0.0.1",
     29500},
    {{HYDRA}, "", "openmpi", OUTER_ROLE_RANK, 1, 4, 1, 4, 0, "127.0.0.1", 29500},
    {{"PMI_RANK=1", "PMI_SIZE=4", "PMI_LOCAL_RANK=1", "PMI_LOCAL_SIZE=2"}, "--master-addr=h",
     "openmpi", OUTER_ROLE_RANK, 1, 4, 1, 2, 0, "h", 29500},
    {{"PMIX_RANK=1", "PMIX_NAMESPACE=prterun-h-7@1"}, "--world-size=4 --master-addr=127.0.0.1",
     "openmpi", OUTER_ROLE_RANK, 1, 4, -1, -1, -1, "127.0.0.1", 29500},

    {{STEP}, "", "slurm", OUTER_ROLE_RANK, 4, 7, 1, 3, 1, "n08", 0},
    {{STEP_HERE}, "", "slurm", OUTER_ROLE_RANK, 2, 4, 2, 4, 0, "127.0.0.1", 0},
    {{STEP_NODES}, "", "slurm", OUTER_ROLE_RANK, 2, 3, 0, 1, 2, "gpu7", 0},
    {{STEP_NODES}, "--nproc-per-node=8", "slurm", OUTER_ROLE_AGENT, 2, 3, 0, 1, 2, "gpu7", 0},
    {{STEP_NODES}, "--nnodes=3 --nproc-per-node=8", "slurm", OUTER_ROLE_AGENT, 2, 3, 0, 1, 2,
     "gpu7", 0},
    /* srun --mpi=pmi2 and --mpi=pmix set PMI's variables too. */
    {{STEP_HERE, "PMI_RANK=2", "PMI_SIZE=4"}, "", "slurm", OUTER_ROLE_RANK, 2, 4, 2, 4, 0,
     "127.0.0.1", 0},
    {{STEP_HERE, "PMIX_RANK=2", "PMIX_NAMESPACE=slurm.pmix.17.0"}, "", "slurm", OUTER_ROLE_RANK, 2,
     4, 2, 4, 0, "127.0.0.1", 0},
    /* mpirun inside an allocation or a batch job, whose daemons srun has started. */
    {{OPEN_MPI, BATCH}, "", "openmpi", OUTER_ROLE_RANK, 3, 4, 3, 4, 0, "127.0.0.1", 0},
    {{HYDRA, "SLURM_JOB_ID=17", "SLURM_STEP_ID=0", "SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=1"}, "",
     "openmpi", OUTER_ROLE_RANK, 1, 4, 1, 4, 0, "127.0.0.1", 29500},
    {{OPEN_MPI, "RANK=7", "WORLD_SIZE=8"}, "--launcher=openmpi", "openmpi", OUTER_ROLE_RANK, 3, 4,
     3, 4, 0, "127.0.0.1", 0},

    {{PYTORCH_JOB}, "", "kubernetes", OUTER_ROLE_RANK, 1, 3, 0, 1, 1, "mnist-master-0", 23456},
    {{PYTORCH_JOB}, "--nproc-per-node=2", "kubernetes", OUTER_ROLE_AGENT, 1, 3, 0, 1, 1,
     "mnist-master-0", 23456},
    {{INDEXED_JOB}, "--nnodes=3 --master-addr=pod-0.svc", "kubernetes", OUTER_ROLE_AGENT, 2, 3, 0,
     1, 2, "pod-0.svc", 29500},
    {{INDEXED_JOB}, "--nnodes=3:3 --master-addr=pod-0.svc", "kubernetes", OUTER_ROLE_AGENT, 2, 3, 0,
     1, 2, "pod-0.svc", 29500},
    /* mpirun inside a pod. */
    {{OPEN_MPI, PYTORCH_JOB}, "--master-addr=127.0.0.1", "openmpi", OUTER_ROLE_RANK, 3, 4, 3, 4, 0,
     "127.0.0.1", 23456},
};

/* What is alone, or torchrun's, and whether it is: nothing is made of its variables here. */
static const struct {
    const char *environment[MOST_VARIABLES];
    const char *flags;
    bool torchrun;
} LEFT[] = {
    {{NULL}, "", false},
    {{BATCH}, "", false},
    {{BATCH}, "--nproc-per-node=4", false},
    {{OPEN_MPI}, "--launcher=none", false},
    {{OPEN_MPI_NODES}, "--nnodes=2 --node-rank=1 --master-addr=h", false},
    {{STEP_NODES}, "--nnodes=3 --rdzv-backend=c10d --rdzv-endpoint=h", false},
    {{TRAIN_JOB}, "", false},
    {{PYTORCH_JOB_PET}, "", false},
    {{"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=1"}, "--nproc-per-node=4", false},
    {{"SLURM_PROCID=0", "SLURM_STEP_ID=0", "SLURM_NTASKS=4", "SLURM_STEP_NUM_TASKS=1"}, "", false},
    {{"RANK=1", "WORLD_SIZE=2", OPEN_MPI}, "", true},
    {{"RANK=1", "WORLD_SIZE=2", STEP}, "", true},
    {{"RANK=1", "WORLD_SIZE=2", STEP}, "--launcher=torchrun", true},
    /* torchrun inside a pod. */
    {{"RANK=1", "LOCAL_RANK=1", "WORLD_SIZE=2", "TORCHELASTIC_RUN_ID=x", TRAIN_JOB}, "", true},
    /* Ranks that a user has started in a pod. */
    {{PYTORCH_JOB}, "--launcher=torchrun", true},
    /* Our own workers have their launcher's flags. */
    {{"RANK=1", "WORLD_SIZE=2", "MNIST_DDP_LAUNCHED=1", STEP_NODES},
     "--launcher=slurm --nproc-per-node=8", true},
};

static const struct {
    const char *environment[MOST_VARIABLES];
    const char *flags;
    const char *facts[MOST_FACTS];
} REFUSED[] = {
    {{"OMPI_COMM_WORLD_RANK=0"}, "", {"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE"}},
    {{"OMPI_COMM_WORLD_RANK=x", "OMPI_COMM_WORLD_SIZE=2"}, "", {"OMPI_COMM_WORLD_RANK=x"}},
    {{"OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=2"}, "", {"OMPI_COMM_WORLD_RANK=2",
     "OMPI_COMM_WORLD_SIZE=2", "0 to 1"}},
    {{"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_RANK=1",
     "OMPI_COMM_WORLD_LOCAL_SIZE=1"}, "", {"OMPI_COMM_WORLD_LOCAL_RANK=1",
     "OMPI_COMM_WORLD_LOCAL_SIZE"}},
    {{"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_SIZE=3"}, "",
     {"OMPI_COMM_WORLD_LOCAL_SIZE=3", "OMPI_COMM_WORLD_SIZE=2"}},
    {{OPEN_MPI_HOSTS}, "", {"Open MPI", "OMPI_COMM_WORLD_RANK", "--master-addr", "MASTER_ADDR"}},
    {{OPEN_MPI}, "--world-size=8", {"--world-size=8", "4 ranks", "OMPI_COMM_WORLD_SIZE"}},
    {{OPEN_MPI}, "--rank=1", {"--rank=1", "rank 3", "OMPI_COMM_WORLD_RANK"}},
    {{OPEN_MPI}, "--nproc-per-node=2", {"--nproc-per-node", "4", "OMPI_COMM_WORLD_LOCAL_SIZE"}},
    {{OPEN_MPI}, "--rdzv-endpoint=h:17", {"--rdzv-", "4", "OMPI_COMM_WORLD_LOCAL_SIZE"}},
    {{OPEN_MPI}, "--standalone", {"--standalone", "4", "--launcher=none"}},
    {{OPEN_MPI}, "--master-port=0", {"--master-port=0"}},
    {{OPEN_MPI, "MASTER_PORT=x"}, "", {"MASTER_PORT=x"}},
    {{OPEN_MPI_NODES}, "--nnodes=4:4", {"--nnodes=4", "2", "OMPI_COMM_WORLD_SIZE"}},
    {{OPEN_MPI_NODES}, "--nnodes=4", {"--nnodes=4", "2", "OMPI_COMM_WORLD_SIZE"}},
    {{"PMI_RANK=3"}, "", {"PMI_RANK=3", "PMI_SIZE"}},
    {{"PMIX_RANK=0"}, "", {"PMIX_RANK=0", "--world-size", "--launcher=none"}},
    {{"PMIX_RANK=4"}, "--world-size=4", {"PMIX_RANK=4"}},
    {{"SLURM_PROCID=0", "SLURM_STEP_ID=0", "SLURM_NTASKS=2", "SLURM_LOCALID=0"}, "",
     {"SLURM_PROCID", "SLURM_NTASKS", "--master-addr"}},
    {{"SLURM_STEP_ID=2", "SLURM_PROCID=4", "SLURM_STEP_NUM_TASKS=7", "SLURM_NODEID=1",
     "SLURM_STEP_TASKS_PER_NODE=3(x2)"}, "", {"SLURM_STEP_TASKS_PER_NODE=3(x2)",
     "SLURM_STEP_NUM_TASKS=7"}},
    {{"SLURM_STEP_ID=2", "SLURM_PROCID=4", "SLURM_STEP_NUM_TASKS=7", "SLURM_NODEID=5",
     "SLURM_STEP_TASKS_PER_NODE=3(x2),1"}, "", {"SLURM_STEP_TASKS_PER_NODE=3(x2),1",
     "SLURM_NODEID=5"}},
    {{STEP_HERE, "PMIX_RANK=1"}, "--launcher=slurm", {"PMIX_RANK=1", "SLURM_PROCID=2"}},
    {{OPEN_MPI, STEP_NODES}, "--launcher=slurm", {"PMIX_RANK=3", "SLURM_PROCID=2"}},
    {{BATCH}, "--launcher=slurm", {"--launcher=slurm", "SLURM_STEP_ID", "srun"}},
    {{NULL}, "--launcher=torchrun", {"--launcher=torchrun", "RANK"}},
    {{NULL}, "--launcher=openmpi", {"--launcher=openmpi", "OMPI_COMM_WORLD_RANK", "mpirun"}},
    {{NULL}, "--launcher=kubernetes", {"--launcher=kubernetes", "JOB_COMPLETION_INDEX"}},
    {{INDEXED_JOB}, "", {"JOB_COMPLETION_INDEX=2", "--nnodes", "--launcher=none"}},
    {{INDEXED_JOB}, "--nnodes=2:3", {"--nnodes=2:3", "elastic"}},
    {{INDEXED_JOB}, "--nnodes=2", {"JOB_COMPLETION_INDEX=2", "2"}},
    {{INDEXED_JOB}, "--nnodes=3", {"JOB_COMPLETION_INDEX=2", "--master-addr"}},
};

/* clang-format on */

static void set_variables(const char *const *environment)
{
    for (int i = 0; i < MOST_VARIABLES && environment[i] != NULL; i++)
        ck_assert_int_eq(putenv((char *)(uintptr_t)environment[i]), 0);
}

static options options_with(const char *flags)
{
    char line[ANY_LINE];
    snprintf(line, sizeof line, "--epochs 1 %s", flags);
    return command_line_options(line);
}

/* What a rank then reads. */
static void check_rank(int i, const outer_launcher *outer)
{
    rendezvous_place place;
    bool found = false;
    ck_assert_int_eq(rendezvous_place_read(NULL, &place, &found), STATUS_OK);
    ck_assert(found && !place.agent_store);
    ck_assert_int_eq(place.rank, FOUND[i].rank);
    ck_assert_int_eq(place.world_size, FOUND[i].size);
    ck_assert_str_eq(place.master_addr, FOUND[i].master_addr);
    ck_assert_int_eq(place.master_port, outer->master_port);
    if (FOUND[i].local_rank >= 0)
        ck_assert_int_eq(place.local_rank, FOUND[i].local_rank);
    if (FOUND[i].local_size >= 0)
        ck_assert_int_eq(place.local_world_size, FOUND[i].local_size);
    if (FOUND[i].node >= 0)
        ck_assert_int_eq(place.node_rank, FOUND[i].node);
}

static void check_agent(int i, const outer_launcher *outer, const options *opts)
{
    ck_assert_ptr_null(getenv("RANK"));
    ck_assert_int_eq(atoi(opts->nnodes), FOUND[i].size);
    ck_assert_int_eq(opts->node_rank, FOUND[i].rank);
    ck_assert_str_eq(opts->master_addr, FOUND[i].master_addr);
    ck_assert_int_eq(opts->master_port, outer->master_port);
}

START_TEST(a_launcher_is_found)
{
    outer_launcher outer;
    char text[OUTER_LAUNCHER_TEXT_BYTES], number[32];
    set_variables(FOUND[_i].environment);
    options opts = options_with(FOUND[_i].flags);
    ck_assert_msg(outer_launcher_find(&opts, &outer) == STATUS_OK, "%s", status_text());
    ck_assert_ptr_nonnull(outer.row);
    ck_assert_str_eq(outer.row->name, FOUND[_i].name);
    ck_assert_int_eq(outer.role, FOUND[_i].role);
    if (FOUND[_i].master_port > 0)
        ck_assert_int_eq(outer.master_port, FOUND[_i].master_port);
    else
        ck_assert(outer.master_port >= 15000 && outer.master_port < 25000);
    outer_launcher_describe(&outer, text);
    snprintf(number, sizeof number, "%s %d of %d", outer.role == OUTER_ROLE_RANK ? "rank" : "node",
             FOUND[_i].rank, FOUND[_i].size);
    ASSERT_FACTS(text, outer.row->title, number, outer.row->rank[0], FOUND[_i].master_addr);
    ck_assert_int_eq(outer_launcher_speaks(&outer), FOUND[_i].rank == 0);
    ck_assert_int_eq(outer_launcher_adopt(&outer, &opts), STATUS_OK);
    if (outer.role == OUTER_ROLE_RANK)
        check_rank(_i, &outer);
    else
        check_agent(_i, &outer, &opts);
    options_free(&opts);
}
END_TEST

START_TEST(a_job_without_an_outer_launcher_keeps_its_flags)
{
    outer_launcher outer;
    set_variables(LEFT[_i].environment);
    options opts = options_with(LEFT[_i].flags);
    char *nnodes = opts.nnodes;
    ck_assert_msg(outer_launcher_find(&opts, &outer) == STATUS_OK, "%s", status_text());
    ck_assert_int_eq(outer.role, LEFT[_i].torchrun ? OUTER_ROLE_RANK : OUTER_ROLE_ALONE);
    ck_assert_int_eq(outer_launcher_adopt(&outer, &opts), STATUS_OK);
    ck_assert_ptr_eq(opts.nnodes, nnodes);
    ck_assert_int_eq(getenv("RANK") != NULL, LEFT[_i].torchrun);
    ck_assert(!outer_launcher_speaks(&outer));
    options_free(&opts);
}
END_TEST

START_TEST(what_does_not_fit_is_refused)
{
    outer_launcher outer = {.master_port = -77};
    set_variables(REFUSED[_i].environment);
    options opts = options_with(REFUSED[_i].flags);
    ck_assert_int_eq(outer_launcher_find(&opts, &outer), STATUS_INVALID);
    ck_assert_int_eq(outer.master_port, -77);
    ASSERT_FACTS_LISTED(status_text(), REFUSED[_i].facts);
    options_free(&opts);
}
END_TEST

/* Where the ranks meet need not be known if --init-method says it. */
START_TEST(ranks_meet_as_init_method_says)
{
    static const char *const hosts[MOST_VARIABLES] = {OPEN_MPI_HOSTS};
    outer_launcher outer;
    set_variables(hosts);
    options opts = options_with("--init-method=tcp://10.0.0.1:17");
    ck_assert_msg(outer_launcher_find(&opts, &outer) == STATUS_OK, "%s", status_text());
    ck_assert_int_eq(outer_launcher_adopt(&outer, &opts), STATUS_OK);
    ck_assert_str_eq(getenv("RANK"), "5");
    ck_assert_ptr_null(getenv("MASTER_ADDR"));
    options_free(&opts);
}
END_TEST

/* Two steps of a job, and two runs of mpirun, do not meet. */
START_TEST(jobs_have_ports_of_their_own)
{
    static const char *const others[][2] = {
        {"PMIX_NAMESPACE=119275521", "PMIX_NAMESPACE=119341057"},
        {"PMIX_NAMESPACE=prterun-h-7@1", "PMIX_NAMESPACE=prterun-h-8@1"}};
    static const char *const mpi[MOST_VARIABLES] = {OPEN_MPI};
    outer_launcher outer[2];
    set_variables(mpi);
    options opts = options_with("");
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(putenv((char *)(uintptr_t)others[_i][i]), 0);
        ck_assert_int_eq(outer_launcher_find(&opts, &outer[i]), STATUS_OK);
    }
    ck_assert_int_ne(outer[0].master_port, outer[1].master_port);
    ck_assert_str_ne(outer[0].job, outer[1].job);
    options_free(&opts);
}
END_TEST

/* `run` starts ranks, whatever this process is itself. */
START_TEST(run_is_never_a_rank)
{
    static const char *const nodes[MOST_VARIABLES] = {STEP_NODES}, *const pod[] = {"RANK=7", NULL};
    outer_launcher outer;
    options opts;
    set_variables(pod);
    ck_assert_int_eq(command_line_parse("run --nproc-per-node=2 true", &opts), STATUS_OK);
    ck_assert_int_eq(outer_launcher_find(&opts, &outer), STATUS_OK);
    ck_assert_int_eq(outer.role, OUTER_ROLE_ALONE);
    set_variables(nodes);
    ck_assert_int_eq(outer_launcher_find(&opts, &outer), STATUS_OK);
    ck_assert_int_eq(outer.role, OUTER_ROLE_AGENT);
    ck_assert_int_eq(outer.place.size, 3);
    options_free(&opts);
}
END_TEST

/* A rank of torchrun's is one, whatever else is set; a copy that does not know which rank it
 * is ends before it trains. */
START_TEST(a_process_is_what_its_launcher_says)
{
    program p = program_run_with(WORDS("env", "OMPI_COMM_WORLD_RANK=0"),
                                 WORDS(TRAINING_SMALL, "--run-dir", "copy"));
    ASSERT_EXIT(p, 64);
    ck_assert_str_eq(p.out, "");
    ASSERT_FACTS(p.err, "error", "OMPI_COMM_WORLD_SIZE");
    ck_assert(!file_exists(test_folder_path("copy")));
    program_close(&p);
    p = program_run_with(WORDS("env", "OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2", "RANK=0",
                               "WORLD_SIZE=1", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=1"),
                         WORDS(TRAINING_SMALL, "--run-dir", "rank"));
    ASSERT_EXIT(p, 0);
    ASSERT_FACTS(p.err, "launcher", "rank 0 of 1", "RANK", "MASTER_PORT", "--launcher=openmpi");
    program_close(&p);
    p = program_run_with(WORDS("env", "OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2"),
                         WORDS(TRAINING_SMALL, "--run-dir", "none", "--launcher", "none"));
    ASSERT_EXIT(p, 0);
    ASSERT_NO_FACTS(p.err, "launcher");
    program_close(&p);
}
END_TEST

/* What starts its own ranks is no rank. */
START_TEST(a_comparison_is_no_rank)
{
    program p = program_run_with(WORDS("env", OPEN_MPI),
                                 WORDS("bench", "all-reduce", "--backend=shm,local"));
    ASSERT_EXIT(p, 64);
    ASSERT_FACTS(p.err, "error", "all-reduce", "run it once", "mpirun");
    program_close(&p);
}
END_TEST

/* It says who the process is, and changes nothing. */
START_TEST(doctor_knows_the_launcher)
{
    program p = program_run_with(WORDS("env", OPEN_MPI), WORDS("doctor"));
    ASSERT_FACTS(p.out, "launcher", "rank 3 of 4", "OMPI_COMM_WORLD_RANK", "127.0.0.1");
    program_close(&p);
    p = program_run_with(WORDS("env", STEP_NODES),
                         WORDS("doctor", "--nproc-per-node=8", "--master-addr=127.0.0.1"));
    ASSERT_FACTS(p.out, "3 nodes", "8 ranks", "node 2");
    program_close(&p);
    p = program_run_with(WORDS("env", "PMI_RANK=3"), WORDS("doctor"));
    ASSERT_EXIT(p, 64);
    ASSERT_FACTS(p.out, "PMI_RANK=3", "PMI_SIZE");
    program_close(&p);
    p = program_run_with(WORDS("env", OPEN_MPI), WORDS("doctor", "run", "true"));
    ASSERT_EXIT(p, 64);
    ASSERT_FACTS(p.out, "failed", "OMPI_COMM_WORLD_LOCAL_SIZE", "--launcher=none");
    program_close(&p);
}
END_TEST

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("outer_launcher");
    TCase *core = suite_case(suite, "core", 3 * RUN_S);
    tcase_add_loop_test(core, a_launcher_is_found, 0, COUNT(FOUND));
    tcase_add_loop_test(core, a_job_without_an_outer_launcher_keeps_its_flags, 0, COUNT(LEFT));
    tcase_add_loop_test(core, what_does_not_fit_is_refused, 0, COUNT(REFUSED));
    tcase_add_loop_test(core, jobs_have_ports_of_their_own, 0, 2);
    tcase_add_test(core, run_is_never_a_rank);
    tcase_add_test(core, ranks_meet_as_init_method_says);
    tcase_add_test(core, a_process_is_what_its_launcher_says);
    tcase_add_test(core, a_comparison_is_no_rank);
    tcase_add_test(core, doctor_knows_the_launcher);
    return test_folder_close(suite_run(suite));
}
