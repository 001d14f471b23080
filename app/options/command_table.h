/* The commands and the benchmarks: their names, and what their help says beside their flags. */
#ifndef MNIST_DDP_APP_OPTIONS_COMMAND_TABLE_H
#define MNIST_DDP_APP_OPTIONS_COMMAND_TABLE_H

#include "app/options/options_table.h"

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
    int distance;             /* of best: edits */
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

/* What to do instead of `word`, as it was typed ("--num_workers=4"; "--mode=tp"). NULL: it is not
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
