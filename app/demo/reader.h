/* The person who reads a demonstration on a terminal: how long a frame takes, and the Enter key
 * that ends the wait. The terminal stays as it is, so what is typed comes line by line. */
#ifndef MNIST_DDP_APP_DEMO_READER_H
#define MNIST_DDP_APP_DEMO_READER_H

#include "base/status.h"

#include <jansson.h>

enum { READER_MOST_MS = 12000 }; /* of a frame */

/* Says what Enter does, if stdin is a terminal that this process may read. */
void reader_greet(void);

/* Waits as long as a reader takes for the frame, or until a line comes from stdin: a terminal or a
 * pipe. One Enter ends one wait. A job in the background waits on. A signal that stops the
 * demonstration ends this process at once; if it is blocked, as between two children, it ends the
 * wait with STATUS_TIMEOUT and stays pending. */
status reader_wait(const json_t *frame);

#endif
