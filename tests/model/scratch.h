/* A new empty folder per test, gone with all it holds afterwards. */
#ifndef MNIST_DDP_TESTS_MODEL_SCRATCH_H
#define MNIST_DDP_TESTS_MODEL_SCRATCH_H

#include <check.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static char scratch[256];

static inline void scratch_create(void)
{
    const char *base = getenv("TMPDIR");
    snprintf(scratch, sizeof scratch, "%.200s/mnist_ddp_test_XXXXXX", base ? base : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(scratch));
}

static inline int scratch_remove_one(const char *path, const struct stat *info, int type,
                                     struct FTW *place)
{
    (void)info;
    (void)type;
    (void)place;
    return remove(path);
}

static inline void scratch_remove(void)
{
    nftw(scratch, scratch_remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

#endif
