/* Sentences, broken between words at 80 columns, or at the width of a terminal that is narrower. */
#ifndef MNIST_DDP_BASE_PARAGRAPH_H
#define MNIST_DDP_BASE_PARAGRAPH_H

#include <stdio.h>

/* The columns of the terminal as they are now, else $COLUMNS, else 80. */
int paragraph_terminal_columns(int fd);

/* The columns of a line that goes to `out`. */
int paragraph_columns(FILE *out);

/* Columns of a text: letters, not bytes. */
int paragraph_width(const char *text);

/* Writes the words of `text` from column `column` on, where the line is now, and ends the line. The
 * next lines begin at `indent`. */
void paragraph_print(FILE *out, int column, int indent, const char *text);

/* The same for a line that a program may read: it is broken on a terminal only. */
void paragraph_print_line(FILE *out, int column, int indent, const char *text);

#endif
