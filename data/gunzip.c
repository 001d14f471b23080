#include "data/gunzip.h"

#include "base/file.h"
#include "data/cache.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

enum {
    INPUT_BYTES = 64 * 1024,
    OUTPUT_BYTES = 256 * 1024,
    GZIP_WINDOW = 16 + MAX_WBITS, /* for zlib: a gzip header and trailer */
    MAX_RATIO = 1032,             /* deflate's best ratio: 258 bytes for 2 bits */
    RATIO_SLACK_BYTES = 4096,
};

typedef struct stream {
    const gunzip_source *source;
    char content_name[FILE_PATH_BYTES]; /* of the decompressed bytes, for IDX's errors */
    z_stream z;
    uint64_t read_bytes; /* of the source so far */
    bool ended;          /* the member's trailer was read and agreed */
    uint8_t input[INPUT_BYTES], output[OUTPUT_BYTES];
} stream;

bool gunzip_magic(const uint8_t *bytes, size_t count)
{
    return count >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b;
}

/* The byte of the source that comes next. */
static unsigned long long source_offset(const stream *s)
{
    return s->read_bytes - s->z.avail_in;
}

/* Reads more of the source if none is left; avail_in stays 0 at its end. */
static status fill(stream *s)
{
    if (s->z.avail_in > 0)
        return STATUS_OK;
    ssize_t n = 0;
    do
        n = read(s->source->fd, s->input, sizeof s->input);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return FAIL(STATUS_IO, "read %s at byte %llu: %s", s->source->name, source_offset(s),
                    strerror(errno));
    s->read_bytes += (uint64_t)n;
    s->z.next_in = s->input;
    s->z.avail_in = (uInt)n;
    return STATUS_OK;
}

static status inflate_failed(const stream *s, int code)
{
    if (code == Z_MEM_ERROR)
        return FAIL(STATUS_NO_MEMORY, "%s: zlib", s->source->name);
    const char *why = s->z.msg != NULL ? s->z.msg : zError(code);
    if (strcmp(why, "incorrect data check") == 0)
        why = "its CRC does not match its content";
    else if (strcmp(why, "incorrect length check") == 0)
        why = "its length does not match its content";
    return FAIL(STATUS_INVALID, "%s: byte %llu: bad gzip: %s; the file is damaged, fetch it again",
                s->source->name, source_offset(s), why);
}

/* Decompresses the next `wanted` bytes (at most OUTPUT_BYTES) to s->output; *got is less only at
 * the end of the member. */
static status produce(stream *s, size_t wanted, size_t *got)
{
    s->z.next_out = s->output;
    s->z.avail_out = (uInt)wanted;
    while (s->z.avail_out > 0 && !s->ended) {
        TRY(fill(s));
        if (s->z.avail_in == 0)
            return FAIL(STATUS_INVALID,
                        "%s: byte %llu: truncated, the gzip stream is expected to go on; fetch it "
                        "again",
                        s->source->name, source_offset(s));
        int code = inflate(&s->z, Z_NO_FLUSH);
        if (code == Z_STREAM_END)
            s->ended = true;
        else if (code != Z_OK && code != Z_BUF_ERROR)
            return inflate_failed(s, code);
    }
    *got = wanted - s->z.avail_out;
    return STATUS_OK;
}

static status header_produce(stream *s, idx_shape *shape)
{
    size_t got = 0;
    idx_kind kind = s->source->kind;
    uint64_t compressed_bytes = s->source->size_bytes;
    TRY(produce(s, idx_header_bytes(kind), &got));
    TRY(idx_header_read(s->content_name, kind, s->output, got, shape));
    uint64_t possible = compressed_bytes * MAX_RATIO + RATIO_SLACK_BYTES;
    if (shape->total_bytes > possible)
        return FAIL(STATUS_INVALID,
                    "%s: truncated: %llu bytes of gzip cannot hold the %zu that its header "
                    "declares",
                    s->source->name, (unsigned long long)compressed_bytes, shape->total_bytes);
    return STATUS_OK;
}

/* After the last declared byte: the member ends, and the file with it. */
static status end_check(stream *s, const idx_shape *shape)
{
    size_t more = 0;
    TRY(produce(s, 1, &more));
    if (more > 0)
        return idx_size_check(s->content_name, shape, (uint64_t)shape->total_bytes + 1);
    TRY(fill(s));
    if (s->z.avail_in > 0)
        return FAIL(STATUS_INVALID,
                    "%s: byte %llu: trailing bytes, the file is expected to end "
                    "with its gzip stream",
                    s->source->name, source_offset(s));
    return STATUS_OK;
}

static status copy(stream *s, int sink, const char *sink_name, bool *sink_failed)
{
    idx_shape shape;
    TRY(header_produce(s, &shape));
    size_t got = shape.header_bytes;
    for (size_t done = 0;;) {
        if (s->source->kind == IDX_LABELS && done > 0)
            TRY(idx_labels_check(s->content_name, s->output, got, done));
        status st = file_append(sink, sink_name, s->output, got);
        if (st != STATUS_OK) {
            *sink_failed = true;
            return st;
        }
        done += got;
        if (done == shape.total_bytes)
            return end_check(s, &shape);
        size_t rest = shape.total_bytes - done;
        TRY(produce(s, rest < OUTPUT_BYTES ? rest : OUTPUT_BYTES, &got));
        if (got == 0)
            return idx_size_check(s->content_name, &shape, done);
    }
}

status gunzip_idx(const gunzip_source *source, int sink, const char *sink_name, bool *sink_failed)
{
    *sink_failed = false;
    stream *s = malloc(sizeof *s);
    if (s == NULL)
        return FAIL(STATUS_NO_MEMORY, "%s: %zu bytes to decompress it", source->name, sizeof *s);
    s->source = source;
    s->read_bytes = 0;
    s->ended = false;
    s->z = (z_stream){0};
    snprintf(s->content_name, sizeof s->content_name, "%.4000s, decompressed", source->name);
    status st = STATUS_OK;
    int code = inflateInit2(&s->z, GZIP_WINDOW);
    if (code != Z_OK)
        st = inflate_failed(s, code);
    if (st == STATUS_OK)
        st = copy(s, sink, sink_name, sink_failed);
    inflateEnd(&s->z); /* harmless if the init failed */
    free(s);
    return st;
}
