/* What `mnist_ddp bench dp-vs-ddp` measures: every combination of modes, world sizes, models and
 * batch sizes that makes sense, each once; and how the lists of flags are read, "1,2,4",
 * "dp,ddp". */
#ifndef MNIST_DDP_APP_BENCH_CASES_H
#define MNIST_DDP_APP_BENCH_CASES_H

#include "app/options/options.h"
#include "app/train/strategy.h"
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

#endif
