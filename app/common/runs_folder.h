/* runs/: a folder for everything that one command leaves. */
#ifndef MNIST_DDP_APP_COMMON_RUNS_FOLDER_H
#define MNIST_DDP_APP_COMMON_RUNS_FOLDER_H

#include "base/file.h"

#include <stdbool.h>

/* Makes a new folder runs/<local time>-<what> in the working directory, with "-2" after it if there
 * is one already, and sets `path` (FILE_PATH_BYTES). STATUS_IO. */
status runs_folder_make(const char *what, char *path);

/* The folder in runs/ that has the newest file of this name, in `path` (FILE_PATH_BYTES). *found:
 * false if none has one. STATUS_IO. */
status runs_folder_newest(const char *file, char *path, bool *found);

/* The path of a model, in `path` (FILE_PATH_BYTES): the one that was `named`; if that is NULL, the
 * folder in runs/ that has the newest, which is logged. STATUS_INVALID if there is none or the path
 * is too long, STATUS_IO. */
status runs_folder_model(const char *named, char *path);

#endif
