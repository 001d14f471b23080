/* What the program exits with when it fails by itself. A launcher hands a worker's code through;
 * a signal n is 128 + n. */
#ifndef MNIST_DDP_APP_COMMON_EXIT_CODES_H
#define MNIST_DDP_APP_COMMON_EXIT_CODES_H

#include "base/status.h"

enum {
    EXIT_CODE_NO = 1,          /* of store: the key is not there, or holds another value */
    EXIT_CODE_USAGE = 64,      /* flags, environment or configuration make no sense */
    EXIT_CODE_DATA = 65,       /* the data set cannot be read */
    EXIT_CODE_RENDEZVOUS = 69, /* the ranks did not find each other */
    EXIT_CODE_INTERNAL = 70,   /* memory, a device or a library failed */
    EXIT_CODE_PEER = 72,       /* another rank went away: look for the first cause there */
    EXIT_CODE_CHECKPOINT = 74, /* a checkpoint cannot be written or read */
    EXIT_CODE_OUTPUT = 74,     /* stdout, or a file, did not take all results */
    EXIT_CODE_PREEMPTED = 75,  /* asked to stop; a checkpoint continues exactly */
    EXIT_CODE_DIVERGED = 76,   /* a loss is not finite: the training ended there */
    EXIT_CODE_TIMEOUT = 110,   /* a collective's deadline passed */
};

/* Logs this thread's message as an error and returns what to exit with: EXIT_CODE_PEER for a lost
 * peer, EXIT_CODE_TIMEOUT for a passed deadline outside the rendezvous, EXIT_CODE_INTERNAL for
 * memory and devices, EXIT_CODE_USAGE for a module that is not there, else `otherwise`. */
int exit_code_failed(status st, int otherwise);

#endif
