/* Text of unknown length, written through stdio into memory that grows. Unlike open_memstream it
 * tells if memory ran out: glibc's fclose() returns 0 then and leaves no text. */
#ifndef MNIST_DDP_BASE_TEXT_STREAM_H
#define MNIST_DDP_BASE_TEXT_STREAM_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Stays where it is while it is open: `file` points to it. */
typedef struct text_stream {
    FILE *file; /* to write to; its end is the only place to look for errors */
    char *text;
    size_t size_bytes, room_bytes;
    bool failed;
} text_stream;

/* STATUS_NO_MEMORY; then there is nothing to close. */
status text_stream_open(text_stream *out);

/* Ends it. *text: all that was written and a zero byte, the caller's to free; *size_bytes, unless
 * NULL: without that byte. STATUS_NO_MEMORY, and *text is NULL, if not all of it is there. */
status text_stream_close(text_stream *stream, char **text, size_t *size_bytes);

/* Ends it. If `st`, of what was written, is STATUS_OK, the text becomes the file `path`
 * (file_replace); else `st` is returned, and the file is as it was. */
status text_stream_save(text_stream *stream, status st, const char *path);

#endif
