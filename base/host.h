/* What this host and its processes say of themselves. */
#ifndef MNIST_DDP_BASE_HOST_H
#define MNIST_DDP_BASE_HOST_H

#include "base/file.h"
#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* Variables of the environment. */

/* The variable's text; NULL if it is not set or empty, which mean the same, as in PyTorch. */
const char *environment_text(const char *name);

/* The machine that this process is on. */

/* The same number on all processes of a running kernel, and on no other's; 0: not known. */
uint64_t host_number(void);

/* Other processes, as a message names them. */

/* "pid 4711 (python train.py)": its command line, cut; "?" if it cannot be read. */
void process_name(int pid, char *out, size_t size_bytes);

/* Programs by name. */

/* Looks for a program as execvp does: in the folders of $PATH, or at `name` itself if it has a
 * slash. `out` is its path; false if there is none that this user may execute. */
bool executable_find(const char *name, char out[FILE_PATH_BYTES]);

/* How many files and connections this process may have open at once. */

/* Raises the soft limit to the hard one: the usual 1,024 are too few for a job of so many ranks.
 * Returns the soft limit that there was, for the programs that this process starts: those that use
 * select() break beyond 1,023. */
uint64_t file_limit_raise(void);

/* Sets the soft limit. Safe between fork and exec. */
void file_limit_set(uint64_t soft);

/* Why no descriptor was to be had (errno): if it was this limit, with what to do. */
const char *file_limit_reason(int error);

/* STATUS_IO, with what to do, unless n more descriptors can be had now. */
status file_limit_check(int n);

#endif
