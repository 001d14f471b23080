/* Which CUDA device a test runs on: the emulated one of tests/emulator, or with
 * MNIST_DDP_TEST_DEVICE=real that of the machine. Both are opened as "cuda". */
#ifndef MNIST_DDP_TESTS_SUPPORT_CUDA_H
#define MNIST_DDP_TESTS_SUPPORT_CUDA_H

#include "kernels/device_kind.h"
#include "tests/support/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static inline bool cuda_is_real(void)
{
    const char *wish = getenv("MNIST_DDP_TEST_DEVICE");
    return wish != NULL && strcmp(wish, "real") == 0;
}

static inline int cuda_count_here(void)
{
    int count = 0;
    if (device_count(&count, NULL) == STATUS_OK && count > 0)
        return count;
    printf("SKIP: no GPU here: %s\n", status_text());
    fflush(stdout);
    return 0;
}

static inline bool cuda_forks(void)
{
    const char *forks = getenv("CK_FORK");
    return forks == NULL || strcmp(forks, "no") != 0;
}

/* For suite_add: NULL, or why a test cannot run in the process of the others. The emulated device
 * reads what it is told once. */
static inline const char *cuda_wants_forks(void)
{
    return cuda_forks() ? NULL : "the emulated device is told something once per process";
}

/* How many GPUs the device under test has. Asked in a child: a process that has begun to use CUDA
 * cannot fork tests that use it. Without forks (CK_FORK=no, as under a sanitizer) it is asked here.
 */
static inline int cuda_gpus(void)
{
    int how = 0;
    if (!cuda_forks())
        return cuda_count_here();
    pid_t child = fork();
    if (child == 0)
        _exit(cuda_count_here());
    return child > 0 && waitpid(child, &how, 0) == child && WIFEXITED(how) ? WEXITSTATUS(how) : 0;
}

/* Points the program at the device under test. False, with a line that says why, if there is none:
 * the test then exits with TEST_SKIPPED. Call first in main. */
static inline bool cuda_choose(void)
{
    char path[4096];
    const char *folder = getenv("BUILD_DIR");
    if (!cuda_is_real()) {
        snprintf(path, sizeof path, "%s/mnist_ddp_cuda_emulated.so", folder ? folder : ".");
        if (access(path, R_OK) != 0) {
            printf("SKIP: %s is not built\n", path);
            return false;
        }
        setenv("MNIST_DDP_CUDA_MODULE", path, 1);
        setenv("MNIST_DDP_EMULATED_DEVICES", "8", 0);
        return true;
    }
    snprintf(path, sizeof path, "%s/mnist_ddp_cuda.so", folder ? folder : ".");
    setenv("MNIST_DDP_CUDA_MODULE", path, 1);
    return cuda_gpus() > 0;
}

#endif
