/* error.json, in torchrun's shape:
 *
 *   {"message": {"message": "RuntimeError: boom", "errorCode": 1,
 *                "extraInfo": {"py_callstack": "Traceback ...", "timestamp": "1700000000"}}}
 *
 * A worker writes it where it can; for one that could not (killed, say) the launcher does. */
#ifndef MNIST_DDP_APP_LAUNCH_ERROR_FILE_H
#define MNIST_DDP_APP_LAUNCH_ERROR_FILE_H

#include "app/launch/process_failure.h"

/* The message in `folder`/error.json; "" where there is none. */
void launch_error_file_message(const char *folder, char *out, size_t size_bytes);

/* Writes error.json of a rank that left none; `text` is its last words. A failure is a line of the
 * log. */
void launch_error_file_write(const process_failure *failure);

#endif
