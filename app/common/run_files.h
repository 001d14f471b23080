/* The names of what a run or a benchmark leaves in its folder (docs/run-folder.md). Those of the
 * checkpoints are in model/checkpoint.h. And runs/: a folder for everything that one
 * command leaves. */
#ifndef MNIST_DDP_APP_COMMON_RUN_FILES_H
#define MNIST_DDP_APP_COMMON_RUN_FILES_H

#include "app/options/options_table.h"
#include "base/file.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

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

/* config.json of a run folder: what the run was told, and what it is. People, `mnist_ddp report`
 * and a resume read it.
 *
 *     {"format": 1,
 *      "date": "2026-11-22T23:42:15Z",             start of the process that wrote it
 *      "command": ["mnist_ddp", "--lr", "0.1"],    its words
 *      "starts": [{"date": "...", "step": 0}],     of the run: the first, and each resume
 *      "run": {"system": "mnist_ddp 0.1.0", "world": 2, "hosts": ["a"], ...},
 *      "settings": {
 *       "lr": {"value": 0.1, "origin": "flag"},
 *       "seed": {"value": 1, "origin": "default"}, ...}}
 *
 * `run` is what came of the settings (result_describe), under the names of result.json.
 * `settings` has every setting of `train` in the order of the help, by its flag's name with
 * underscores. A value is a JSON number, string or boolean; null if it was not given and has no
 * default of its own. Numbers have as many digits as it takes to read the same double back. An
 * origin is a word of options_value_source_name.
 *
 * Each start of the run writes the file anew, whole or not at all, after a resume's settings were
 * checked. A resume that takes a setting from here keeps its origin (options_value_set). */

enum { RUN_CONFIG_DATE_BYTES = 32 };

/* Now, in UTC: "2026-11-22T23:42:15Z". */
void run_config_date(char out[RUN_CONFIG_DATE_BYTES]);

/* The words of the command line, for JSON. Bytes that are no UTF-8 become question marks. */
json_t *run_config_command(const options *opts);

/* One start of a run. */
typedef struct run_start {
    const options *opts;
    const json_t *run; /* borrowed */
    const char *date;
    int64_t step; /* the step of the checkpoint that it continues; 0: it begins */
} run_start;

/* Writes the file. If the run continues, the starts that the file there names stay in the list; a
 * file that is missing or damaged names none. */
status run_config_write(const char *folder, const run_start *start);

/* What a file says. run_config_close accepts a zeroed one. */
typedef struct run_config {
    json_t *document; /* an object; NULL: the folder has no config.json */
} run_config;

/* STATUS_INVALID if the file is no JSON object with settings or of a format unknown here, STATUS_IO
 * if it cannot be read. A folder without it, as older programs leave, is fine. */
status run_config_read(const char *folder, run_config *out);

/* The same of the run that a model is of. `path`: the run's folder, a checkpoint's in it, or a
 * model's file in either. `run`: the folder. STATUS_INVALID also if the path is too long. */
status run_config_find(const char *path, char run[FILE_PATH_BYTES], run_config *out);
void run_config_close(run_config *config);

/* The value of a setting, as one would type it after "--name=": "0.1", "true". `name` is a flag's,
 * with dashes or underscores. *text is the caller's to free; NULL if the setting had no value.
 * *found is false, and the rest left alone, if the file has no such setting. STATUS_INVALID if what
 * stands there is no value with an origin. */
status run_config_setting(const run_config *config, const char *name, bool *found, char **text,
                          option_source *origin);

/* On which data the run was trained that a model is of. */
typedef struct data_source {
    char run[FILE_PATH_BYTES];
    char *dataset; /* NULL: not known */
    char *folder;  /* the --data-dir that it was given, else the folder that it found, but not if
                      $MNIST_DDP_DATA names one now. NULL: not known; it may be there no more */
    bool is_given; /* it is a --data-dir */
} data_source;

/* `path` as in run_config_find. What is known before a failure is in *out all the same, to be freed
 * in any case. Fails like run_config_find and run_config_setting. */
status data_source_find(const char *path, data_source *out);
void data_source_free(data_source *data);

/* The value that these options have, spelled alike; free with free(); NULL if it is not given and
 * has no default of its own. */
status run_config_text(const option_row *row, const options *opts, char **out);

#endif
