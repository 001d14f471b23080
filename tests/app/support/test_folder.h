/* A temporary folder with a small data set, for tests that run the whole program; and the small
 * files that tests and scripts leave in it. */
#ifndef MNIST_DDP_TESTS_APP_SUPPORT_TEST_FOLDER_H
#define MNIST_DDP_TESTS_APP_SUPPORT_TEST_FOLDER_H

#include "base/file.h"
#include "base/status.h"
#include "tests/support/facts.h"
#include "tests/support/program.h"
#include "tests/support/suite.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Images of the data set. */
enum { TEST_FOLDER_TRAIN = 600, TEST_FOLDER_TEST = 250 };

extern char test_folder[64]; /* the folder; data/ in it has the four files */

/* Ends the test program with the message, unless `st` is STATUS_OK. For what precedes the tests. */
void test_folder_require(status st);

/* The path of `name` in the folder; eight of them last. */
char *test_folder_path(const char *name);

/* Makes the folder, points $MNIST_DDP_DATA, $XDG_CACHE_HOME and $TMPDIR into it and goes there. */
void test_folder_open(void);

/* Removes the folder and returns `exit_code`: the end of main. */
int test_folder_close(int exit_code);

/* Removes from the folder what earlier tests left: all but the data set and its cache. For a
 * checked fixture. */
void test_folder_clean(void);

/* Removes some of it: names and patterns, as the shell takes them. */
void test_folder_remove(const char *names);

/* The text of a file; free with free(). */
char *test_folder_read(const char *path);

/* Makes other/, a copy of the data set in which each label is the next one. */
void test_folder_shift_labels(void);

/* Writes a file anew. */
void test_folder_write(const char *path, const char *text);

/* Returns once the file is there; fails the test after RUN_S. */
void test_folder_await(const char *path);

/* The process whose number a script writes into a file, once it has. */
pid_t test_folder_await_pid(const char *path);

#endif
