/* Lists of a flag: "1,2,4", "dp,ddp". */
#ifndef MNIST_DDP_APP_BENCH_LIST_H
#define MNIST_DDP_APP_BENCH_LIST_H

#include "base/status.h"

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

#endif
