#include "app/launch/mpirun.h"

#include "base/host.h"
#include "base/module.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FRONT_WORDS = 24, NUMBER_BYTES = 16, HOST_BYTES = 32 };

static const char VARIABLE[] = "MNIST_DDP_MPIRUN";

/* More ranks than cores are nothing to be refused here, nor is root. The ranks choose their cores
 * by themselves, and say themselves why they fail. After a failure the others have some seconds to
 * say what they saw. All are on this host: without its "ras" mpirun does not read which nodes an
 * allocation has, and knows this one as localhost. */
static int front_words(const char *ranks, const char *host, const char **words)
{
    static const char *const front[] = {"--oversubscribe",
                                        "--bind-to",
                                        "none",
                                        "--quiet",
                                        "--mca",
                                        "odls_base_sigkill_timeout",
                                        "5",
                                        "--mca",
                                        "ras",
                                        "^slurm,gridengine,tm,lsf",
                                        "-n"};
    int n = 0;
    words[n++] = "mpirun";
    if (geteuid() == 0)
        words[n++] = "--allow-run-as-root";
    for (size_t i = 0; i < sizeof front / sizeof front[0]; i++)
        words[n++] = front[i];
    words[n++] = ranks;
    words[n++] = "--host";
    words[n++] = host;
    return n;
}

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

status mpirun_become(const worker_spec *spec, int argc, char **argv)
{
    char ranks[NUMBER_BYTES], host[HOST_BYTES], self[FILE_PATH_BYTES];
    TRY(check(spec));
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length < 0)
        return FAIL(STATUS_IO, "read /proc/self/exe: %s", strerror(errno));
    self[length] = '\0';
    const char **words = calloc((size_t)argc + FRONT_WORDS, sizeof *words);
    if (words == NULL)
        return FAIL(STATUS_NO_MEMORY, "the arguments of mpirun");
    snprintf(ranks, sizeof ranks, "%d", spec->nproc);
    snprintf(host, sizeof host, "localhost:%d", spec->nproc);
    int n = front_words(ranks, host, words);
    words[n++] = self;
    for (int i = 1; i < argc; i++)
        words[n++] = argv[i];
    setenv(VARIABLE, ranks, 1);
    if (!isatty(STDOUT_FILENO)) /* mpirun gives rank 0 a terminal, whatever is behind it */
        setenv("TERM", "dumb", 1);
    execvp(words[0], (char *const *)(const void *)words);
    free(words);
    return FAIL(STATUS_IO, "mpirun: %s", strerror(errno));
}

bool mpirun_started_this(void)
{
    const char *ranks = environment_text(VARIABLE),
               *size = environment_text("OMPI_COMM_WORLD_SIZE");
    return ranks != NULL && size != NULL && strcmp(ranks, size) == 0;
}
