/* One process of this host, and whether it lives. */
#ifndef MNIST_DDP_DIST_HEALTH_PROCESS_H
#define MNIST_DDP_DIST_HEALTH_PROCESS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A pid may be given to another process later; a pid with its start never is. */
typedef struct process_id {
    int32_t pid;    /* as this process's namespace numbers it */
    uint64_t start; /* in clock ticks since the machine started; 0: not known */
} process_id;

typedef enum process_state {
    PROCESS_ENDED,
    PROCESS_RUNS,
    PROCESS_STOPPED, /* by a signal (SIGSTOP) or a debugger */
} process_state;

process_id process_self(void);

/* Reads /proc/<pid>/stat. A process that has ended and was not waited for yet has ended. */
process_state process_look(process_id id);

#ifdef __cplusplus
}
#endif
#endif
