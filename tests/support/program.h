/* Runs the built program (or any other) as a user would, and keeps what it says. */
#ifndef MNIST_DDP_TESTS_SUPPORT_PROGRAM_H
#define MNIST_DDP_TESTS_SUPPORT_PROGRAM_H

#include <check.h>
#include <sys/types.h>

/* How long a run may take, how often it is looked at, how many words its command line may have. */
enum { RUN_S = 60, POLL_MS = 5, MAX_WORDS = 64 };

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

typedef struct program {
    pid_t pid;
    int exit_code;   /* 128 + n for signal n; -1: killed by us at the deadline */
    char *out, *err; /* stdout and stderr, once it has ended */
    char out_path[64], err_path[64];
} program;

/* Starts argv[0] with argv (NULL at the end), in its own process group. */
program program_start(const char *const *argv);

/* The same, after prepare(fd) in the new process; if that is not 0, it exits with 127. */
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

/* Starts `before` (env and variables, a shell, or nothing: NULL), the program, and `flags`. */
program program_start_with(const char *const *before, const char *const *flags);

/* The same, and waits until it ends, at most RUN_S. */
program program_run_with(const char *const *before, const char *const *flags);

/* Returns once a line of the program's stderr holds all these facts; fails the test if the program
 * ends before, or after RUN_S. */
#define program_await(p, ...) program_await_listed((p), WORDS(__VA_ARGS__))
void program_await_listed(const program *p, const char *const *facts);

/* Runs "mnist_ddp" with a whole line of words. */
program program_run_line(const char *line);

/* "--name=number", in memory that lasts for the test. */
const char *program_flag(const char *name, int number);

/* For main(): as a user's terminal has it, whoever runs the tests. */
void program_clean_environment(void);

/* Fails the test with the program's stderr unless it exited with `code`. */
#define ASSERT_EXIT(p, code) \
    ck_assert_msg((p).exit_code == (code), "exit %d, want %d\nstdout: %s\nstderr: %s", \
                  (p).exit_code, (code), (p).out, (p).err)

#endif
