/* The folder of a run that may be under way: the lines of its metrics as they come, and its newest
 * model. */
#ifndef MNIST_DDP_APP_SERVE_RUN_WATCH_H
#define MNIST_DDP_APP_SERVE_RUN_WATCH_H

#include "base/file.h"

#include <jansson.h>
#include <stdbool.h>
#include <sys/stat.h>

typedef struct run_watch {
    char folder[FILE_PATH_BYTES];     /* "": there is only a model */
    char model_path[FILE_PATH_BYTES]; /* of the safetensors file */
    struct stat model;                /* as it was when it was last said to be new; or zeros */
} run_watch;

/* `path`: a folder, in which nothing need be yet, or a safetensors file. STATUS_INVALID if it is
 * neither. */
status run_watch_open(const char *path, run_watch *out);

/* Whether there is a model that was not there at the last call. */
bool run_watch_model_is_new(run_watch *watch);

/* What metrics.jsonl (docs/run-folder.md) holds from byte `from` on, as
 *
 *     {"name": "a", "done": false, "generation": "...", "from": 0, "next": 4711, "lines": [...]}
 *
 * with whole lines only, and at most some 200 KB of them: the rest is had with from = next. Where a
 * resume has begun the file anew, `generation` (NULL or the last answer's) is another one, and the
 * answer is from its beginning. NULL if there is no folder. What cannot be read is left out. */
json_t *run_watch_lines(const run_watch *watch, const char *generation, long long from);

#endif
