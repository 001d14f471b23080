/* A program on a terminal of so many columns, and what a person sees there in the end. */
#ifndef MNIST_DDP_TESTS_SUPPORT_SCREEN_H
#define MNIST_DDP_TESTS_SUPPORT_SCREEN_H

#include "tests/support/program.h"

#include <stdbool.h>

typedef struct screen {
    int from, into; /* the terminal's ends */
    int columns;
    program program;
    char *bytes; /* all that was written so far; a zero byte after it */
    size_t size_bytes;
    char
        *lines; /* by screen_finish: what is seen, rows that a line has filled joined to one line */
} screen;

/* Starts argv[0]; its stdout is the terminal if `out` is set, and its stderr is. */
void screen_start(int columns, bool out, const char *const *argv, screen *s);

/* Its stdin is the terminal too, and what is typed there. The terminal is nobody's controlling one.
 */
void screen_start_typing(int columns, const char *const *argv, screen *s);
void screen_type(screen *s, const char *keys);

/* Another width. */
void screen_resize(screen *s, int columns);

/* Reads until all that was written holds `words`; fails the test if the program ends before, or
 * after RUN_S. */
void screen_await(screen *s, const char *words);

/* Reads until the program ends, and makes `lines`. */
void screen_finish(screen *s);

void screen_close(screen *s);

#endif
