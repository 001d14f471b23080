/* runs/: a folder for everything that one command leaves. */
#ifndef MNIST_DDP_APP_COMMON_RUNS_FOLDER_H
#define MNIST_DDP_APP_COMMON_RUNS_FOLDER_H

#include "base/file.h"

/* Makes a new folder runs/<local time>-<what> in the working directory, with "-2" after it if there
 * is one already, and sets `path` (FILE_PATH_BYTES). STATUS_IO. */
status runs_folder_make(const char *what, char *path);

#endif
