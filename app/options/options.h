/* Every setting of the program: one table makes the flags, the environment, the configuration file
 * and the help.
 *
 * Order of precedence: command line, then MNIST_DDP_<NAME>, then --config FILE, then the default.
 * "--batch-size" and "--batch_size" are the same flag, as are "batch-size" and "batch_size" in a
 * file.
 */
#ifndef MNIST_DDP_APP_OPTIONS_OPTIONS_H
#define MNIST_DDP_APP_OPTIONS_OPTIONS_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

/* RESUME is of the table alone: options.command is COMMAND_TRAIN. The second column: bits of its
 * benchmarks (app/options/options_table.h). */
/* clang-format off */
#define COMMANDS(ROW) \
    ROW(TRAIN, 0) ROW(RESUME, 0) ROW(EVAL, 0) ROW(PREDICT, 0) ROW(SERVE, 0) ROW(REPORT, 0) \
    ROW(SAMPLER, 0) ROW(DATA, 0) ROW(RUN, 0) ROW(STORE, 0) ROW(BENCH, FOR_BENCHMARKS) ROW(DEMO, 0) \
    ROW(DOCTOR, 0) ROW(ENV, 0) ROW(COMPLETION, 0) ROW(MANUAL, 0) ROW(HELP, 0) ROW(VERSION, 0)
/* clang-format on */

#define COMMAND_OF(name, more) COMMAND_##name,
typedef enum command { COMMANDS(COMMAND_OF) } command;

enum { OPTIONS_MAX_RUNS = 8 };

/* Strings are owned by the options. A setting that is not given and has no default in its row is
 * NULL, -1 or false. app/options/training_values.h reads those that are more than a number. What a
 * command has alone is a struct of that command. */
typedef struct options {
    command command;
    command help_topic;    /* what `help` is asked about; COMMAND_HELP: the program */
    bool help_all;         /* `help` shows every flag of every command */
    command examined;      /* what `doctor` examines: COMMAND_TRAIN or COMMAND_RUN */
    const char *action;    /* what `data`, `store` or `demo` is to do: argv's own; NULL: not said */
    const char *shell;     /* what `completion` is for: argv's own; NULL: none was named */
    const char *benchmark; /* what `bench` runs, as benchmark_table names it; NULL: none named */
    bool resumes;          /* the command was "resume" */
    int words;             /* on the command line: the command, and what it is about */

    /* mnist_ddp predict: files; data show: indices; store: keys and values */
    const char **files; /* argv's own words, in an array of the options; NULL: none */
    int n_files;
    char **program; /* run's PROGRAM ARGS, argv's own, NULL at the end; NULL: none. store's: what
                       follows "--" */

    /* mnist_ddp report; of eval and serve, the first alone */
    const char *runs[OPTIONS_MAX_RUNS]; /* run folders: argv's own */
    int n_runs;

    /* The settings' fields. */
    /* clang-format off */
#define TEXT(field, ...) char *field;
#define WORD(field, ...) char *field;
#define MODE(field, ...) char *field;
#define INTEGER(field, ...) int64_t field;
#define REAL(field, ...) double field;
#define SWITCH(field, ...) bool field;
#define NOTHING(...)
#define BEGIN struct {
#define END(group) } group;
#define OF(group)
#include "app/options/option_rows.inc"
    /* clang-format on */

    char **command_line;     /* all words, the program's first; argv's own, NULL at the end */
    bool launch_flags_given; /* a launcher flag stood on the command line */
    uint8_t given[192];      /* per table row: 0 default, 1 file, 2 environment, 3 command line */
} options;

/* Reads the command line, the environment and the configuration file. On failure the message names
 * the flag, variable or file:line, what is allowed and, for an unknown name, the nearest known one.
 */
status options_read(int argc, char **argv, options *out);

/* What no single setting can tell. */
status options_check(options *opts);

/* A warning for each flag of the command line that only another one makes use of. */
void options_say_unused(const options *opts);

/* Both. */
status options_parse(int argc, char **argv, options *out);
void options_free(options *opts);

/* How many words of the command line from word `at` on are the flag `name`, which takes a value,
 * however it is spelled: 1, 2; 0: it is another word. */
int options_words_of(const options *opts, int at, const char *name);

/* Was the setting of this name ("batch_size") given anywhere (not a default)? */
bool options_given(const options *opts, const char *name);

/* Prints the help that was asked for (COMMAND_HELP) on stdout, from the tables: the program's on
 * one screen, that of a command or benchmark with its flags in groups. */
void options_print_help(const options *opts);

#endif
