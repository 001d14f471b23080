/* Words of a command line that are no values: commands, what is near them, and those of others. */
#ifndef MNIST_DDP_APP_OPTIONS_COMMAND_WORDS_H
#define MNIST_DDP_APP_OPTIONS_COMMAND_WORDS_H

#include "app/options/options.h"

#include <stdbool.h>
#include <stddef.h>

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

#endif
