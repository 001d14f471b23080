/* One operation with given arguments, on data whose result is exact, as one rank prepares, launches
 * and checks it. */
#ifndef MNIST_DDP_TESTS_SUPPORT_CONFORMANCE_CASE_H
#define MNIST_DDP_TESTS_SUPPORT_CONFORMANCE_CASE_H

#include "tests/support/collectives.h"

/* The arrays of a rank, each of size_bytes. Cases take pieces of them. */
typedef struct arena {
    unsigned char *in, *out;  /* malloc */
    unsigned char *heap;      /* process_group_alloc */
    unsigned char *want;      /* scratch */
    unsigned char *device[2]; /* the device's; NULL: the rank has none */
    device_stream *stream;    /* its stream; NULL */
    size_t size_bytes;
} arena;

/* Every rank of the group asks for the same size. */
status arena_open(process_group *group, size_t size_bytes, arena *out);
void arena_close(arena *a); /* accepts all zero */

/* What is done. */
typedef struct conformance_case {
    collective_kind kind;
    reduce_op op;
    dtype type;
    memory_kind memory;
    size_t count;
    int root, tag;
    float prescale; /* 0: none */
} conformance_case;

/* How it is done: a case on this rank, with its arrays. */
typedef struct prepared_case {
    conformance_case what;
    collective c;
    arena *memory;
    int rank, world_size;
    unsigned char *in, *out;           /* on the host: for the test to fill and look at */
    unsigned char *call_in, *call_out; /* the same, as the operation gets them */
    size_t in_bytes, out_bytes;
    bool on_device;
} prepared_case;

/* The bytes of arenas that a case takes, at most. */
size_t conformance_case_bytes(const conformance_case *what, int world_size);

/* Places the arrays at byte `at` of the arenas and fills them. STATUS_NO_MEMORY if they do not fit.
 */
status conformance_case_prepare(process_group *group, arena *a, const conformance_case *what,
                                size_t at, prepared_case *out);

/* STATUS_INVALID, with the case and the first wrong element, if the result is not exact, if what
 * lies beyond it has been written to, or if `in` has changed out of place. */
status conformance_case_check(prepared_case *p);

/* All of it, blocking. */
status conformance_case_run(process_group *group, arena *a, const conformance_case *what);

#endif
