#include "app/train/eval_settings.h"

#include "app/common/run_config.h"
#include "app/common/run_files.h"
#include "base/environment.h"
#include "base/file.h"
#include "base/log.h"
#include "model/checkpoint_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The run that a checkpoint is of, and the command that evaluates it. */
typedef struct source {
    options *opts;
    char run[FILE_PATH_BYTES];
    run_config config;
} source;

/* Cuts off the path's last name. */
static void go_up(char *path)
{
    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--)
        path[n - 1] = '\0';
    char *slash = strrchr(path, '/');
    if (slash != NULL && slash != path)
        *slash = '\0';
    else
        strcpy(path, slash != NULL ? "/" : ".");
}

/* The run that a checkpoint is of: given are its folder, a checkpoint's in it, or a model's file in
 * either. */
static status find_run(const char *checkpoint, char run[FILE_PATH_BYTES], bool *found)
{
    char config[FILE_PATH_BYTES];
    struct stat info;
    if (snprintf(run, FILE_PATH_BYTES, "%s", checkpoint) >= FILE_PATH_BYTES)
        return FAIL(STATUS_INVALID, "--checkpoint is too long");
    if (stat(run, &info) == 0 && !S_ISDIR(info.st_mode))
        go_up(run);
    TRY(file_join(run, RUN_FILE_CONFIG, config));
    *found = file_exists(config);
    if (*found)
        return STATUS_OK;
    go_up(run);
    const char *slash = strrchr(run, '/');
    if (strcmp(slash != NULL ? slash + 1 : run, CHECKPOINT_FOLDER) != 0)
        return STATUS_OK;
    go_up(run);
    TRY(file_join(run, RUN_FILE_CONFIG, config));
    *found = file_exists(config);
    return STATUS_OK;
}

static status take(source *s, const char *name, const char *text)
{
    option_match match;
    bool known = options_table_find(name, FOR_EVAL, &match);
    ASSERT(known);
    return options_value_set(s->opts, match, text, SOURCE_COMMAND_LINE, RUN_FILE_CONFIG);
}

/* Sets *same to whether the command then reads the run's data set. */
static status take_dataset(source *s, bool *same)
{
    char *was = NULL;
    bool found = false;
    option_source origin;
    status st = STATUS_OK;
    TRY(run_config_setting(&s->config, "dataset", &found, &was, &origin));
    if (was != NULL && !options_given(s->opts, "dataset"))
        st = take(s, "dataset", was);
    *same = was == NULL || strcmp(was, s->opts->dataset) == 0;
    if (st == STATUS_OK && !*same)
        LOG_W("%s was trained with --dataset %s, and is evaluated with --dataset %s", s->run, was,
              s->opts->dataset);
    free(was);
    return st;
}

/* The folder that the run was given; else, if none is given now, the one that it found. */
static status take_data_folder(source *s)
{
    char *given = NULL;
    bool found = false;
    option_source origin;
    status st = STATUS_OK;
    TRY(run_config_setting(&s->config, "data-dir", &found, &given, &origin));
    const char *folder = given;
    if (folder == NULL && environment_text("MNIST_DDP_DATA") == NULL)
        folder = json_string_value(
            json_object_get(json_object_get(s->config.document, "run"), "data_folder"));
    if (folder != NULL && file_exists(folder))
        st = take(s, "data-dir", folder);
    else if (given != NULL)
        LOG_W("%s was trained with --data-dir %s, which is not there", s->run, given);
    free(given);
    return st;
}

status eval_settings_complete(options *opts)
{
    source s = {.opts = opts};
    bool found = false, same = false;
    if (opts->command != COMMAND_EVAL || opts->checkpoint == NULL)
        return STATUS_OK;
    TRY(find_run(opts->checkpoint, s.run, &found));
    status st = found ? run_config_read(s.run, &s.config) : STATUS_OK;
    if (st == STATUS_OK && s.config.document != NULL) {
        st = take_dataset(&s, &same);
        if (st == STATUS_OK && same && !options_given(opts, "data-dir"))
            st = take_data_folder(&s);
    }
    run_config_close(&s.config);
    if (st == STATUS_OK || st == STATUS_NO_MEMORY)
        return st;
    LOG_W("the data set is not taken from the run: %s", status_text());
    return STATUS_OK;
}
