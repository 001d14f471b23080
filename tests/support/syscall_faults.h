/* A program whose n-th system call on the files of a folder fails, or kills it.
 *
 * The kernel asks us about every such call (seccomp's user notifications), so nothing is missed,
 * whatever thread or process below the program makes it, and no debugger is needed. Counting up
 * until a run makes fewer calls than n visits them all.
 */
#ifndef MNIST_DDP_TESTS_SUPPORT_SYSCALL_FAULTS_H
#define MNIST_DDP_TESTS_SUPPORT_SYSCALL_FAULTS_H

#include "tests/support/program.h"

#include <stdbool.h>

typedef struct syscall_fault {
    const char *folder; /* an absolute path: calls on it and on what is below it count */
    const char *only;   /* calls of this name count; NULL: all that name a file or a descriptor */
    int at;             /* which one, from 1; 0: none */
    int error;          /* the errno it fails with, unmade; 0: SIGKILL to the process before it */
} syscall_fault;

typedef struct syscall_report {
    int calls;     /* that counted; those after the fault, too */
    bool hit;      /* the fault has come */
    char name[24]; /* of the call that it hit, */
    char path[96]; /* and its file, as far as it fits */
} syscall_report;

/* Whether this kernel and this container allow it; says why not. */
bool syscall_faults_allowed(void);

/* Runs argv (NULL at the end) to its end, at most timeout_s. */
program syscall_faults_run(const char *const *argv, const syscall_fault *fault, int timeout_s,
                           syscall_report *report);

#endif
