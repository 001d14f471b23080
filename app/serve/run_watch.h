/* The folder of a run that may be under way: the lines of its metrics as they come, and its newest
 * model. */
#ifndef MNIST_DDP_APP_SERVE_RUN_WATCH_H
#define MNIST_DDP_APP_SERVE_RUN_WATCH_H

#include "base/file.h"

#include <jansson.h>
#include <stdbool.h>
#include <sys/stat.h>

enum { RUN_WATCH_GENERATION_BYTES = 64 };

typedef struct run_watch {
    char folder[FILE_PATH_BYTES];     /* "": there is only a model */
    char model_path[FILE_PATH_BYTES]; /* of the safetensors file */
    struct stat model;                /* that the caller has dealt with, or zeros */
} run_watch;

/* `path`: a folder, in which nothing need be yet, or a safetensors file. STATUS_INVALID if it is
 * neither. */
status run_watch_open(const char *path, run_watch *out);

/* Whether there is another model than the one that was dealt with. *found is then it: the caller
 * who has dealt with it assigns it to watch->model. */
bool run_watch_model_is_new(const run_watch *watch, struct stat *found);

/* What metrics.jsonl (docs/run-folder.md) holds from byte `from` on, as
 *
 *     {"name": "a", "done": false, "generation": "...", "from": 0, "next": 4711, "lines": [...]}
 *
 * with whole lines only, and at most some 200 KB of them: the rest is had with from = next. If a
 * resume has begun the file anew, `generation` (NULL or the last answer's, of
 * RUN_WATCH_GENERATION_BYTES at most) is another one, and the answer is from its beginning. The run
 * is done if its latest start has left a result.json. NULL if there is no folder. What cannot be
 * read is left out. */
json_t *run_watch_lines(const run_watch *watch, const char *generation, long long from);

#endif
