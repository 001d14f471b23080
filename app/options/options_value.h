/* Text to setting: one row's value, checked. */
#ifndef MNIST_DDP_APP_OPTIONS_OPTIONS_VALUE_H
#define MNIST_DDP_APP_OPTIONS_OPTIONS_VALUE_H

#include "app/options/options_table.h"

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

/* Where the setting of this name ("batch_size") came from. */
option_source options_value_source(const options *opts, const char *name);

/* "1 to 1000", "one of mlp, cnn", "true or false": what the row allows. */
void options_value_allowed(const option_row *row, char *out, size_t size_bytes);

bool options_value_wanted(const option_row *row); /* --name VALUE, not a switch */

#endif
