/* The command lines of measured cases: the same work for every mode, and for PyTorch. */
#ifndef MNIST_DDP_APP_BENCH_COMMANDS_H
#define MNIST_DDP_APP_BENCH_COMMANDS_H

#include "app/bench/bench_cases.h"
#include "app/bench/bench_words.h"
#include "base/file.h"

typedef struct bench_commands {
    const options *opts;
    const char *program; /* ours: "/proc/self/exe" */
    const char *folder;  /* where runs may write */
    bool is_cuda;
    int threads;                /* per rank or replica */
    double lr;                  /* the optimizer's own, where none was given */
    char data[FILE_PATH_BYTES]; /* folder of the images; "": they are made in memory */
    bool is_mnist;              /* and not the embedded digits */
    char python[FILE_PATH_BYTES], script[FILE_PATH_BYTES]; /* of the peer; "" without one */
} bench_commands;

/* `folder` is borrowed. Finds the images. With --peer=torch also its Python, its script and MNIST's
 * files: STATUS_INVALID says which of them is missing and how to name it. */
status bench_commands_init(const options *opts, bool is_cuda, const char *folder,
                           bench_commands *out);

/* An epoch is opts->steps optimizer steps, of the first images in the data set. */
void bench_commands_make(const bench_commands *commands, const bench_case *c, bench_words *out);

#endif
