/* The arrays of a collective under test, in any kind of memory, and values with which every sum is
 * exact in all types. */
#ifndef MNIST_DDP_TESTS_SUPPORT_COLLECTIVE_DATA_H
#define MNIST_DDP_TESTS_SUPPORT_COLLECTIVE_DATA_H

#include "tests/support/collectives.h"

typedef struct collective_data {
    void *in, *out;           /* on the host: for the test to fill and look at */
    void *call_in, *call_out; /* what the collective gets */
    device_stream *stream;    /* likewise */
    void *heap;               /* of the group */
    size_t size_bytes;
} collective_data;

/* Arrays of size_bytes each. */
status collective_data_open(process_group *group, memory_kind kind, size_t size_bytes,
                            collective_data *out);
void collective_data_close(collective_data *d);

/* Between the host's view and what the collective gets, before and after it. */
status collective_data_send(collective_data *d);
status collective_data_fetch(collective_data *d);

/* Integers of -50 .. 50, and their reduction over ranks. */
int64_t collective_data_value(int rank, size_t i);
int64_t collective_data_reduced(reduce_op op, int world_size, size_t i);

void collective_data_put(void *data, dtype type, size_t i, int64_t value);

/* STATUS_INVALID if data[i] is not `want`. */
status collective_data_expect(const void *data, dtype type, size_t i, int64_t want,
                              const char *what);

#endif
