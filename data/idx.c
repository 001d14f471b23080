#include "data/idx.h"

#include "base/digest.h"
#include "base/file.h"
#include "base/log.h"
#include "data/cache.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>

/* The format. */

enum { TYPE_UNSIGNED_BYTE = 0x08 };

static uint32_t big_endian_32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void put_big_endian_32(uint32_t value, uint8_t *p)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(value >> (24 - 8 * i));
}

static const char *kind_name(idx_kind kind)
{
    return kind == IDX_IMAGES ? "images" : "labels";
}

static int kind_dimensions(idx_kind kind)
{
    return kind == IDX_IMAGES ? 3 : 1;
}

size_t idx_header_bytes(idx_kind kind)
{
    return 4 + 4 * (size_t)kind_dimensions(kind);
}

/* A server without the file often answers with a web page. */
static bool looks_like_web_page(const uint8_t *bytes, size_t size)
{
    size_t at = size >= 3 && memcmp(bytes, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
    while (at < size && isspace(bytes[at]))
        at++;
    if (at + 1 >= size || bytes[at] != '<')
        return false;
    return bytes[at + 1] == '!' || bytes[at + 1] == '?' || isalpha(bytes[at + 1]);
}

static const char *type_name(uint8_t type)
{
    static const char *const names[] = {[0x09] = "signed byte",
                                        [0x0B] = "int16",
                                        [0x0C] = "int32",
                                        [0x0D] = "float32",
                                        [0x0E] = "float64"};
    bool known = type < sizeof names / sizeof names[0] && names[type] != NULL;
    return known ? names[type] : "unknown";
}

static status magic_check(const char *name, idx_kind kind, const uint8_t *b)
{
    int dimensions = kind_dimensions(kind);
    if (b[0] != 0 || b[1] != 0)
        return FAIL(STATUS_INVALID,
                    "%s: byte 0: %02x %02x %02x %02x is not IDX: expected 00 00 08 %02x, or gzip's "
                    "1f 8b",
                    name, b[0], b[1], b[2], b[3], (unsigned)dimensions);
    if (b[2] != TYPE_UNSIGNED_BYTE)
        return FAIL(STATUS_INVALID,
                    "%s: byte 2: element type 0x%02x (%s), expected 0x08 (unsigned byte)", name,
                    b[2], type_name(b[2]));
    if (b[3] != dimensions)
        return FAIL(STATUS_INVALID, "%s: byte 3: %d dimension(s), expected %d, as %s have%s", name,
                    b[3], dimensions, kind_name(kind),
                    b[3] == 1 || b[3] == 3 ? " (is this the other kind of file?)" : "");
    return STATUS_OK;
}

status idx_header_read(const char *name, idx_kind kind, const uint8_t *bytes,
                       size_t available_bytes, idx_shape *out)
{
    size_t header_bytes = idx_header_bytes(kind);
    if (available_bytes == 0)
        return FAIL(STATUS_INVALID, "%s: byte 0: empty, expected an IDX file of %s", name,
                    kind_name(kind));
    if (looks_like_web_page(bytes, available_bytes))
        return FAIL(STATUS_INVALID,
                    "%s: byte 0: looks like a web page, expected an IDX file of %s: a failed "
                    "download? Fetch it again",
                    name, kind_name(kind));
    if (available_bytes >= 4)
        TRY(magic_check(name, kind, bytes));
    if (available_bytes < header_bytes)
        return FAIL(STATUS_INVALID,
                    "%s: byte %zu: truncated within the header, expected %zu bytes of it", name,
                    available_bytes, header_bytes);
    uint32_t count = big_endian_32(bytes + 4);
    if (count == 0)
        return FAIL(STATUS_INVALID, "%s: byte 4: zero %s, expected at least one", name,
                    kind_name(kind));
    uint64_t element_bytes = 1;
    if (kind == IDX_IMAGES) {
        uint32_t rows = big_endian_32(bytes + 8), columns = big_endian_32(bytes + 12);
        if (rows != IDX_SIDE || columns != IDX_SIDE)
            return FAIL(STATUS_INVALID, "%s: byte 8: images of %ux%u, expected %dx%d", name, rows,
                        columns, IDX_SIDE, IDX_SIDE);
        element_bytes = IDX_PIXELS;
    }
    uint64_t total_bytes = header_bytes + count * element_bytes; /* < 2^32 * 785: no overflow */
    if (total_bytes > IDX_MAX_BYTES)
        return FAIL(STATUS_INVALID,
                    "%s: byte 4: %u %s are too many: %llu bytes, expected at most %d", name, count,
                    kind_name(kind), (unsigned long long)total_bytes, IDX_MAX_BYTES);
    *out = (idx_shape){count, header_bytes, (size_t)total_bytes};
    return STATUS_OK;
}

/* STATUS_INVALID unless the file has exactly the bytes that its header declares. */
static status idx_size_check(const char *name, const idx_shape *shape, uint64_t actual_bytes)
{
    if (actual_bytes < shape->total_bytes)
        return FAIL(STATUS_INVALID,
                    "%s: byte %llu: truncated, the header's count of %u is expected to end at %zu",
                    name, (unsigned long long)actual_bytes, shape->count, shape->total_bytes);
    if (actual_bytes > shape->total_bytes)
        return FAIL(STATUS_INVALID,
                    "%s: byte %zu: trailing bytes, the header's count of %u is expected to end "
                    "here",
                    name, shape->total_bytes, shape->count);
    return STATUS_OK;
}

/* STATUS_INVALID if one of the `count` labels, which begin at byte `offset`, is above 9. */
static status idx_labels_check(const char *name, const uint8_t *labels, size_t count, size_t offset)
{
    unsigned largest = 0; /* a plain maximum is vectorised; the position is found on error */
    for (size_t i = 0; i < count; i++)
        largest = labels[i] > largest ? labels[i] : largest;
    if (largest < IDX_CLASSES)
        return STATUS_OK;
    size_t at = 0;
    while (at + 1 < count && labels[at] < IDX_CLASSES)
        at++;
    return FAIL(STATUS_INVALID, "%s: byte %zu: label %u, expected 0 to %d", name, offset + at,
                labels[at], IDX_CLASSES - 1);
}

void idx_header_write(idx_kind kind, uint32_t count, uint8_t *out)
{
    put_big_endian_32((uint32_t)TYPE_UNSIGNED_BYTE << 8 | (uint32_t)kind_dimensions(kind), out);
    put_big_endian_32(count, out + 4);
    for (size_t at = 8; at < idx_header_bytes(kind); at += 4)
        put_big_endian_32(IDX_SIDE, out + at);
}

/* Out of a gzip file. */

enum {
    OUTPUT_BYTES = 256 * 1024,
    GZIP_WINDOW = 16 + MAX_WBITS, /* for zlib: a gzip header and trailer */
    MAX_RATIO = 1032,             /* deflate's best ratio: 258 bytes for 2 bits */
    RATIO_SLACK_BYTES = 4096,
};

/* All of the compressed bytes are in memory. */
typedef struct stream {
    const char *name;                   /* the gzip file's */
    char content_name[FILE_PATH_BYTES]; /* the decompressed bytes', for IDX's errors */
    size_t size_bytes;                  /* the gzip file's */
    z_stream z;
    bool ended; /* the member's trailer was read and agreed */
    uint8_t output[OUTPUT_BYTES];
} stream;

/* Do the first `count` bytes of a file say gzip? */
static bool gunzip_magic(const uint8_t *bytes, size_t count)
{
    return count >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b;
}

static status inflate_failed(const stream *s, int code)
{
    if (code == Z_MEM_ERROR)
        return FAIL(STATUS_NO_MEMORY, "%s: zlib", s->name);
    if (code == Z_OK || code == Z_BUF_ERROR)
        return FAIL(STATUS_INVALID,
                    "%s: byte %lu: truncated, the gzip stream is expected to go on; fetch it again",
                    s->name, s->z.total_in);
    const char *why = s->z.msg != NULL ? s->z.msg : zError(code);
    if (strcmp(why, "incorrect data check") == 0)
        why = "its CRC does not match its content";
    else if (strcmp(why, "incorrect length check") == 0)
        why = "its length does not match its content";
    return FAIL(STATUS_INVALID, "%s: byte %lu: bad gzip: %s; the file is damaged, fetch it again",
                s->name, s->z.total_in, why);
}

/* Decompresses the next `wanted` bytes (at most OUTPUT_BYTES) to s->output; *got is less only at
 * the end of the member. */
static status produce(stream *s, size_t wanted, size_t *got)
{
    s->z.next_out = s->output;
    s->z.avail_out = (uInt)wanted;
    int code = s->ended ? Z_STREAM_END : inflate(&s->z, Z_NO_FLUSH);
    s->ended = code == Z_STREAM_END;
    if (s->z.avail_out > 0 && !s->ended)
        return inflate_failed(s, code);
    *got = wanted - s->z.avail_out;
    return STATUS_OK;
}

static status header_produce(stream *s, idx_kind kind, idx_shape *shape)
{
    size_t got = 0;
    TRY(produce(s, idx_header_bytes(kind), &got));
    TRY(idx_header_read(s->content_name, kind, s->output, got, shape));
    if (shape->total_bytes > s->size_bytes * MAX_RATIO + RATIO_SLACK_BYTES)
        return FAIL(STATUS_INVALID,
                    "%s: truncated: %zu bytes of gzip cannot hold the %zu that its header declares",
                    s->name, s->size_bytes, shape->total_bytes);
    return STATUS_OK;
}

/* After the last declared byte: the member ends, and the file with it. */
static status end_check(stream *s, const idx_shape *shape)
{
    size_t more = 0;
    TRY(produce(s, 1, &more));
    if (more > 0)
        return idx_size_check(s->content_name, shape, (uint64_t)shape->total_bytes + 1);
    if (s->z.avail_in > 0)
        return FAIL(STATUS_INVALID,
                    "%s: byte %lu: trailing bytes, the file is expected to end with its gzip "
                    "stream",
                    s->name, s->z.total_in);
    return STATUS_OK;
}

static status copy(stream *s, idx_kind kind, int sink, const char *sink_name, bool *sink_failed)
{
    idx_shape shape;
    TRY(header_produce(s, kind, &shape));
    size_t got = shape.header_bytes;
    for (size_t done = 0;;) {
        if (kind == IDX_LABELS && done > 0)
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

status gunzip_idx(const char *path, idx_kind kind, int sink, const char *sink_name,
                  bool *sink_failed)
{
    char *bytes = NULL;
    *sink_failed = false;
    stream *s = calloc(1, sizeof *s);
    if (s == NULL)
        return FAIL(STATUS_NO_MEMORY, "%s: %zu bytes to decompress it", path, sizeof *s);
    s->name = path;
    snprintf(s->content_name, sizeof s->content_name, "%.4000s, decompressed", path);
    status st = file_read(path, IDX_MAX_BYTES, &bytes, &s->size_bytes);
    if (st == STATUS_OK) {
        s->z.next_in = (uint8_t *)bytes;
        s->z.avail_in = (uInt)s->size_bytes;
        int code = inflateInit2(&s->z, GZIP_WINDOW);
        st = code == Z_OK ? copy(s, kind, sink, sink_name, sink_failed) : inflate_failed(s, code);
        inflateEnd(&s->z); /* harmless if the init failed */
    }
    free(bytes);
    free(s);
    return st;
}

/* A file in memory. */

enum { SETTLED_S = 5 }; /* times of files are no coarser */

static const char CACHE_SUBFOLDER[] = "idx"; /* in the cache: the decompressed copies */

/* A gzip file. */
typedef struct original {
    const char *path;
    idx_kind kind;
    struct stat info;
} original;

/* The first bytes of a file, at most `wanted`, without moving its position. */
static status head_read(int fd, const char *name, uint8_t *head, size_t wanted, size_t *got)
{
    ssize_t n = 0;
    do
        n = pread(fd, head, wanted, 0);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return FAIL(STATUS_IO, "read %s: %s", name, strerror(errno));
    *got = (size_t)n;
    return STATUS_OK;
}

/* Maps what an open plain file holds; `name` is for messages. The caller keeps `fd`. */
static status idx_file_map(int fd, const char *name, idx_kind kind, idx_file *out)
{
    uint8_t head[64]; /* a header, or enough of a web page to know it */
    size_t head_bytes = 0;
    struct stat info;
    idx_shape shape;
    if (fstat(fd, &info) != 0)
        return FAIL(STATUS_IO, "stat %s: %s", name, strerror(errno));
    TRY(head_read(fd, name, head, sizeof head, &head_bytes));
    TRY(idx_header_read(name, kind, head, head_bytes, &shape));
    TRY(idx_size_check(name, &shape, (uint64_t)info.st_size));

    uint8_t *mapping = mmap(NULL, shape.total_bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (mapping == MAP_FAILED)
        return FAIL(errno == ENOMEM ? STATUS_NO_MEMORY : STATUS_IO, "map %s: %s", name,
                    strerror(errno));
    idx_file file = {.count = shape.count,
                     .elements = mapping + shape.header_bytes,
                     .mapping = mapping,
                     .mapping_bytes = shape.total_bytes};
    if (kind == IDX_LABELS) {
        status st = idx_labels_check(name, file.elements, file.count, shape.header_bytes);
        if (st != STATUS_OK) {
            idx_file_close(&file);
            return st;
        }
    }
    info.st_atim = (struct timespec){0};
    if (info.st_ctim.tv_sec + SETTLED_S < time(NULL))
        file.version = lane_hash(0, &info, sizeof info);
    *out = file;
    return STATUS_OK;
}

void idx_file_close(idx_file *file)
{
    if (file == NULL)
        return;
    if (file->mapping != NULL)
        munmap(file->mapping, file->mapping_bytes);
    *file = (idx_file){0};
}

static status copy_open(const char *path, idx_kind kind, idx_file *out)
{
    int fd = -1;
    struct stat info;
    TRY(file_open(path, &fd, &info));
    status st = idx_file_map(fd, path, kind, out);
    close(fd);
    return st;
}

/* The copy's file name, from the original's path, size and time. */
static status copy_name(const original *o, char *out, size_t out_bytes)
{
    char *canonical = realpath(o->path, NULL);
    if (canonical == NULL)
        return FAIL(STATUS_IO, "resolve %s: %s", o->path, strerror(errno));
    snprintf(out, out_bytes, "%016" PRIx64 "-%" PRIx64 "-%" PRIx64 ".%09ld-%s.idx",
             fnv1a(FNV1A_START, canonical, strlen(canonical)), (uint64_t)o->info.st_size,
             (uint64_t)o->info.st_mtim.tv_sec, (long)o->info.st_mtim.tv_nsec,
             o->kind == IDX_IMAGES ? "images" : "labels");
    free(canonical);
    return STATUS_OK;
}

/* Decompresses to `sink`. If the original changes meanwhile, that is an error: the copy's name
 * would not match its content. */
static status decompress(const original *o, int sink, const char *sink_name, bool *sink_failed)
{
    struct stat now;
    TRY(gunzip_idx(o->path, o->kind, sink, sink_name, sink_failed));
    if (stat(o->path, &now) != 0)
        return FAIL(STATUS_IO, "stat %s: %s", o->path, strerror(errno));
    if (now.st_ino != o->info.st_ino || now.st_size != o->info.st_size ||
        now.st_mtim.tv_sec != o->info.st_mtim.tv_sec ||
        now.st_mtim.tv_nsec != o->info.st_mtim.tv_nsec)
        return FAIL(STATUS_IO, "%s changed while it was read: start again when it is complete",
                    o->path);
    return STATUS_OK;
}

static status open_in_memory(const original *o, idx_file *out)
{
    bool sink_failed = false;
    int fd = memfd_create("mnist_ddp", MFD_CLOEXEC);
    if (fd < 0)
        return FAIL(STATUS_IO, "memory for %s: %s", o->path, strerror(errno));
    status st = decompress(o, fd, "memory", &sink_failed);
    if (st == STATUS_OK)
        st = idx_file_map(fd, o->path, o->kind, out);
    close(fd);
    return st;
}

/* The caller holds the folder's lock. Makes the copy, unless another process has made it
 * meanwhile. */
static status copy_make(const original *o, const char *path, idx_file *out, bool *cache_failed)
{
    if (copy_open(path, o->kind, out) == STATUS_OK)
        return STATUS_OK;
    file_draft entry = {.fd = -1};
    status st = cache_draft(path, &entry);
    if (st != STATUS_OK) {
        *cache_failed = true;
        return st;
    }
    st = decompress(o, entry.fd, entry.temporary, cache_failed);
    if (st == STATUS_OK)
        st = idx_file_map(entry.fd, path, o->kind, out);
    if (st == STATUS_OK) {
        st = file_draft_commit(&entry);
        *cache_failed = st != STATUS_OK;
        if (st != STATUS_OK)
            idx_file_close(out);
    }
    file_draft_drop(&entry);
    return st;
}

/* *cache_failed: the cache cannot be used; false: the original is bad. */
static status open_in_cache(const original *o, const char *name, idx_file *out, bool *cache_failed)
{
    char folder[FILE_PATH_BYTES], path[FILE_PATH_BYTES];
    int lock = -1;
    *cache_failed = true;
    TRY(cache_folder_make(CACHE_SUBFOLDER, folder));
    TRY(file_join(folder, name, path));
    TRY(cache_lock(folder, CACHE_LOCK_MS, &lock));
    *cache_failed = false;
    status st = copy_make(o, path, out, cache_failed);
    cache_unlock(lock);
    return st;
}

/* A copy made earlier, in any of the cache folders. */
static bool open_cached(const original *o, const char *name, idx_file *out)
{
    char folder[FILE_PATH_BYTES], path[FILE_PATH_BYTES];
    cache_folders folders;
    cache_folders_find(&folders);
    for (int i = 0; i < folders.count; i++) {
        if (file_join(folders.path[i], CACHE_SUBFOLDER, folder) == STATUS_OK &&
            file_join(folder, name, path) == STATUS_OK && file_exists(path) &&
            copy_open(path, o->kind, out) == STATUS_OK)
            return true;
    }
    return false;
}

static status gzip_open(const original *o, idx_file *out)
{
    char name[128];
    TRY(copy_name(o, name, sizeof name));
    if (open_cached(o, name, out))
        return STATUS_OK;
    bool cache_failed = false;
    status st = open_in_cache(o, name, out, &cache_failed);
    if (st == STATUS_OK || !cache_failed)
        return st;
    char why[IDX_FILE_REASON_BYTES];
    snprintf(why, sizeof why, "%s", status_text());
    TRY(open_in_memory(o, out));
    memcpy(out->uncached, why, sizeof why);
    return STATUS_OK;
}

status idx_file_open(const char *path, idx_kind kind, idx_file *out)
{
    original o = {.path = path, .kind = kind};
    uint8_t magic[2];
    size_t got = 0;
    int fd = -1;
    TRY(file_open(path, &fd, &o.info));
    status st = head_read(fd, path, magic, sizeof magic, &got);
    if (st == STATUS_OK)
        st = gunzip_magic(magic, got) ? gzip_open(&o, out) : idx_file_map(fd, path, kind, out);
    close(fd);
    return st;
}
