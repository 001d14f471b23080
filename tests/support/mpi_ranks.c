#include "tests/support/mpi_ranks.h"

#include "base/clock.h"
#include "base/module.h"
#include "dist/store/store.h"
#include "tests/support/collectives.h"
#include "tests/support/program.h"
#include "tests/support/runner.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* "<function> <port> <timeout_ms> <folder of results>" */
static const char VARIABLE[] = "MNIST_DDP_TEST_MPI";

enum { PATH_BYTES = 256, FAILED = 9 };

static void result_path(char out[PATH_BYTES], const char *folder, int rank)
{
    snprintf(out, PATH_BYTES, "%.200s/%d", folder, rank);
}

static void write_result(const char *folder, int rank, const rank_result *result)
{
    char path[PATH_BYTES];
    result_path(path, folder, rank);
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(result, sizeof *result, 1, file) != 1 || fclose(file) != 0)
        exit(FAILED);
}

static rank_result read_result(const char *folder, int rank)
{
    char path[PATH_BYTES];
    rank_result result = {.message = "(no report)"};
    result_path(path, folder, rank);
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return result;
    if (fread(&result, sizeof result, 1, file) != 1)
        result = (rank_result){.message = "(half a report)"};
    fclose(file);
    unlink(path);
    return result;
}

void mpi_ranks_serve(const mpi_function *list)
{
    char name[64], folder[PATH_BYTES];
    int port = 0;
    long timeout_ms = 0;
    const char *what = getenv(VARIABLE), *rank = getenv("OMPI_COMM_WORLD_RANK");
    const char *world_size = getenv("OMPI_COMM_WORLD_SIZE");
    if (what == NULL || rank == NULL || world_size == NULL)
        return;
    if (sscanf(what, "%63s %d %ld %255s", name, &port, &timeout_ms, folder) != 4)
        exit(FAILED);
    while (list->name != NULL && strcmp(list->name, name) != 0)
        list++;
    if (list->name == NULL)
        exit(FAILED);
    signal(SIGTERM, SIG_IGN); /* mpirun's, if another rank has ended: this one has a word to say */
    ranks_options options = {.world_size = atoi(world_size),
                             .backend = "mpi",
                             .timeout_ms = timeout_ms,
                             .shared_bytes = 6 * COLLECTIVES_SHARED_BYTES};
    rank_result result;
    run_as_rank(&(rank_job){&options, atoi(rank), port, list->fn, list->arg}, &result);
    write_result(folder, atoi(rank), &result);
    exit(result.st == STATUS_OK ? 0 : FAILED);
}

const char *mpi_ranks_missing(void)
{
    if (system("command -v mpirun >/dev/null") != 0)
        return "no mpirun (package openmpi-bin)";
    return module_exists("mpi") ? NULL : "the mpi module is not built";
}

/* What it says is seen at once. */
static int say_there(int fd)
{
    return dup2(fd, STDERR_FILENO) < 0;
}

static int start_and_wait(const mpi_run *run)
{
    char ranks[16], self[PATH_BYTES] = "";
    snprintf(ranks, sizeof ranks, "%d", run->world_size);
    int own_stderr = dup(STDERR_FILENO);
    if (own_stderr < 0 || readlink("/proc/self/exe", self, sizeof self - 1) < 0)
        return -1;
    program p = program_start_after(WORDS("mpirun", "-n", ranks, "--oversubscribe", "--bind-to",
                                          "none", "--quiet", self, runner_test),
                                    say_there, own_stderr);
    close(own_stderr);
    program_wait(&p, run->limit_s > 0 ? run->limit_s : RUN_S);
    int code = p.exit_code;
    program_close(&p);
    return code;
}

status mpi_ranks_run(const mpi_run *run, rank_result *results, mpi_end *end)
{
    char folder[] = "/tmp/mnist_ddp-mpi-XXXXXX", what[PATH_BYTES], sanitizer[PATH_BYTES];
    store_server *server = NULL;
    TRY(store_server_create("127.0.0.1", 0, &server));
    if (mkdtemp(folder) == NULL)
        return FAIL(STATUS_IO, "no folder for results");
    snprintf(what, sizeof what, "%s %d %ld %s", run->name, store_server_port(server),
             (long)run->timeout_ms, folder);
    setenv(VARIABLE, what, 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    snprintf(sanitizer, sizeof sanitizer,
             "%.200s:detect_leaks=0", /* Open MPI's, of parts it unloads */
             getenv("ASAN_OPTIONS") != NULL ? getenv("ASAN_OPTIONS") : "");
    setenv("ASAN_OPTIONS", sanitizer, 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    int64_t start_ns = clock_now_ns();
    end->exit_code = start_and_wait(run);
    end->seconds = clock_seconds(clock_now_ns() - start_ns);
    unsetenv(VARIABLE);
    for (int rank = 0; rank < run->world_size; rank++)
        results[rank] = read_result(folder, rank);
    rmdir(folder);
    store_server_destroy(server);
    return STATUS_OK;
}
