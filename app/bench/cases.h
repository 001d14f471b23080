/* What `mnist_ddp bench dp-vs-ddp` measures: every combination of modes, world sizes, models and
 * batch sizes that makes sense, each once; and how the lists of flags are read, "1,2,4",
 * "dp,ddp". And the command lines of measured cases: the same work for every mode, and for PyTorch.
 */
#ifndef MNIST_DDP_APP_BENCH_CASES_H
#define MNIST_DDP_APP_BENCH_CASES_H

#include "app/bench/child.h"
#include "app/options/options.h"
#include "app/train/strategy.h"
#include "base/file.h"
#include "base/status.h"

#include <jansson.h>
#include <stdbool.h>

enum { BENCH_LIST_MAX = 32 };

typedef struct bench_list {
    int values[BENCH_LIST_MAX]; /* each once, in the order of the flag */
    int n;
} bench_list;

/* Reads whole numbers from 1 to `most`. STATUS_INVALID names the flag, the wrong entry and what is
 * allowed. */
status bench_list_numbers(const char *flag, const char *text, int most, bench_list *out);

/* Read --modes and --models: strategy_kinds, model_kinds. STATUS_INVALID as above. */
status bench_list_modes(const char *text, bench_list *out);
status bench_list_models(const char *text, bench_list *out);

typedef struct bench_case {
    bool torch; /* PyTorch's; else ours */
    strategy_kind mode;
    const char *model; /* model_kind_name()'s */
    int world;         /* ranks, or replicas of dp */
    int batch;         /* as --batch-sizes says */
    int global_batch;  /* images of one optimizer step */
    bool strong, weak; /* which comparison it belongs to; both if world is 1 */
} bench_case;

typedef struct bench_cases {
    bench_case *list; /* free with bench_cases_free */
    int count;
} bench_cases;

/* Reads the lists of the options. What cannot be done (ps on one rank, a batch that ranks cannot
 * share evenly, what PyTorch does not have) is left out, and said in `notes`, an array that gets
 * one text for each. STATUS_INVALID names the flag and what is allowed; also if nothing is left
 * to measure. `is_cuda`: the runs compute on GPUs. */
status bench_cases_make(const options *opts, bool is_cuda, bench_cases *out, json_t *notes);
void bench_cases_free(bench_cases *cases);

/* "ddp x 4, cnn, batch 256", or "torch ddp x 4, ..." */
enum { BENCH_CASE_BYTES = 96 };
void bench_case_name(const bench_case *c, char out[BENCH_CASE_BYTES]);

/* The run on one device that a case is compared with: same system, model and batch; mode single
 * if there is such a row, else the same mode, else another. -1: none. */
int bench_cases_base(const bench_cases *cases, int i);

/* The case that differs from case i in its mode, or in being ours, alone; -1: none. */
int bench_cases_find(const bench_cases *cases, int i, bool torch, strategy_kind mode);

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

/* An epoch is commands->steps optimizer steps (opts->steps if nobody changes it), of the first
 * images in the data set. */
void bench_commands_make(const bench_commands *commands, const bench_case *c, bench_words *out);

#endif
