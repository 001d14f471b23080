#include "app/train/eval_settings.h"

#include "app/common/run_config.h"
#include "app/common/run_files.h"
#include "app/common/runs_folder.h"
#include "base/file.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

/* The run that a checkpoint is of, and the command that evaluates it. */
typedef struct source {
    options *opts;
    char run[FILE_PATH_BYTES];
    run_config config;
} source;

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

static status take_data_folder(source *s)
{
    char *folder = NULL;
    bool given = false;
    status st = STATUS_OK;
    TRY(run_config_data_folder(&s->config, &folder, &given));
    if (folder != NULL && file_exists(folder))
        st = take(s, "data-dir", folder);
    else if (given)
        LOG_W("%s was trained with --data-dir %s, which is not there", s->run, folder);
    free(folder);
    return st;
}

/* RUN, --checkpoint or the newest in runs/. */
static status choose_checkpoint(source *s)
{
    char path[FILE_PATH_BYTES];
    const options *opts = s->opts;
    const char *run = opts->n_runs > 0 ? opts->runs[0] : NULL;
    TRY(runs_folder_model(run != NULL ? run : opts->checkpoint, path));
    return take(s, "checkpoint", path);
}

status eval_settings_complete(options *opts)
{
    source s = {.opts = opts};
    bool same = false;
    if (opts->command != COMMAND_EVAL)
        return STATUS_OK;
    TRY(choose_checkpoint(&s));
    status st = run_config_find(opts->checkpoint, s.run, &s.config);
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
