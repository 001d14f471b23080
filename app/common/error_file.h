/* error.json, in torchrun's shape:
 *
 *   {"message": {"message": "RuntimeError: boom", "errorCode": 1,
 *                "extraInfo": {"py_callstack": "Traceback ...", "timestamp": "1700000000"}}}
 *
 * A worker writes it if it can, to $TORCHELASTIC_ERROR_FILE; for one that could not (it was killed,
 * say) its agent does.
 */
#ifndef MNIST_DDP_APP_COMMON_ERROR_FILE_H
#define MNIST_DDP_APP_COMMON_ERROR_FILE_H

#include "base/status.h"

#include <stddef.h>

typedef struct error_file {
    const char *message;
    const char *callstack; /* torchrun prints it as the traceback */
    int exit_code;
    /* What a worker adds of itself. */
    const char *location; /* NULL: nothing is added */
    int rank, pid;
} error_file;

/* Replaces the file, with the time of now: torchrun sorts failures by it. STATUS_IO. */
status error_file_write(const char *path, const error_file *file);

/* Replaces `path` with the file `from`, as torchelastic's launcher does with its first failing
 * worker's: the code is the one that the process ended with. STATUS_IO, STATUS_INVALID. */
status error_file_copy(const char *from, int exit_code, const char *path);

/* The message in a file that any program may have written; "" if there is none. */
void error_file_read_message(const char *path, char *out, size_t size_bytes);

#endif
