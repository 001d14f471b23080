/* The command lines of measured cases: the same work for every mode, and for PyTorch. */
#ifndef MNIST_DDP_APP_BENCH_COMMANDS_H
#define MNIST_DDP_APP_BENCH_COMMANDS_H

#include "app/bench/cases.h"
#include "app/bench/child.h"
#include "base/file.h"

typedef struct bench_commands {
    const options *opts;
    const char *program; /* ours: "/proc/self/exe" */
    const char *folder;  /* where runs may write */
    bool is_cuda;
    bool evaluates;             /* once, in the end */
    int64_t steps;              /* of an epoch */
    int threads;                /* per rank or replica */
    double lr;                  /* the optimizer's own, if none was given */
    char data[FILE_PATH_BYTES]; /* folder of the images; "": they are made in memory */
    bool is_mnist;              /* and not the embedded digits */
    char python[FILE_PATH_BYTES], script[FILE_PATH_BYTES]; /* of the peer; "" without one */
} bench_commands;

/* `folder` is borrowed. */
status bench_commands_init(const options *opts, bool is_cuda, const char *folder,
                           bench_commands *out);

/* Finds the images, so that they are made now if there are none, and not in the first run. With
 * --peer=torch also its Python, its script and MNIST's files: STATUS_INVALID says which of them is
 * missing and how to name it. */
status bench_commands_find(bench_commands *commands);

/* The script or source of a peer, in `out` (FILE_PATH_BYTES). STATUS_INVALID, with the places that
 * were looked at: it is not there. Its name begins with the peer's: "torch_...". */
status bench_find_peer(const char *name, char *out);

/* --peer-python, $TORCH_PYTHON or python3. */
const char *bench_peer_python(const options *opts);

/* An epoch is commands->steps optimizer steps (opts->bench.steps if nobody changes it), of the
 * first images in the data set. */
void bench_commands_make(const bench_commands *commands, const bench_case *c, bench_words *out);

#endif
