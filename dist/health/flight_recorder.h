/* The last collectives of a rank, always kept: what ran before one failed. */
#ifndef MNIST_DDP_DIST_HEALTH_FLIGHT_RECORDER_H
#define MNIST_DDP_DIST_HEALTH_FLIGHT_RECORDER_H

#include "dist/collective/collective.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { FLIGHT_RECORDER_LENGTH = 1000 };

typedef enum flight_stage {
    COLLECTIVE_LAUNCHED,
    COLLECTIVE_WAITED, /* a thread waits for it */
    COLLECTIVE_DONE,
    COLLECTIVE_FAILED,
} flight_stage;

typedef struct flight_record {
    uint64_t number; /* sends and receives count here too; 0: none */
    collective what; /* its arrays may be gone */
    flight_stage stage;
    bool on_device; /* then "done" means that the host need not wait for it */
    int64_t launched_ns, waited_ns, ended_ns; /* 0: not yet */
} flight_record;

/* All zero is an empty recorder. The caller locks it. */
typedef struct flight_recorder {
    flight_record records[FLIGHT_RECORDER_LENGTH]; /* number n is at n % length */
    uint64_t last;                                 /* the latest one's number; 0: none */
    struct trace_lane *lane;                       /* gets a span of each that ended; NULL: none */
} flight_recorder;

/* The record's number, for the calls below. */
uint64_t flight_recorder_launch(flight_recorder *recorder, const collective *c, bool on_device,
                                int64_t now_ns);
void flight_recorder_wait(flight_recorder *recorder, uint64_t number, int64_t now_ns);
void flight_recorder_end(flight_recorder *recorder, uint64_t number, bool ok, int64_t now_ns);

/* One JSON object a line, the oldest first. */
void flight_recorder_write(const flight_recorder *recorder, FILE *file);

#endif
