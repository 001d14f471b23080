/* A trace file as its tests read it: checked, and with every thread's spans in order. */
#ifndef MNIST_DDP_TESTS_APP_SUPPORT_TRACE_FILE_H
#define MNIST_DDP_TESTS_APP_SUPPORT_TRACE_FILE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

json_t *trace_file_read(const char *path);

const char *trace_file_text(const json_t *object, const char *key);

int trace_file_integer(const json_t *object, const char *key);

/* Exact: the file has three decimals of a microsecond. */
int64_t trace_file_ns(const json_t *event, const char *key);

/* Every event is a name or a span. The spans of a thread come in order, and each lies within the
 * ones that are open where it begins. Fails the test if that is not so. */
void trace_file_check(const json_t *doc);

/* The first thread of a rank whose name begins so; -1: none. */
int trace_file_thread(const json_t *doc, int rank, const char *name);

/* Whether an event is a span of this name, of a rank's main thread or its communication. */
bool trace_file_is(const json_t *event, int rank, int compute, const char *name);

/* Spans of a rank that have this name, those of its compute threads aside; their time together is
 * added to *ns, unless NULL. */
int trace_file_count(const json_t *doc, int rank, const char *name, int64_t *ns);

/* How many of them did not end. */
int trace_file_unfinished(const json_t *doc, int rank, const char *name);

/* The ranks that the file says it is of, as bits. */
unsigned trace_file_ranks(const json_t *doc);

/* What is said of how the run ended. */
const char *trace_file_ending(const json_t *doc);

/* An argument of the first of them. */
json_t *trace_file_argument(const json_t *doc, int rank, const char *name, const char *key);

#endif
