/* The names of what a run or a benchmark leaves in its folder (docs/run-folder.md). Those of the
 * checkpoints are in model/checkpoint.h. And runs/: a folder for everything that one
 * command leaves. */
#ifndef MNIST_DDP_APP_COMMON_RUN_FILES_H
#define MNIST_DDP_APP_COMMON_RUN_FILES_H

#include "base/file.h"

#include <stdbool.h>

#define RUN_FILE_CONFIG "config.json"
#define RUN_FILE_EVAL "eval.json"
#define RUN_FILE_LOG "train.log"
#define RUN_FILE_METRICS "metrics.jsonl"
#define RUN_FILE_TRACE "trace_steps.json"
#define RUN_FILE_REPORT "report.html"
#define RUN_FILE_RESULT "result.json"
#define RUN_FILE_ROUND "round.json"

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
