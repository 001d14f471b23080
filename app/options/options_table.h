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
    OPTION_REFUSED, /* torchrun's, not supported: `help` says why; only `initial`, its default
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
    JOB_KEPT,   /* the job's, but a resume goes on with the run's if it is not given */
    JOB_SPREAD, /* the job's; a resume must have the run's if more than one device computes */
    JOB_LENGTH, /* the job's; a resume must have the run's if the schedule has an end */
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
    double low, high;    /* the least and the greatest number, both allowed */
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

/* The commands and the benchmarks: their names, and what their help says beside their flags. */

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

/* The row of a benchmark by its own name, or that of the command if it is NULL. */
const command_row *command_table_row(command which, const char *benchmark);

/* The words of the command line that are no values of flags: the command, and what it is about. */

/* Takes word number `at`, and counts it in opts->words unless it is one too many. The options keep
 * the pointer. STATUS_INVALID, with what is expected; STATUS_NO_MEMORY. */
status command_words_take(options *opts, const char *word, int at);

/* Whether any word may follow: after a switch too one that could be the switch's value. */
bool command_words_are_free(const options *opts);

/* "Did you mean": the candidate with the fewest single-letter edits. */

enum { NEAREST_BYTES = 64 };

typedef struct nearest {
    const char *word;         /* what was typed; not owned */
    char best[NEAREST_BYTES]; /* "" while nothing is near */
    int distance;             /* edits between best and the word */
} nearest;

void nearest_init(nearest *search, const char *word);

/* Keeps the candidate if it is nearer than all before and near enough to be meant. */
void nearest_offer(nearest *search, const char *candidate);

bool nearest_found(const nearest *search);

/* The row named `word` of a table of `n` rows, each of which begins with its name. -1 if none is;
 * `hint` then says what could be meant: "did you mean 'eval'?", or "there are train, eval, ...". */
enum { HINT_BYTES = 256 };
int names_find(const char *word, const void *rows, int n, size_t row_bytes, char hint[HINT_BYTES]);

/* Words of PyTorch's scripts, of nccl-tests and of other launchers that are none here, and what to
 * do instead: the table of "Words that are none here" in docs/for-pytorch-users.md. */

typedef struct foreign_word {
    const char *words;  /* separated by blanks: flags with their dashes, or a command */
    unsigned commands;  /* to which it is none of their own: FOR_TRAIN | ... */
    const char *answer; /* as in that document */
} foreign_word;

extern const foreign_word foreign_words[];
extern const size_t foreign_words_count;

/* What to do instead of `word`, as it was typed ("--num_workers=4"; "--mode=rpc"). NULL: it is not
 * in the table, or not for these commands. */
const char *foreign_words_answer(const char *word, unsigned commands);

/* What help, manual and completion say of a setting: the same words in each. */

enum { OPTION_TEXT_BYTES = 512 };

extern const char *const option_group_titles[GROUP_COUNT];

/* "--model", or "--[no-]overlap" if the default is on. All return out. */
const char *option_text_flag(const option_row *row, char out[OPTION_TEXT_BYTES]);

/* How the value is written after it: "mlp|cnn", "[=must|auto]"; "" if there is none. */
const char *option_text_value(const option_row *row, char out[OPTION_TEXT_BYTES]);

/* Its help, in the words of the commands with these flags; FOR_ALL: in those of all. */
const char *option_text_help(unsigned flags, const option_row *row, char out[OPTION_TEXT_BYTES]);

/* What it means, its default for a command or benchmark, and its other spellings. */
const char *option_text_meaning(const command_row *of, const option_row *row,
                                char out[OPTION_TEXT_BYTES]);

#endif
