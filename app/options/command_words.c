#include "app/options/command_words.h"

#include "app/options/command_table.h"

#include <stdlib.h>
#include <string.h>

enum { SHOWN_BYTES = 80 };

/* "doctor run ...": the command line of a run, after the word doctor. */
static status take_examined(options *opts, const char *word)
{
    TRY(command_table_find(word, &opts->examined));
    if (opts->examined != COMMAND_TRAIN && opts->examined != COMMAND_RUN)
        return FAIL(STATUS_INVALID,
                    "doctor %.*s: it looks at runs of train and run; one command is enough",
                    SHOWN_BYTES, word);
    return STATUS_OK;
}

static bool shows_data(const options *opts)
{
    return opts->command == COMMAND_DATA && opts->action != NULL &&
           strcmp(opts->action, "show") == 0;
}

bool command_words_are_free(const options *opts)
{
    return shows_data(opts) || opts->command == COMMAND_STORE;
}

/* A picture of predict, an index of data show, a key or value of store. */
static status take_file(options *opts, const char *word)
{
    size_t n = (size_t)opts->n_files + 1;
    const char **files = realloc(opts->files, n * sizeof *files);
    if (files == NULL)
        return FAIL(STATUS_NO_MEMORY, "the list of %zu files", n);
    files[opts->n_files++] = word;
    opts->files = files;
    return STATUS_OK;
}

/* A run folder of the report, what serve shows, eval tests or resume goes on with. */
static status take_run(options *opts, const char *word)
{
    if (opts->command != COMMAND_REPORT && opts->n_runs == 1)
        return FAIL(STATUS_INVALID, "%s: '%.*s': one run is enough",
                    command_table[opts->resumes ? COMMAND_RESUME : opts->command].name, SHOWN_BYTES,
                    word);
    if (opts->n_runs == OPTIONS_MAX_RUNS)
        return FAIL(STATUS_INVALID, "report: at most %d runs on one page", OPTIONS_MAX_RUNS);
    opts->runs[opts->n_runs++] = word;
    return STATUS_OK;
}

status command_words_take(options *opts, const char *word, int at)
{
    command about = opts->command == COMMAND_HELP ? opts->help_topic : opts->command;
    const command_row *benchmark = NULL;
    opts->words++;
    if (at == 0) {
        TRY(command_table_find(word, &opts->command));
        opts->resumes = opts->command == COMMAND_RESUME;
        opts->command = opts->resumes ? COMMAND_TRAIN : opts->command;
        return STATUS_OK;
    }
    opts->help_all = at == 1 && opts->command == COMMAND_HELP && strcmp(word, "all") == 0;
    if (at == 1 && opts->command == COMMAND_HELP && !opts->help_all)
        return command_table_find(word, &opts->help_topic);
    if (at == 1 && opts->command == COMMAND_COMPLETION) {
        opts->shell = word;
        return STATUS_OK;
    }
    if (at == 1 && (opts->command == COMMAND_DATA || opts->command == COMMAND_STORE ||
                    opts->command == COMMAND_DEMO)) {
        opts->action = word;
        return STATUS_OK;
    }
    if (at == 1 && opts->command == COMMAND_DOCTOR)
        return take_examined(opts, word);
    if (opts->command == COMMAND_PREDICT || command_words_are_free(opts))
        return take_file(opts, word);
    if (opts->command == COMMAND_REPORT || opts->command == COMMAND_SERVE ||
        opts->command == COMMAND_EVAL || opts->resumes)
        return take_run(opts, word);
    if (about != COMMAND_BENCH || opts->benchmark != NULL) {
        opts->words--; /* the second pass refuses it */
        return STATUS_OK;
    }
    TRY(command_table_find_benchmark(word, &benchmark));
    opts->benchmark = benchmark->name;
    return STATUS_OK;
}
