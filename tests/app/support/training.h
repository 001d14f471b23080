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

/* Of runs with several ranks: shm, or gloo after --backend=gloo. */
extern const char *training_backend;

/* For main(), with its arguments: sets training_backend. False, with a line that says why, if the
 * backend is not in this build: the test then exits with TEST_SKIPPED. */
bool training_choose_backend(int argc, char **argv);

bool training_is_on_gloo(void);

/* The gloo backend is in this build. */
bool training_has_gloo(void);

/* Returns once the ranks are training, and the first epoch's checkpoint is written. */
void training_await(const program *p);

/* The number under `key` in a JSON object. */
double training_number(const char *text, const char *key);

#endif
