/* Short trainings: their flags, and what they print and leave. */
#ifndef MNIST_DDP_TESTS_APP_SUPPORT_TRAINING_H
#define MNIST_DDP_TESTS_APP_SUPPORT_TRAINING_H

#include "tests/app/support/test_folder.h"
#include "tests/support/process.h"

/* One small epoch by one thread per rank; `flags` that follow win. */
#define TRAINING_SMALL \
    "train", "--model", "mlp", "--limit", "192", "--epochs", "1", "--threads", "1", "--json"

/* A learning rate that moves the weights well within the few steps of these runs. */
#define TRAINING_SGD "--optimizer", "sgd", "--lr", "0.05", "--momentum", "0.9", "--seed", "3"
#define TRAINING_EPOCH TRAINING_SGD, "--epochs", "1", "--json", "--quiet", "--threads", "1"
#define TRAINING_480 TRAINING_EPOCH, "--limit", "480"
#define TRAINING_96 TRAINING_EPOCH, "--limit", "96"

/* The backends of ranks on one machine. */
extern const char *const training_backends[2];

/* How many of them are in this build; says so if one is not. */
int training_backend_count(void);

/* Returns once the ranks are training, and the first epoch's checkpoint is written. */
void training_await(const program *p);

/* The number under `key` in a JSON object. */
double training_number(const char *text, const char *key);

/* Removes two folders from the test's folder. */
void training_remove(const char *a, const char *b);

#endif
