/* Which lines of a worker go to filtered_stdout.log and filtered_stderr.log:
 * --duplicate-stdout-filters, --duplicate-stderr-filters. */
#ifndef MNIST_DDP_APP_LAUNCH_LINE_FILTER_H
#define MNIST_DDP_APP_LAUNCH_LINE_FILTER_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

enum { LINE_FILTER_WORDS = 16, LINE_FILTER_BYTES = 512 };

typedef struct line_filter {
    int n;                         /* words; 0: no line matches */
    int begins[LINE_FILTER_WORDS]; /* of each word, in `text` */
    char text[LINE_FILTER_BYTES];
} line_filter;

/* "apple,orange": two words. Two commas are one comma of a word, as torchrun has it. NULL: none.
 * STATUS_INVALID, with the flag, if there are too many or too long ones. */
status line_filter_parse(const char *flag, const char *list, line_filter *out);

/* Does the line hold one of the words? */
bool line_filter_matches(const line_filter *filter, const char *line, size_t size_bytes);

#endif
