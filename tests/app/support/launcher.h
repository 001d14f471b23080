/* agent_run in a process of its own. It executes the very test program again; with TEST_WORKER set
 * that acts as a worker (launched_worker.h). */
#ifndef MNIST_DDP_TESTS_APP_SUPPORT_LAUNCHER_H
#define MNIST_DDP_TESTS_APP_SUPPORT_LAUNCHER_H

#include "app/launch/agent.h"
#include "base/file.h"
#include "tests/support/suite.h"

#include <sys/resource.h>
#include <sys/types.h>

extern char *launcher_output; /* stderr of the last launcher */

/* Before and after a test: the folder of the logs and of what workers note. */
void launcher_setup(void);

void launcher_teardown(void);

/* One node with `nproc` ranks. */
worker_spec launcher_plan(int nproc);

/* The path of `name` in the folder. */
void launcher_path(const char *name, char out[FILE_PATH_BYTES]);

/* Starts a launcher in a process of its own; its stderr goes to folder/`log`. */
pid_t launcher_start(const char *mode, const worker_spec *plan, const char *log, rlim_t max_files);

/* Waits for the launcher and reads what it wrote. Its exit code; -1 - signal if one ended it. */
int launcher_finish(pid_t pid, const char *log);

/* Starts one node and waits for it. */
int launcher_run(const char *mode, int nproc);

void launcher_check_said(const char *words);

/* The process that a rank has noted, once it has; 0 if it does not by the deadline. */
pid_t launcher_rank(int rank);

/* Fails the test if a rank is left over. */
void launcher_check_gone(int nproc, int64_t within_ms);

#endif
