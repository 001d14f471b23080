/* A command line as one string, for the tests of options. */
#ifndef MNIST_DDP_TESTS_APP_SUPPORT_COMMAND_LINE_H
#define MNIST_DDP_TESTS_APP_SUPPORT_COMMAND_LINE_H

#include "app/options/options.h"
#include "tests/support/facts.h"
#include "tests/support/suite.h"

enum { ANY_LINE = 4096 };

#define COUNT(table) ((int)(sizeof(table) / sizeof(table)[0]))

/* Parses a line of words separated by blanks. */
status command_line_parse(const char *line, options *out);

/* The same; fails the test if the line is refused. */
options command_line_options(const char *line);

/* The line is refused, and the message holds each of the facts. */
void command_line_refused(const char *line, const char *const *facts);

/* What command_line_capture() has caught last. */
extern char command_line_captured[];

/* Catches what call(arg) writes to one of our descriptors. */
void command_line_capture(int fd, void (*call)(int), int arg);

#endif
