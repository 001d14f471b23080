/* The words of the command line that are no values of flags: the command, and what it is about. */
#ifndef MNIST_DDP_APP_OPTIONS_COMMAND_WORDS_H
#define MNIST_DDP_APP_OPTIONS_COMMAND_WORDS_H

#include "app/options/options.h"

#include <stdbool.h>

/* Takes word number `at`, and counts it in opts->words unless it is one too many. The options keep
 * the pointer. STATUS_INVALID, with what is expected; STATUS_NO_MEMORY. */
status command_words_take(options *opts, const char *word, int at);

/* Whether any word may follow: after a switch too one that could be the switch's value. */
bool command_words_are_free(const options *opts);

#endif
