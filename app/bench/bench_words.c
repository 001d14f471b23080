#include "app/bench/bench_words.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void bench_words_init(bench_words *out)
{
    out->words[0] = NULL;
    out->n = 0;
    out->used = 0;
    out->overflow = false;
}

void bench_words_add(bench_words *words, const char *fmt, ...)
{
    va_list args;
    size_t room = sizeof words->text - words->used;
    va_start(args, fmt);
    int length = vsnprintf(words->text + words->used, room, fmt, args);
    va_end(args);
    if (length < 0 || (size_t)length >= room || words->n == BENCH_WORDS) {
        words->overflow = true;
        return;
    }
    words->words[words->n++] = words->text + words->used;
    words->words[words->n] = NULL;
    words->used += (size_t)length + 1;
}

void bench_words_line(const bench_words *words, char *out, size_t size_bytes)
{
    size_t used = 0;
    out[0] = '\0';
    for (int i = 0; i < words->n && used < size_bytes; i++) {
        const char *word = words->words[i];
        const char *quote = word[strcspn(word, " \t\"\\$*?;&|<>()`")] != '\0' ? "'" : "";
        int n = snprintf(out + used, size_bytes - used, "%s%s%s%s", i > 0 ? " " : "", quote, word,
                         quote);
        used += n > 0 ? (size_t)n : 0;
    }
}
