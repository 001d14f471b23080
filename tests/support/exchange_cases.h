/* The case "exchanges" of the backends whose ranks read each other's memory (shm, local). */
#ifndef MNIST_DDP_TESTS_SUPPORT_EXCHANGE_CASES_H
#define MNIST_DDP_TESTS_SUPPORT_EXCHANGE_CASES_H

#include <check.h>

/* Adds it to the suite of `backend`, the only one of the process. */
void exchange_cases_add(Suite *suite, const char *backend);

#endif
