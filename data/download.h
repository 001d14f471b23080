/* One file from the first of several mirrors that has it, whole and checked, or not at all.
 *
 * Its bytes go to PATH.part, and get the name PATH once their number and digest are right. What an
 * earlier try has left in PATH.part is kept, and only the rest is asked for. */
#ifndef MNIST_DDP_DATA_DOWNLOAD_H
#define MNIST_DDP_DATA_DOWNLOAD_H

#include "base/file.h"
#include "base/transfer_ops.h"
#include "data/dataset.h"

#include <stdbool.h>
#include <stdint.h>

enum { DOWNLOAD_MIRRORS_MAX = 8 };

/* On the caller's thread: so many bytes of the file are there. */
typedef void download_tell(void *ctx, uint64_t done_bytes);

typedef struct download {
    const transfer_ops *http;
    void *handle;           /* what `http` works with */
    int connect_timeout_ms; /* for all mirrors together */
    int stall_timeout_s;
    int wake_fd; /* ends it once it is readable; -1: none */
    download_tell *tell;
    void *tell_ctx;

    /* Each ends with a slash. The one that had the last file is asked first for the next. */
    const char *mirrors[DOWNLOAD_MIRRORS_MAX];
    int n_mirrors;

    bool interrupted;              /* by wake_fd: what is there stays in PATH.part */
    char from[TRANSFER_URL_BYTES]; /* the URL that had the last file */
} download;

/* The file `name` of a mirror as `path`; for the only writer of its folder. STATUS_INVALID names
 * each mirror and why it was none; STATUS_IO if the file cannot be written. */
status download_file(download *d, const char *name, const dataset_file *want, const char *path);

#endif
