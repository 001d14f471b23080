/* DataParallel: the master, this thread, drives the replicas of app/train/replicas.h. */
#include "app/device_list.h"
#include "app/train/replica.h"
#include "app/train/replicas.h"
#include "app/train/strategy_ranks.h"

#include <string.h>

enum { CPU_REPLICAS = 2 };

static status check(const options *opts, int world_size)
{
    const char *name = opts->backend;
    if (world_size > 1)
        return FAIL(STATUS_INVALID,
                    "--mode=dp is one process with a thread per replica, this job has %d ranks: "
                    "give --replicas=%d (CPU) or --devices=0,1 (GPUs) instead of what asks for "
                    "ranks (--nproc-per-node, --nnodes, --world-size; RANK and WORLD_SIZE)",
                    world_size, world_size);
    if (strcmp(name, "local") != 0 && strcmp(name, "auto") != 0 && strcmp(name, "nccl") != 0)
        return FAIL(STATUS_INVALID,
                    "--backend=%s: is for processes; the threads of --mode=dp take "
                    "--backend=local, or nccl for GPUs",
                    name);
    return STATUS_OK;
}

/* --replicas, else a replica per GPU, else 2 on the CPU. */
static status count_replicas(const options *opts, int *out)
{
    int gpus = 0;
    if (opts->replicas < 0)
        TRY(device_list_count(opts, &gpus));
    int n = opts->replicas > 0 ? (int)opts->replicas : gpus > 0 ? gpus : CPU_REPLICAS;
    if (n > REPLICAS_MAX)
        return FAIL(STATUS_INVALID, "%d replicas: at most %d", n, (int)REPLICAS_MAX);
    *out = n;
    return STATUS_OK;
}

static status open_replicas(rank_context *rank, void **self)
{
    replicas *all = NULL;
    TRY(replicas_create(rank, &all));
    *self = all;
    return STATUS_OK;
}

static void close_replicas(void *self)
{
    replicas_destroy(self);
}

static void begin_step(rank_context *rank, void *self, const step_plan *plan)
{
    (void)rank;
    replicas_begin_step(self, plan);
}

static status forward_backward(rank_context *rank, void *self, const step_batch *b)
{
    (void)rank;
    return replicas_forward_backward(self, b);
}

static status explain(void *self, status st)
{
    return replicas_explain(self, st);
}

static const char *backend(const rank_context *rank, void *self)
{
    (void)rank;
    return replicas_backend(self);
}

static device_use use(const rank_context *rank, void *self, int index)
{
    (void)rank;
    return replicas_use(self, index);
}

const strategy_ops strategy_dp = {
    .facts = {.name = "dp",
              .title = "mode dp, replicas",
              .unit = "replica",
              .group_backend = "auto", /* of one rank; --backend is the replicas' */
              .is_one_process = true,
              .is_central = true},
    .check = check,
    .replicas = count_replicas,
    .open = open_replicas,
    .close = close_replicas,
    .begin_step = begin_step,
    .forward_backward = forward_backward,
    .optimizer_step = strategy_ranks_optimizer_step,
    .explain = explain,
    .backend = backend,
    .use = use,
};
