#include "app/modes/mode.h"

#include "app/device_list.h"

#include <string.h>

enum { CPU_REPLICAS = 2 };

static const char *const NAMES[] = {"ddp", "dp", "ps", "single"};

train_mode mode_of(const options *opts)
{
    for (int i = 0; i < (int)(sizeof NAMES / sizeof NAMES[0]); i++)
        if (strcmp(opts->mode, NAMES[i]) == 0)
            return (train_mode)i;
    return MODE_DDP;
}

bool mode_is_one_process(train_mode mode)
{
    return mode == MODE_DP || mode == MODE_SINGLE;
}

static status check_world(train_mode mode, int world_size)
{
    if (mode == MODE_PS && world_size < 2)
        return FAIL(STATUS_INVALID, "--mode=ps: a parameter server needs ranks to serve: give "
                                    "--nproc-per-node=2 or more, or --mode=single");
    if (!mode_is_one_process(mode) || world_size < 2)
        return STATUS_OK;
    if (mode == MODE_SINGLE)
        return FAIL(STATUS_INVALID,
                    "--mode=single is one process, this job has %d ranks: leave out what asks for "
                    "them (--nproc-per-node, --nnodes, --world-size; RANK and WORLD_SIZE), or give "
                    "--mode=ddp",
                    world_size);
    return FAIL(STATUS_INVALID,
                "--mode=dp is one process with a thread per replica, this job has %d ranks: give "
                "--replicas=%d (CPU) or --devices=0,1 (GPUs) instead of what asks for ranks "
                "(--nproc-per-node, --nnodes, --world-size; RANK and WORLD_SIZE)",
                world_size, world_size);
}

static status check_backend(const options *opts, train_mode mode)
{
    const char *name = opts->backend;
    bool for_threads = strcmp(name, "local") == 0;
    if (mode == MODE_DP && !for_threads && strcmp(name, "auto") != 0 && strcmp(name, "nccl") != 0)
        return FAIL(STATUS_INVALID,
                    "--backend=%s: is for processes; the threads of --mode=dp take "
                    "--backend=local, or nccl for GPUs",
                    name);
    if (mode != MODE_DP && for_threads)
        return FAIL(STATUS_INVALID, "--backend=local: is for the threads of --mode=dp; processes "
                                    "take shm (one host), gloo or nccl (GPUs)");
    return STATUS_OK;
}

status mode_check(const options *opts, int world_size)
{
    train_mode mode = mode_of(opts);
    TRY(check_world(mode, world_size));
    if (opts->replicas >= 0 && mode != MODE_DP)
        return FAIL(STATUS_INVALID,
                    "--replicas=%lld: only --mode=dp has replicas; for ranks give "
                    "--nproc-per-node=%lld",
                    (long long)opts->replicas, (long long)opts->replicas);
    return check_backend(opts, mode);
}

status mode_replicas(const options *opts, int *out)
{
    int gpus = 0;
    *out = 1;
    if (mode_of(opts) != MODE_DP)
        return STATUS_OK;
    if (opts->replicas < 0)
        TRY(device_list_count(opts, &gpus));
    *out = opts->replicas > 0 ? (int)opts->replicas : gpus > 0 ? gpus : CPU_REPLICAS;
    if (*out > MODE_MAX_REPLICAS)
        return FAIL(STATUS_INVALID, "%d replicas: at most %d", *out, (int)MODE_MAX_REPLICAS);
    return STATUS_OK;
}
