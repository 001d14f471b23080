/* What one rank did in one optimizer step, from a trace of --trace. */
#ifndef MNIST_DDP_APP_DEMO_STEP_SPANS_H
#define MNIST_DDP_APP_DEMO_STEP_SPANS_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* Texts belong to the trace. */
typedef struct step_span {
    const char *lane;        /* "main", "communication", "transfers of replica 1" */
    const char *name;        /* "fc1 backward" */
    const char *parameters;  /* of a bucket; NULL */
    int64_t bytes;           /* that it moves; -1: it moves nothing */
    double begin_ms, end_ms; /* since the step's beginning */
} step_span;

/* Up to `max` spans of rank 0 that begin in step `step`, which itself is the first of them; a
 * lane's are in the order of their beginnings. How many; 0: there is no such step. */
size_t step_spans_read(const json_t *trace, int64_t step, step_span *out, size_t max);

#endif
