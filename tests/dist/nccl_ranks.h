/* Ranks with GPUs for the tests of the nccl backend: processes, over the emulated device or, with
 * MNIST_DDP_TEST_DEVICE=real, the machine's GPUs. */
#ifndef MNIST_DDP_TESTS_DIST_NCCL_RANKS_H
#define MNIST_DDP_TESTS_DIST_NCCL_RANKS_H

#include "base/module.h"
#include "dist/process_group/backend_choice.h"
#include "kernels/device_kind.h"
#include "tests/support/collectives.h"
#include "tests/support/cuda.h"
#include "tests/support/ranks.h"

#include <sys/wait.h>

static const int NCCL_WORLDS[] = {2, 3, 4, 8};
enum { NCCL_N_WORLDS = 4, NCCL_N_SMALL_WORLDS = 3, NCCL_MAX_WORLD = 8 };

static int nccl_gpus; /* of the machine */

static inline status nccl_open_gpu(int index, device **out)
{
    device_options options = {.name = "cuda", .threads = 1, .index = index};
    return device_create(&options, out);
}

static inline status nccl_open_own(int rank, device **out)
{
    return nccl_open_gpu(rank, out);
}

static inline status nccl_open_first(int rank, device **out)
{
    (void)rank;
    return nccl_open_gpu(0, out);
}

static inline status nccl_open_on_even(int rank, device **out)
{
    return rank % 2 == 0 ? nccl_open_gpu(0, out) : STATUS_OK;
}

/* Two ranks with one GPU that say they have two. */
static inline status nccl_open_disguised(int rank, device **out)
{
    TRY(nccl_open_gpu(0, out));
    snprintf((*out)->id, sizeof(*out)->id, "GPU-of-rank-%d", rank);
    return STATUS_OK;
}

static inline ranks_options nccl_options(int world_size, const char *backend)
{
    return (ranks_options){.world_size = world_size,
                           .backend = backend,
                           .shared_bytes = COLLECTIVES_SHARED_BYTES,
                           .open_device = nccl_open_own,
                           .close_device = device_destroy};
}

/* What `n` ranks lack that need a GPU each, for suite_add; NULL: nothing. */
static inline const char *nccl_lacks_gpus(int n)
{
    static char text[64];
    snprintf(text, sizeof text, "%d ranks need a GPU each, and there are %d", n, nccl_gpus);
    return nccl_gpus < n ? text : NULL;
}

/* Adds a test's cases, `per_world` of them for each of the first `n` of NCCL_WORLDS. */
static inline void nccl_add_worlds(TCase *test_case, const TTest *test, int n, int per_world)
{
    for (int i = 0; i < n * per_world; i++)
        suite_add(test_case, test, i, nccl_lacks_gpus(NCCL_WORLDS[i / per_world]));
}

static inline void nccl_run_with(const ranks_options *options, rank_fn fn, void *arg)
{
    rank_result results[NCCL_MAX_WORLD];
    ck_assert_int_eq(run_rank_processes(options, fn, arg, results), STATUS_OK);
    for (int rank = 0; rank < options->world_size; rank++)
        ck_assert_msg(results[rank].reported && results[rank].st == STATUS_OK, "rank %d: %s", rank,
                      results[rank].message);
}

static inline void nccl_run(int world_size, rank_fn fn, void *arg)
{
    ranks_options options = nccl_options(world_size, "nccl");
    nccl_run_with(&options, fn, arg);
}

/* The GPUs under test, 0 if there are none: asked in a process of its own, as CUDA does not survive
 * a fork. */
static inline int nccl_count_gpus(void)
{
    int how = 0, count = 0;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        bool found = cuda_choose() && device_count(&count, NULL) == STATUS_OK;
        fflush(NULL);
        _exit(found ? count : 0);
    }
    return pid > 0 && waitpid(pid, &how, 0) == pid && WIFEXITED(how) ? WEXITSTATUS(how) : 0;
}

/* First in main; false: exit with TEST_SKIPPED. */
static inline bool nccl_choose(void)
{
    char path[4096];
    const char *folder = getenv("BUILD_DIR");
    nccl_gpus = nccl_count_gpus();
    if (nccl_gpus == 0 || nccl_settings_apply(false) != STATUS_OK)
        return false;
    if (!cuda_is_real())
        return cuda_choose();
    snprintf(path, sizeof path, "%s/mnist_ddp_cuda.so", folder != NULL ? folder : ".");
    setenv("MNIST_DDP_CUDA_MODULE", path, 1);
    return true;
}

#endif
