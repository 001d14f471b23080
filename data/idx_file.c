#include "data/idx_file.h"

#include "base/digest.h"
#include "base/file.h"
#include "base/log.h"
#include "data/cache.h"
#include "data/gunzip.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { SETTLED_S = 5 }; /* times of files are no coarser */

static const char CACHE_SUBFOLDER[] = "idx"; /* of the cache: the decompressed copies */

/* A gzip file, open. */
typedef struct original {
    int fd;
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

status idx_file_map(int fd, const char *name, idx_kind kind, idx_file *out)
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
    *sink_failed = false;
    if (lseek(o->fd, 0, SEEK_SET) != 0)
        return FAIL(STATUS_IO, "seek %s: %s", o->path, strerror(errno));
    gunzip_source source = {o->fd, o->path, (uint64_t)o->info.st_size, o->kind};
    TRY(gunzip_idx(&source, sink, sink_name, sink_failed));
    struct stat now;
    if (fstat(o->fd, &now) != 0)
        return FAIL(STATUS_IO, "stat %s: %s", o->path, strerror(errno));
    if (now.st_size != o->info.st_size || now.st_mtim.tv_sec != o->info.st_mtim.tv_sec ||
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
    original o = {.fd = -1, .path = path, .kind = kind};
    TRY(file_open(path, &o.fd, &o.info));
    uint8_t magic[2];
    size_t got = 0;
    status st = head_read(o.fd, path, magic, sizeof magic, &got);
    if (st == STATUS_OK)
        st = gunzip_magic(magic, got) ? gzip_open(&o, out) : idx_file_map(o.fd, path, kind, out);
    close(o.fd);
    return st;
}
