/* A temporary folder with a small data set, for tests that run the whole program. */
#ifndef MNIST_DDP_TESTS_APP_WORKBENCH_H
#define MNIST_DDP_TESTS_APP_WORKBENCH_H

#include "base/file.h"
#include "base/memory.h"
#include "data/digits/digits.h"
#include "tests/support/facts.h"
#include "tests/support/program.h"
#include "tests/support/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WORKBENCH_TRAIN = 600, WORKBENCH_TEST = 250 };

static char workbench[64]; /* the folder; data/ in it has the four files */

static inline void workbench_ok(status st)
{
    if (st != STATUS_OK) {
        fprintf(stderr, "workbench: %s\n", status_text());
        exit(EXIT_FAILURE);
    }
}

static inline char *workbench_path(const char *name)
{
    static char paths[8][FILE_PATH_BYTES];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, FILE_PATH_BYTES, "%s/%s", workbench, name);
    return path;
}

static inline void workbench_write_idx(const char *name, uint32_t count, int dimensions,
                                       const uint8_t *data, size_t size_bytes)
{
    uint8_t header[16] = {0, 0, 8, (uint8_t)dimensions};
    uint32_t sizes[3] = {count, 28, 28};
    for (int d = 0; d < dimensions; d++)
        for (int b = 0; b < 4; b++)
            header[4 + 4 * d + b] = (uint8_t)(sizes[d] >> (24 - 8 * b));
    file_part parts[] = {{header, 4 + 4 * (size_t)dimensions}, {data, size_bytes}};
    workbench_ok(file_write(workbench_path(name), parts, 2));
}

static inline void workbench_write_split(digits_split split, const char *prefix, uint32_t count)
{
    char name[64];
    uint8_t *images = NULL, *labels = NULL;
    workbench_ok(memory_alloc((size_t)count * 784, (void **)&images));
    workbench_ok(memory_alloc(count, (void **)&labels));
    workbench_ok(digits_generate(7, split, 0, count, 1, images, labels));
    snprintf(name, sizeof name, "data/%s-images-idx3-ubyte", prefix);
    workbench_write_idx(name, count, 3, images, (size_t)count * 784);
    snprintf(name, sizeof name, "data/%s-labels-idx1-ubyte", prefix);
    workbench_write_idx(name, count, 1, labels, count);
    free(images);
    free(labels);
}

/* Makes the folder, points $MNIST_DDP_DATA, $XDG_CACHE_HOME and $TMPDIR into it and goes there. */
static inline void workbench_open(void)
{
    strcpy(workbench, "/tmp/mnist_ddp-app-XXXXXX");
    if (mkdtemp(workbench) == NULL)
        exit(EXIT_FAILURE);
    workbench_ok(file_make_folders(workbench_path("data")));
    workbench_write_split(DIGITS_TRAIN, "train", WORKBENCH_TRAIN);
    workbench_write_split(DIGITS_TEST, "t10k", WORKBENCH_TEST);
    setenv("MNIST_DDP_DATA", workbench_path("data"), 1);
    setenv("XDG_CACHE_HOME", workbench_path("cache"), 1);
    setenv("TMPDIR", workbench, 1);
    if (chdir(workbench) != 0)
        exit(EXIT_FAILURE);
}

static inline int workbench_close(int exit_code)
{
    char shell[128];
    snprintf(shell, sizeof shell, "rm -rf '%s'", workbench);
    return chdir("/") != 0 || system(shell) != 0 ? EXIT_FAILURE : exit_code;
}

/* Fails the test with the program's stderr unless it exited with `code`. */
#define ASSERT_EXIT(p, code) \
    ck_assert_msg((p).exit_code == (code), "exit %d, want %d\nstdout: %s\nstderr: %s", \
                  (p).exit_code, (code), (p).out, (p).err)

/* For what is an interface, character by character: JSON, documented lines, a script's output. What
 * the program says in prose is asked for its facts. */
#define ASSERT_SAYS(text, words) \
    ck_assert_msg(strstr((text), (words)) != NULL, "'%s' is not in: %s", (words), (text))

#endif
