/* The commands and the benchmarks: their names, and what their help says beside their flags. */
#ifndef MNIST_DDP_APP_OPTIONS_COMMAND_TABLE_H
#define MNIST_DDP_APP_OPTIONS_COMMAND_TABLE_H

#include "app/options/options.h"

enum { COMMAND_DEFAULTS_MAX = 8, COMMAND_EXAMPLES_MAX = 3 };

/* A setting whose default differs from the one in options_table. */
typedef struct command_default {
    const char *setting; /* "world-sizes"; NULL: the list has ended */
    const char *value;   /* as one would type it */
} command_default;

typedef struct command_example {
    const char *line; /* NULL: the list has ended */
    const char *text;
} command_example;

typedef struct command_row {
    const char *name;    /* "eval"; of a benchmark "scaling" */
    const char *usage;   /* the whole line, without "Usage: " */
    const char *summary; /* half a line, no period */
    const char *details; /* a paragraph, without line breaks; NULL */
    unsigned flags;      /* FOR_... (app/options/options_table.h): whose flags it takes */
    bool minor;          /* the program's help only names it */
    command_default defaults[COMMAND_DEFAULTS_MAX];
    command_example examples[COMMAND_EXAMPLES_MAX];
} command_row;

/* By command. */
extern const command_row command_table[];
extern const int command_table_count;

/* In the order in which they are listed. */
extern const command_row benchmark_table[];
extern const int benchmark_table_count;

/* STATUS_INVALID if no command has this name: the message names the nearest, or all. */
status command_table_find(const char *word, command *out);

/* The same of the benchmarks. "all_reduce" and "allreduce" are all-reduce. */
status command_table_find_benchmark(const char *word, const command_row **out);

/* The row of a benchmark by its own name, or that of the command if it is NULL. */
const command_row *command_table_row(command which, const char *benchmark);

#endif
