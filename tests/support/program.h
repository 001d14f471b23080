/* Runs the built program (or any other) as a user would, and keeps what it says. */
#ifndef MNIST_DDP_TESTS_SUPPORT_PROGRAM_H
#define MNIST_DDP_TESTS_SUPPORT_PROGRAM_H

#include <sys/types.h>

typedef struct program {
    pid_t pid;
    int exit_code;   /* 128 + n for signal n; -1: killed by us at the deadline */
    char *out, *err; /* stdout and stderr, once it has ended */
    char out_path[64], err_path[64];
} program;

/* Starts argv[0] with argv (NULL at the end), in its own process group. */
program program_start(const char *const *argv);

/* The same, after prepare(fd) in the new process; where that is not 0, it exits with 127. */
program program_start_after(const char *const *argv, int (*prepare)(int fd), int fd);

/* Waits until it ends, at most timeout_s; then its process group is killed. */
void program_wait(program *p, int timeout_s);

/* What it has written to stderr so far; free with free(). */
char *program_peek(const program *p);

/* Frees the texts. */
void program_close(program *p);

/* $BUILD_DIR/mnist_ddp. */
const char *program_mnist_ddp(void);

/* Starts mnist_ddp with the given arguments and waits: program_mnist("train", "--epochs", "1",
 * NULL). */
program program_mnist(const char *first, ...) __attribute__((sentinel));

#endif
