/* The words of a command, collected. */
#ifndef MNIST_DDP_APP_BENCH_WORDS_H
#define MNIST_DDP_APP_BENCH_WORDS_H

#include <stdbool.h>
#include <stddef.h>

enum { BENCH_WORDS = 96, BENCH_WORD_BYTES = 16384 };

typedef struct bench_words {
    char *words[BENCH_WORDS + 1]; /* into text; NULL at the end */
    int n;
    char text[BENCH_WORD_BYTES];
    size_t used;
    bool overflow; /* a word found no room; bench_child_run refuses the command */
} bench_words;

void bench_words_init(bench_words *out);

/* Appends one word. */
void bench_words_add(bench_words *words, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* The command as one would type it in a shell, cut at `size_bytes`. */
void bench_words_line(const bench_words *words, char *out, size_t size_bytes);

#endif
