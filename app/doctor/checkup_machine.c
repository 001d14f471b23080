#include "app/common/core_binding.h"
#include "app/common/device_list.h"
#include "app/common/exit_codes.h"
#include "app/common/machine.h"
#include "app/doctor/checkup.h"
#include "base/host.h"
#include "base/module.h"
#include "dist/process_group/backend_choice.h"
#include "kernels/device_kind.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    RANK_BYTES = 256 << 20, /* of memory, for a rank on the CPU; a guess on the safe side */
    RANK_FILES = 8,         /* descriptors that a launcher needs for a worker */
    OTHER_FILES = 64,
    SHM_BYTES = 16 << 20, /* of /dev/shm per rank, where other programs' libraries use it */
};

static bool uses(const checkup *c, const char *device_name)
{
    device_options chosen;
    return device_list_choose(c->opts, 0, &chosen) == STATUS_OK &&
           strcmp(chosen.name, device_name) == 0;
}

static void check_cores(checkup *c, const machine *m)
{
    char text[CORE_BINDING_TEXT_BYTES];
    int threads = c->opts->threads > 0 ? (int)c->opts->threads : 1;
    if (core_binding_is_crowded(c->spec.nproc, threads, text) && !uses(c, "cuda"))
        checkup_add(c, CHECKUP_WARNING, "cores", "%s", text);
    else
        checkup_add(c, CHECKUP_OK, "cores", "%d, %s", m->cores, m->processor);
}

static void check_memory(checkup *c, const machine *m)
{
    char total[32], unused[32];
    machine_size(m->memory_bytes, total, sizeof total);
    machine_size(m->memory_free_bytes, unused, sizeof unused);
    bool tight = m->memory_free_bytes >= 0 &&
                 m->memory_free_bytes / (c->spec.nproc > 0 ? c->spec.nproc : 1) < RANK_BYTES;
    checkup_add(c, tight ? CHECKUP_WARNING : CHECKUP_OK, "memory", "%s of %s are free%s", unused,
                total, tight ? ": that may be too little for so many ranks" : "");
    machine_size(m->shm_free_bytes, unused, sizeof unused);
    tight = m->shm_free_bytes >= 0 && m->shm_free_bytes < (int64_t)SHM_BYTES * c->spec.nproc;
    checkup_add(c, tight ? CHECKUP_WARNING : CHECKUP_OK, "shm", "%s are free in /dev/shm%s", unused,
                tight ? ": a container takes --shm-size; Python's loaders and NCCL need more" : "");
}

static void check_limits(checkup *c, const machine *m)
{
    int64_t needed = (int64_t)c->spec.nproc * RANK_FILES + OTHER_FILES;
    if (m->max_files >= 0 && m->max_files < needed)
        checkup_fail(c, EXIT_CODE_INTERNAL, "limits",
                     "%lld open files are allowed, %d ranks need %lld: ulimit -n %lld",
                     (long long)m->max_files, c->spec.nproc, (long long)needed, (long long)needed);
    else
        checkup_add(c, CHECKUP_OK, "limits", "%lld open files", (long long)m->max_files);
    int fd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    if (fd < 0)
        checkup_add(c, CHECKUP_WARNING, "limits",
                    "no pidfds (%s): backend shm does not see dead ranks, or does not work",
                    strerror(errno));
    else
        close(fd);
}

static void check_device(checkup *c)
{
    device_options chosen;
    int gpus = 0;
    if (device_list_choose(c->opts, 0, &chosen) != STATUS_OK) {
        checkup_fail_message(c, EXIT_CODE_USAGE, "device");
        return;
    }
    bool cuda = strcmp(chosen.name, "cuda") == 0;
    if (device_count(&gpus, NULL) == STATUS_OK && gpus > 0) {
        checkup_add(c, CHECKUP_OK, "device", "%d GPU%s; a run uses %s", gpus, gpus == 1 ? "" : "s",
                    chosen.name);
        if (cuda && c->spec.nproc > gpus)
            checkup_add(c, CHECKUP_WARNING, "device",
                        "%d ranks share %d GPU%s: nccl refuses that, shm and gloo do not",
                        c->spec.nproc, gpus, gpus == 1 ? "" : "s");
        return;
    }
    if (cuda) {
        checkup_fail_message(c, EXIT_CODE_USAGE, "device");
        return;
    }
    char reason[256]; /* opening the device may fail for another one */
    snprintf(reason, sizeof reason, "%.*s", (int)strcspn(status_text(), ";"), status_text());
    device *dev = NULL;
    chosen.threads = 1;
    if (device_create(&chosen, &dev) != STATUS_OK) {
        checkup_fail_message(c, EXIT_CODE_USAGE, "device");
        return;
    }
    checkup_add(c, CHECKUP_OK, "device", "%s (%s); no GPU: %s", chosen.name, dev->description,
                reason);
    device_destroy(dev);
}

static void check_module(checkup *c, const char *name, bool needed)
{
    const module *opened = NULL;
    if (!needed && !module_exists(name)) {
        checkup_add(c, CHECKUP_NOTE, "modules", "%s: not in this installation", name);
        return;
    }
    if (module_open(name, &opened) == STATUS_OK) {
        checkup_add(c, CHECKUP_OK, "modules", "%s: opens, with all the libraries it needs", name);
        return;
    }
    if (needed)
        checkup_fail(c, EXIT_CODE_USAGE, "modules", "%s: %s", name, status_text());
    else
        checkup_add(c, CHECKUP_WARNING, "modules", "%s: %s", name, status_text());
}

/* Several ranks over MPI are started by mpirun. */
static void check_mpirun(checkup *c)
{
    char path[FILE_PATH_BYTES];
    if (strcmp(c->opts->backend, "mpi") != 0 || executable_find("mpirun", path))
        return;
    if (c->spec.world_size > 1)
        checkup_fail(c, EXIT_CODE_USAGE, "backend",
                     "mpi: there is no mpirun in $PATH: install openmpi-bin, or use --backend=shm");
    else
        checkup_add(c, CHECKUP_WARNING, "backend",
                    "mpi: there is no mpirun in $PATH, which several ranks need: install "
                    "openmpi-bin");
}

void checkup_modules(checkup *c)
{
    const char *backend = c->opts->backend;
    bool named = strcmp(backend, "gloo") == 0 || strcmp(backend, "hierarchical") == 0;
    bool chosen = strcmp(backend, "auto") == 0 && c->spec.nnodes > 1 && !uses(c, "cuda");
    if (!c->silent || (named && c->spec.world_size > 1) || chosen)
        check_module(c, "gloo", named || chosen);
    if (c->silent && strncmp(c->opts->device, "cuda", strlen("cuda")) == 0)
        check_module(c, "cuda", true);
    if (c->spec.rdzv == RDZV_ETCD)
        check_module(c, "curl", true);
    if (c->opts->health_check_port >= 0)
        check_module(c, "microhttpd", true);
}

static void check_backend(checkup *c)
{
    const char *backend = c->opts->backend;
    if (backend_choice_check(backend) != STATUS_OK)
        checkup_fail_message(c, EXIT_CODE_USAGE, "backend");
    else if (strcmp(backend, "shm") == 0 && c->spec.nnodes > 1)
        checkup_fail(c, EXIT_CODE_RENDEZVOUS, "backend",
                     "shm is for the ranks of one machine, and there are %d: take gloo or nccl",
                     c->spec.nnodes);
    else if (!uses(c, "cuda") && backend_choice_check_cpu(backend) != STATUS_OK)
        checkup_fail_message(c, EXIT_CODE_USAGE, "backend");
    check_mpirun(c);
    checkup_modules(c);
    check_module(c, "mpi", strcmp(backend, "mpi") == 0);
    check_module(c, "cuda", strcmp(backend, "nccl") == 0);
}

void checkup_machine(checkup *c)
{
    machine m;
    machine_read(&m);
    if (c->spec.nproc < 1)
        c->spec.nproc = 1; /* the settings were no launch */
    checkup_add(c, CHECKUP_OK, "system", "%s, %s, %s", m.system, m.kernel, m.libc);
    check_cores(c, &m);
    check_memory(c, &m);
    check_limits(c, &m);
    check_device(c);
    check_backend(c);
}
