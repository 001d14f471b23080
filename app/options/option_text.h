/* What help, manual and completion say of a setting: the same words in each. */
#ifndef MNIST_DDP_APP_OPTIONS_OPTION_TEXT_H
#define MNIST_DDP_APP_OPTIONS_OPTION_TEXT_H

#include "app/options/command_table.h"
#include "app/options/options_table.h"

enum { OPTION_TEXT_BYTES = 512 };

/* "Data parallelism", a heading. */
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
