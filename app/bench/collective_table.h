/* What a benchmark of an operation says: nccl-tests' table, and the same as JSON. */
#ifndef MNIST_DDP_APP_BENCH_COLLECTIVE_TABLE_H
#define MNIST_DDP_APP_BENCH_COLLECTIVE_TABLE_H

#include "app/bench/collective_bench.h"
#include "app/options/options.h"

#include <jansson.h>
#include <stdio.h>

typedef struct collective_table {
    FILE *out; /* where it is printed, line by line; NULL: nowhere */
    collective_case what;
    int world_size;
    json_t *rows; /* of the table's owner, for json_decref */
    /* of all rows so far */
    double busbw_sum;
    int ways; /* measured */
    int64_t wrong;
    bool checked; /* somebody has looked for those */
} collective_table;

/* The words of nccl-tests: "float", "bfloat16". NULL: it is none of them. */
const char *collective_type_word(dtype type);

/* The type and the reduction of such words; false: there is none. */
bool collective_type_find(const char *word, dtype *out);
bool collective_op_find(const char *word, reduce_op *out);

/* What is measured, as the head says it. */
typedef struct collective_setup {
    const options *opts;
    const char *backend, *device_name; /* that were chosen */
    const char *emulation;             /* of the device; NULL: none */
} collective_setup;

void collective_table_head(const collective_table *t, const collective_setup *setup);
void collective_table_add(collective_table *t, const collective_row *row);
void collective_table_end(const collective_table *t);

/* The mean over all rows, both ways, in GB/s. */
double collective_table_busbw(const collective_table *t);

#endif
