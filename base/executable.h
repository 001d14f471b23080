/* Programs by name. */
#ifndef MNIST_DDP_BASE_EXECUTABLE_H
#define MNIST_DDP_BASE_EXECUTABLE_H

#include "base/file.h"

/* Looks for a program as execvp does: in the folders of $PATH, or at `name` itself if it has a
 * slash. `out` is its path; false if there is none that this user may execute. */
bool executable_find(const char *name, char out[FILE_PATH_BYTES]);

#endif
