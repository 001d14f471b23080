/* The conformance of one backend in one world: its ranks, started as often as rows fail, and what
 * comes of each row. */
#ifndef MNIST_DDP_TESTS_SUPPORT_CONFORMANCE_RUN_H
#define MNIST_DDP_TESTS_SUPPORT_CONFORMANCE_RUN_H

#include "tests/support/conformance.h"

/* A column of the table. */
typedef struct conformance_backend {
    const char *name;
    bool one_order;
    bool is_complete; /* to refuse an operation is a failure */
    bool are_threads; /* of one process; else every rank is a process */
    bool by_mpirun;   /* and mpirun has started it */
    const memory_kind *memory;
    int n_memory;
    status (*open_device)(int rank, struct device **out); /* NULL: none */
} conformance_backend;

typedef struct conformance_outcome {
    conformance_result result;              /* the worst of all ranks and worlds */
    char text[CONFORMANCE_TEXT_BYTES + 64]; /* of the first such */
} conformance_outcome;

/* For main(): if mpirun has started this process as a rank, does its part and ends it. */
void conformance_serve(void);

/* Runs the rows that are not skipped and merges what they come to into out[0..rows - 1]. */
void conformance_run(const conformance_backend *backend, int world_size, bool whole,
                     const bool *skipped, conformance_outcome *out);

#endif
