/* Text from outside, made safe for a terminal or a log. */
#ifndef MNIST_DDP_BASE_PRINTABLE_H
#define MNIST_DDP_BASE_PRINTABLE_H

#include <stddef.h>

/* What may stand as it is besides printable UTF-8. */
typedef enum printable_kind {
    PRINTABLE_LINE, /* nothing: newlines are escaped too */
    /* Newlines, if the next line begins with a blank or there is none: no line of it looks like one
     * of ours. */
    PRINTABLE_LINES,
} printable_kind;

/* Sets out[0 .. size_bytes) to `text` and a zero, cut if it does not fit. Control
 * characters, and bytes that are no UTF-8, become \x1b and so on, newlines \n; never in part. */
void printable_copy(printable_kind kind, const char *text, char *out, size_t size_bytes);

/* The same of n bytes, as a line; a zero among them is \x00. */
void printable_bytes(const void *bytes, size_t n, char *out, size_t size_bytes);

#endif
