/* mpirun, srun and the like: several whole programs where ranks were meant. */
#include "app/launch/outer_launcher.h"

#include "tests/app/support/command_line.h"
#include "tests/app/support/training.h"

#include <stdlib.h>

enum { MOST_VARIABLES = 5, MOST_FACTS = 6 };

/* What a launcher sets, and what process 0 then says; no facts: it goes on. */
static const struct {
    const char *variables[MOST_VARIABLES]; /* "NAME=VALUE" */
    const char *facts[MOST_FACTS];
} CASES[] = {
    {{"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_SIZE=2"},
     {"OMPI_COMM_WORLD_RANK=0", "2 copies", "--nproc-per-node=2", "--launcher=none"}},
    {{"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=8", "OMPI_COMM_WORLD_LOCAL_SIZE=4",
      "SLURM_PROCID=0"},
     {"OMPI_COMM_WORLD_RANK=0", "8 copies", "2 machines", "--nproc-per-node=4", "--nnodes=2"}},
    {{"MV2_COMM_WORLD_RANK=0", "MV2_COMM_WORLD_SIZE=3"},
     {"MV2_COMM_WORLD_RANK=0", "3 copies", "--nproc-per-node=3"}},
    {{"SLURM_PROCID=0", "SLURM_STEP_ID=0", "SLURM_NTASKS=2", "SLURM_LOCALID=0"},
     {"srun", "SLURM_PROCID=0", "2 copies", "--nproc-per-node=2"}},
    {{"PMI_RANK=0", "PMI_SIZE=4", "MPI_LOCALNRANKS=4"},
     {"PMI_RANK=0", "4 copies", "--nproc-per-node=4"}},
    {{"PMIX_RANK=0"}, {"PMIX_RANK=0", "several copies", "--nproc-per-node=N"}},
    {{"PMI_RANK=3", "PMI_SIZE=4"}, {"PMI_RANK=3", "process 0"}},
    /* One process, a batch script, an interactive step of a job of four tasks, a plain shell. */
    {{"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=1"}, {NULL}},
    {{"SLURM_PROCID=0", "SLURM_NTASKS=4"}, {NULL}},
    {{"SLURM_PROCID=0", "SLURM_STEP_ID=0", "SLURM_NTASKS=4", "SLURM_STEP_NUM_TASKS=1"}, {NULL}},
    {{NULL}, {NULL}},
};

static void set_variables(int which)
{
    for (int i = 0; i < MOST_VARIABLES && CASES[which].variables[i] != NULL; i++)
        ck_assert_int_eq(putenv((char *)(uintptr_t)CASES[which].variables[i]), 0);
}

START_TEST(copies_are_refused)
{
    options opts = command_line_options("--epochs 1");
    set_variables(_i);
    bool refused = CASES[_i].facts[0] != NULL;
    ck_assert_int_eq(outer_launcher_check(&opts, 1), refused ? STATUS_INVALID : STATUS_OK);
    if (refused)
        ASSERT_FACTS_LISTED(status_text(), CASES[_i].facts);
    options_free(&opts);
}
END_TEST

/* A launcher of ours on each machine is what mpirun or srun may well start. */
START_TEST(launchers_of_several_nodes_are_let_through)
{
    options opts = command_line_options("--epochs 1");
    set_variables(_i);
    ck_assert_int_eq(outer_launcher_check(&opts, 2), STATUS_OK);
    options_free(&opts);
    opts = command_line_options("--epochs 1 --launcher none");
    ck_assert_int_eq(outer_launcher_check(&opts, 1), STATUS_OK);
    options_free(&opts);
}
END_TEST

START_TEST(a_copy_ends_before_it_trains)
{
    program p = program_run_with(WORDS("env", "OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2"),
                                 WORDS(TRAINING_SMALL, "--run-dir", "copy"));
    ASSERT_EXIT(p, 64);
    ck_assert_str_eq(p.out, "");
    ASSERT_FACTS(p.err, "error", "--nproc-per-node=2");
    ck_assert(!file_exists(test_folder_path("copy")));
    program_close(&p);
    /* A rank of torchrun's is one, whatever else is set. */
    p = program_run_with(WORDS("env", "OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2", "RANK=0",
                               "WORLD_SIZE=1", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=1"),
                         WORDS(TRAINING_SMALL, "--run-dir", "rank"));
    ASSERT_EXIT(p, 0);
    program_close(&p);
}
END_TEST

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("outer_launcher");
    TCase *core = suite_case(suite, "core", 2 * RUN_S);
    tcase_add_loop_test(core, copies_are_refused, 0, COUNT(CASES));
    tcase_add_loop_test(core, launchers_of_several_nodes_are_let_through, 0, COUNT(CASES));
    tcase_add_test(core, a_copy_ends_before_it_trains);
    return test_folder_close(suite_run(suite));
}
