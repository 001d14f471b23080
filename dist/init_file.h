/* The file of --init-method=file://PATH: one line, by which ranks that see one file system find the
 * store that rank 0 serves.
 *
 *     rank 0     serves the store on a free port, writes the line to PATH.next, which only one can
 *                make, looks whether the path is free, and moves the line there
 *     others     read the line as soon as it is there, and look whether its store lives
 *     rank 0     removes the file once all have joined
 *
 * A line is of a living job if a store answers at its address and holds INIT_FILE_KEY under the
 * line's id. So a line that a killed job has left does not count, also if another store has its
 * port by now. PyTorch's FileStore keeps all keys in the file, under locks that not every file
 * system has, and takes those of an older job for its own. */
#ifndef MNIST_DDP_DIST_INIT_FILE_H
#define MNIST_DDP_DIST_INIT_FILE_H

#include "base/status.h"

#include <stdint.h>

enum { INIT_FILE_ID_BYTES = 33, INIT_FILE_NAME_BYTES = 256 };

/* A key of the store, in every job under the prefix of its id. */
#define INIT_FILE_KEY "init"

typedef struct init_file {
    char id[INIT_FILE_ID_BYTES]; /* 128 random bits in hexadecimal: the job's run id */
    char address[INIT_FILE_NAME_BYTES];
    int port;
    int pid; /* rank 0's */
    char host[INIT_FILE_NAME_BYTES];
    uint64_t host_number; /* base/host.h */
} init_file;

/* Sets the fields of a new line that this process knows by itself: all but address and port. */
void init_file_init(init_file *line);

/* Rank 0, whose store answers already: puts the line at the path. STATUS_INVALID if the path holds
 * anything but nothing, or what a job has left that is gone; a line of the log says then that it is
 * replaced. Of several that come at once one succeeds, and the others fail with its name. Waits 2 s
 * at most for a store that does not answer, and 5 s for another rank 0. */
status init_file_publish(const char *path, const init_file *line);

/* Removes the file if it is still this job's. */
void init_file_remove(const char *path, const char *id);

/* The other ranks: waits until the file leads to a living store, and says every few seconds what
 * is missing. STATUS_TIMEOUT after timeout_ms; STATUS_INVALID if the file holds something else, or
 * an address that only rank 0's host can reach. `describe` begins every line: "rank 1". */
status init_file_await(const char *path, int64_t timeout_ms, const char *describe, init_file *out);

#endif
