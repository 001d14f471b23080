#include "base/text_stream.h"

#include "base/file_draft.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

enum { FIRST_BYTES = 512 };

static bool make_room(text_stream *stream, size_t needed_bytes)
{
    size_t room_bytes = stream->room_bytes > 0 ? stream->room_bytes : FIRST_BYTES;
    while (room_bytes < needed_bytes)
        room_bytes *= 2;
    char *larger =
        room_bytes > stream->room_bytes ? realloc(stream->text, room_bytes) : stream->text;
    if (larger == NULL)
        return false;
    stream->text = larger;
    stream->room_bytes = room_bytes;
    return true;
}

static ssize_t append(void *self, const char *text, size_t size_bytes)
{
    text_stream *stream = self;
    if (stream->failed || !make_room(stream, stream->size_bytes + size_bytes + 1)) {
        stream->failed = true;
        errno = ENOMEM;
        return 0; /* stdio's sign of an error */
    }
    memcpy(stream->text + stream->size_bytes, text, size_bytes);
    stream->size_bytes += size_bytes;
    return (ssize_t)size_bytes;
}

status text_stream_open(text_stream *out)
{
    *out = (text_stream){.file = NULL};
    out->file = fopencookie(out, "w", (cookie_io_functions_t){.write = append});
    return out->file != NULL ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "a text to be written");
}

status text_stream_close(text_stream *stream, char **text, size_t *size_bytes)
{
    bool failed = ferror(stream->file) != 0;
    failed = fclose(stream->file) != 0 || failed || stream->failed || !make_room(stream, 1);
    if (failed)
        free(stream->text);
    else
        stream->text[stream->size_bytes] = '\0';
    *text = failed ? NULL : stream->text;
    if (size_bytes != NULL)
        *size_bytes = failed ? 0 : stream->size_bytes;
    size_t written = stream->size_bytes;
    *stream = (text_stream){.file = NULL};
    return failed ? FAIL(STATUS_NO_MEMORY, "a text of over %zu bytes", written) : STATUS_OK;
}

status text_stream_save(text_stream *stream, status st, const char *path)
{
    char *text = NULL;
    size_t size_bytes = 0;
    status whole = text_stream_close(stream, &text, &size_bytes);
    st = st == STATUS_OK ? whole : st;
    if (st == STATUS_OK)
        st = file_replace(path, &(file_part){text, size_bytes}, 1);
    free(text);
    return st;
}
