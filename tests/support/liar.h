/* A server that is something else than its clients take it for. */
#ifndef MNIST_DDP_TESTS_SUPPORT_LIAR_H
#define MNIST_DDP_TESTS_SUPPORT_LIAR_H

#include <pthread.h>

/* Answers each connection with the same words, and closes it; NULL: says nothing, and keeps it. */
typedef struct liar {
    const char *words, *version; /* of "GET /version", NULL: as all else */
    int fd, port;
    pthread_t thread;
} liar;

/* Listens on loopback. The words are borrowed. */
void liar_start(liar *l, const char *words, const char *version);

/* Ends the thread. Not of one that says nothing: that ends with the process. */
void liar_stop(liar *l);

#endif
