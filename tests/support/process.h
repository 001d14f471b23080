/* The processes that a test has started, or that were started by those, as /proc shows them. */
#ifndef MNIST_DDP_TESTS_SUPPORT_PROCESS_H
#define MNIST_DDP_TESTS_SUPPORT_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum { MAX_RANKS = 8 };

/* What a file of /proc says; "" if the process is gone. */
void process_read(pid_t pid, const char *name, char *out, size_t size_bytes);

/* The processes that a launcher has started, MAX_RANKS at most. */
int process_children(pid_t launcher, pid_t *out);

/* The process of a rank that a launcher has started; fails the test if there is none. */
pid_t process_of_rank(pid_t launcher, int rank);

/* Return once the process has taken this signal, which it blocks and reads, or is stopped
 * (SIGSTOP); fail the test after RUN_S. */
void process_await_taken(pid_t pid, int signal);
void process_await_stopped(pid_t pid);

/* Gone, or a zombie that nobody has reaped. */
bool process_is_gone(pid_t pid);

/* Fails the test if one of them is left over after within_ms; it is killed then. */
void process_assert_gone(const pid_t *pids, int n, int within_ms);

#endif
