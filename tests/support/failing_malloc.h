/* What a test and the library failing_malloc.so, which is loaded before the program's own
 * libraries, tell each other. The file's name is in $TEST_FAILING_MALLOC. */
#ifndef MNIST_DDP_TESTS_SUPPORT_FAILING_MALLOC_H
#define MNIST_DDP_TESTS_SUPPORT_FAILING_MALLOC_H

#include <stdint.h>

enum { FAILING_MALLOC_NO_RANK = -1, FAILING_MALLOC_PLACE_BYTES = 160 };

/* The content of the file, mapped by the processes that are meant. */
typedef struct failing_malloc {
    int64_t fail_at;                        /* this allocation fails, from 1; 0: none */
    int32_t rank;                           /* whose; FAILING_MALLOC_NO_RANK: the launcher's */
    int32_t fired;                          /* it has failed */
    int64_t count;                          /* allocations so far that may be told to fail */
    int64_t count_all;                      /* those of all libraries */
    char place[FAILING_MALLOC_PLACE_BYTES]; /* who asked for the memory: "file+0x123" */
} failing_malloc;

#endif
