/* The one table of settings: flags, environment variables, configuration keys and help. */
#ifndef MNIST_DDP_APP_OPTIONS_OPTIONS_TABLE_H
#define MNIST_DDP_APP_OPTIONS_OPTIONS_TABLE_H

#include "app/options/options.h"

#include <stdbool.h>
#include <stddef.h>

typedef enum option_kind {
    OPTION_TEXT,    /* char *  */
    OPTION_WORD,    /* char *, one of the words in `value` */
    OPTION_INTEGER, /* int64_t */
    OPTION_REAL,    /* double  */
    OPTION_SWITCH,  /* bool: --name, --no-name */
    OPTION_MODE,    /* char *: --name means the first word in `value`, --name=WORD any of them,
                       --no-name NULL */
    OPTION_REFUSED, /* of torchrun, not supported: `help` says why; only `initial`, its default
                       there, is accepted */
    OPTION_HELP,
    OPTION_VERSION,
} option_kind;

/* Groups of flags, and their headings. */
#define GROUPS(ROW) \
    ROW(TRAINING, "Training") \
    ROW(DEVICE, "Device") \
    ROW(DATA, "Data and results") \
    ROW(LOG, "Log") \
    ROW(PARALLEL, "Data parallelism") \
    ROW(LAUNCHER, "Launcher (as torchrun; also PET_NPROC_PER_NODE, PET_NNODES, ...)") \
    ROW(PROGRAM, "The launched program (mnist_ddp run)") \
    ROW(BENCH, "Benchmark") \
    ROW(MESSAGES, "Messages (as nccl-tests; sizes as 8, 64K, 16M)") \
    ROW(SAMPLER, "Sampler") \
    ROW(DEMO, "Demonstration") \
    ROW(SERVER, "Server") \
    ROW(GENERAL, "General")

#define GROUP_OF(name, title) GROUP_##name,
typedef enum option_group { GROUPS(GROUP_OF) GROUP_COUNT } option_group;

/* Sets of commands, as bits 1 << command, and of benchmarks: a row of `bench` has its bit and those
 * of the benchmarks that know it. */
#define FOR_OF(name, more) FOR_##name = 1 << COMMAND_##name | (more),
#define OR_OF(name, more) | FOR_##name
enum {
    FOR_DP_VS_DDP = 1 << 28,
    FOR_SCALING = 1 << 29,
    FOR_COLLECTIVES = 1 << 30,
    FOR_BENCHMARKS = FOR_DP_VS_DDP | FOR_SCALING | FOR_COLLECTIVES,
    COMMANDS(FOR_OF) FOR_ALL = (0 COMMANDS(OR_OF)) & ~(FOR_RESUME | FOR_HELP | FOR_VERSION),
};

/* Whose a setting of train is. */
typedef enum setting_class {
    PRIVATE,    /* nobody's: each process has its own */
    KEPT,       /* nobody's, but a resume goes on with the run's if it is not given */
    JOB,        /* the job's: all ranks and agents have it alike */
    JOB_KEPT,   /* and a resume goes on with the run's */
    JOB_SPREAD, /* and must have it, if more than one device computes */
    JOB_LENGTH, /* and must have it, if the schedule has an end */
    RUN,        /* the run's: a number, from the first step to the last, over every resume */
    RUN_STATE,  /* the same, if a checkpoint says it in its own way (app/train/run_folder.c) */
    RUN_ORDER,
    RUN_RATE,
    RUN_SPLIT,
    RUN_SUMS,
} setting_class;

static inline bool setting_is_kept(setting_class class)
{
    return class == KEPT || class >= JOB_KEPT;
}

/* Why a run's value must stay; NULL: it need not. */
const char *setting_why(setting_class class);

typedef struct option_row {
    const char *name; /* "batch-size" */
    option_kind kind;
    option_group group;
    unsigned commands;
    setting_class class;
    size_t offset;       /* in options */
    double low, high;    /* of numbers: both allowed */
    const char *initial; /* the default as one would type it; NULL: NULL, -1 or false */
    const char *value;   /* how the help writes the value: "N"; "mlp|cnn" */
    const char *help;
    const char *aliases; /* further names, separated by blanks; "-r": a letter; NULL */
} option_row;

extern const option_row options_table[];
extern const size_t options_table_count;

enum { OPTION_NAME_BYTES = 64 };

/* Spelling i of a row: its name, its aliases, and "no-" + name of a switch or mode, with dashes;
 * false past the last one. *negated: it is that "no-" form. */
bool options_table_spelling(const option_row *row, int i, char out[OPTION_NAME_BYTES],
                            bool *negated);

typedef struct option_match {
    const option_row *row;
    bool negated;
} option_match;

/* `name` with dashes for underscores; an empty string if it is too long to be one of ours. */
void options_table_normalize(const char *name, char out[OPTION_NAME_BYTES]);

/* The row with this (normalized) spelling among those for `commands`. */
bool options_table_find(const char *name, unsigned commands, option_match *out);

/* The row that alone has a spelling beginning with `name`. Returns how many have: *out is set if
 * any, `candidates` lists all ("--a, --b"). */
int options_table_find_prefix(const char *name, unsigned commands, option_match *out,
                              char *candidates, size_t size_bytes);

/* Writes the nearest spelling to a name that is none, or "". */
void options_table_nearest(const char *name, unsigned commands, char out[OPTION_NAME_BYTES]);

/* Text to setting: one row's value, checked. */

/* Where a setting came from; a higher one wins. As in options.given. */
typedef enum option_source {
    SOURCE_DEFAULT,
    SOURCE_FILE,
    SOURCE_ENVIRONMENT,
    SOURCE_COMMAND_LINE,
} option_source;

/* "default", "file", "environment", "flag": as config.json spells it. */
const char *options_value_source_name(option_source source);

/* Checks `text` as a value of the row and stores it unless a higher source has set it already.
 * `where` ("--epochs", "MNIST_DDP_EPOCHS", "run.yaml:3: epochs") begins the message of
 * STATUS_INVALID. */
status options_value_set(options *opts, option_match match, const char *text, option_source source,
                         const char *where);

/* The same of the row with this name. */
status options_value_set_named(options *opts, const char *name, const char *text,
                               option_source source, const char *where);

/* Where the setting of this name ("batch_size") came from. */
option_source options_value_source(const options *opts, const char *name);

/* "1 to 1000", "one of mlp, cnn", "true or false": what the row allows. */
void options_value_allowed(const option_row *row, char *out, size_t size_bytes);

bool options_value_wanted(const option_row *row); /* --name VALUE, not a switch */

#endif
