/* One line per event on stderr, with this process's prefix. Thread-safe: a line is one write. It
 * waits for a reader of stderr that is slow, unless a sink takes the lines. */
#ifndef MNIST_DDP_BASE_LOG_H
#define MNIST_DDP_BASE_LOG_H

#include <stddef.h>

typedef enum log_level {
    LOG_ERROR,
    LOG_WARNING,
    LOG_INFO,
    LOG_VERBOSE, /* what --quiet hides */
    LOG_DEBUG,
} log_level;

/* Lines above this level are dropped; LOG_VERBOSE at start. Set once, before threads start. */
void log_set_level(log_level level);

/* Follows $TORCH_DISTRIBUTED_DEBUG: INFO and DETAIL mean LOG_DEBUG, OFF changes nothing. Upper or
 * lower case; warns of any other word. */
void log_set_level_from_environment(void);

/* --quiet: LOG_VERBOSE is dropped, unless LOG_DEBUG is not. Once, as log_set_level. */
void log_set_quiet(void);

/* Puts "[prefix] " before every line, as in "[rank 1] "; "" for none. Copied, cut at 31 bytes. */
void log_set_prefix(const char *prefix);

/* Takes every line, with its end, in place of stderr; from any thread. NULL: stderr again. Set
 * while no other thread logs. */
typedef void log_sink(void *self, const char *line, size_t size_bytes);
void log_set_sink(log_sink *sink, void *self);

/* Takes a copy of every line as well, before the sink; from any thread. Up to LOG_VERBOSE it takes
 * also lines that are dropped. NULL: none. Set while no other thread logs. */
void log_set_copy(log_sink *copy, void *self);

/* What is done without a sink: writes to stderr, and waits for a reader that is slow. */
void log_write(const char *text, size_t size_bytes);

void log_line(log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define LOG_E(...) log_line(LOG_ERROR, __VA_ARGS__)
#define LOG_W(...) log_line(LOG_WARNING, __VA_ARGS__)
#define LOG_I(...) log_line(LOG_INFO, __VA_ARGS__)
#define LOG_V(...) log_line(LOG_VERBOSE, __VA_ARGS__)
#define LOG_D(...) log_line(LOG_DEBUG, __VA_ARGS__)

#endif
