/* A command line as one string, for the tests of options. */
#ifndef MNIST_DDP_TESTS_APP_OPTIONS_LINES_H
#define MNIST_DDP_TESTS_APP_OPTIONS_LINES_H

#include "app/options/options.h"
#include "tests/support/facts.h"
#include "tests/support/suite.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MAX_ARGS = 24, TEXT_BYTES = 65536, ANY_LINE = 4096 };

#define COUNT(table) ((int)(sizeof(table) / sizeof(table)[0]))

/* Parses a line of words separated by blanks. */
static inline status parse(const char *line, options *out)
{
    static char copy[ANY_LINE]; /* options point into it */
    static char *argv[MAX_ARGS];
    int argc = 1;
    memset(argv, 0, sizeof argv);
    argv[0] = "mnist_ddp";
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok(copy, " "); word != NULL; word = strtok(NULL, " ")) {
        ck_assert_int_lt(argc, MAX_ARGS - 1);
        argv[argc++] = word;
    }
    return options_parse(argc, argv, out);
}

static inline options parsed(const char *line)
{
    options opts;
    ck_assert_msg(parse(line, &opts) == STATUS_OK, "%s: %s", line, status_text());
    return opts;
}

#define FACTS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* The line is refused, and the message holds each of the facts. */
static inline void check_refused(const char *line, const char *const *facts)
{
    options opts = {.epochs = -77};
    ck_assert_msg(parse(line, &opts) == STATUS_INVALID, "'%s' was accepted", line);
    ck_assert_msg(opts.epochs == -77, "'%s': written on failure", line);
    ASSERT_FACTS_LISTED(status_text(), facts);
}

/* What a call writes to one of our descriptors. */
static char captured[TEXT_BYTES];

static inline void capture(int fd, void (*call)(int), int arg)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/test_options_%d.out", (int)getpid());
    fflush(stdout);
    int kept = dup(fd);
    FILE *file = fopen(path, "w+");
    ck_assert(kept >= 0 && file != NULL);
    dup2(fileno(file), fd);
    call(arg);
    fflush(stdout);
    dup2(kept, fd);
    close(kept);
    rewind(file);
    captured[fread(captured, 1, sizeof captured - 1, file)] = '\0';
    fclose(file);
    unlink(path);
}

#endif
