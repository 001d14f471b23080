/* The program that holds all tests of a room. */
#ifndef MNIST_DDP_TESTS_SUPPORT_RUNNER_H
#define MNIST_DDP_TESTS_SUPPORT_RUNNER_H

/* The test that it runs, for one that starts its own program again. NULL: a program of one test. */
extern const char *runner_test;

#endif
