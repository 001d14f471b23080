/* Sentences for a terminal of 80 columns. */
#ifndef MNIST_DDP_BASE_PARAGRAPH_H
#define MNIST_DDP_BASE_PARAGRAPH_H

#include <stdio.h>

enum { PARAGRAPH_COLUMNS = 80 };

/* Columns of a text: letters, not bytes. */
int paragraph_width(const char *text);

/* Writes the words of `text` from column `column` on, where the line is now, and ends the line.
 * Lines break between words; the next ones begin at `indent`. */
void paragraph_print(FILE *out, int column, int indent, const char *text);

#endif
