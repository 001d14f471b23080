/* A folder of its own for each test, with a cache folder in it, and IDX and gzip files to put
 * there.
 */
#ifndef MNIST_DDP_TESTS_DATA_SANDBOX_H
#define MNIST_DDP_TESTS_DATA_SANDBOX_H

#include "base/file.h"
#include "base/status.h"
#include "tests/support/facts.h"

#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum { PIXELS = 784 };

static char sandbox[256];

static inline void sandbox_use_cache(const char *cache)
{
    ck_assert_int_eq(setenv("XDG_CACHE_HOME", cache, 1), 0);
    ck_assert_int_eq(setenv("HOME", "/dev/null", 1), 0); /* nothing can be made below it */
}

/* Checked fixture: a new empty folder, which is the working directory too. */
static inline void sandbox_create(void)
{
    const char *base = getenv("TMPDIR");
    char cache[300];
    snprintf(sandbox, sizeof sandbox, "%.200s/mnist_ddp_test_XXXXXX", base ? base : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(sandbox));
    ck_assert_int_eq(chmod(sandbox, 0777), 0); /* one test works as another user */
    ck_assert_int_eq(chdir(sandbox), 0);
    snprintf(cache, sizeof cache, "%s/cache", sandbox);
    sandbox_use_cache(cache);
    unsetenv("MNIST_DDP_DATA");
}

static inline int sandbox_remove_one(const char *path, const struct stat *info, int type,
                                     struct FTW *place)
{
    (void)info;
    (void)type;
    (void)place;
    return remove(path);
}

static inline void sandbox_remove(void)
{
    ck_assert_int_eq(chdir("/"), 0);
    nftw(sandbox, sandbox_remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* How many files of `folder` have `part` in their name; 0 where there is no such folder. */
static inline int sandbox_count(const char *folder, const char *part)
{
    DIR *listing = opendir(folder);
    if (listing == NULL)
        return 0;
    int count = 0;
    for (struct dirent *found = readdir(listing); found != NULL; found = readdir(listing))
        count += strstr(found->d_name, part) != NULL;
    closedir(listing);
    return count;
}

typedef struct bytes {
    uint8_t *data;
    size_t size;
} bytes;

static inline bytes bytes_alloc(size_t size)
{
    bytes b = {malloc(size ? size : 1), size};
    ck_assert_ptr_nonnull(b.data);
    return b;
}

static inline void put_be32(uint8_t *p, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(value >> (24 - 8 * i));
}

/* Pixel j of image i in the files made here; some noise, so that gzip has work to do. */
static inline uint8_t pixel_of(uint32_t i, uint32_t j)
{
    uint32_t mixed = (i * PIXELS + j) * 2654435761u;
    return (uint8_t)(mixed >> 24 & 0x3f);
}

static inline bool has_pixels(const uint8_t *images, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t j = 0; j < PIXELS; j++)
            if (images[(size_t)i * PIXELS + j] != pixel_of(i, j))
                return false;
    return true;
}

static inline bytes images_idx(uint32_t count)
{
    bytes b = bytes_alloc(16 + (size_t)count * PIXELS);
    put_be32(b.data, 0x803);
    put_be32(b.data + 4, count);
    put_be32(b.data + 8, 28);
    put_be32(b.data + 12, 28);
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t j = 0; j < PIXELS; j++)
            b.data[16 + (size_t)i * PIXELS + j] = pixel_of(i, j);
    return b;
}

/* Label i is i % 10. */
static inline bytes labels_idx(uint32_t count)
{
    bytes b = bytes_alloc(8 + (size_t)count);
    put_be32(b.data, 0x801);
    put_be32(b.data + 4, count);
    for (uint32_t i = 0; i < count; i++)
        b.data[8 + i] = (uint8_t)(i % 10);
    return b;
}

/* Consumes `plain`. */
static inline bytes gzipped(bytes plain)
{
    z_stream z = {0};
    ck_assert_int_eq(deflateInit2(&z, 1, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
    bytes b = bytes_alloc(deflateBound(&z, plain.size));
    z.next_in = plain.data;
    z.avail_in = (uInt)plain.size;
    z.next_out = b.data;
    z.avail_out = (uInt)b.size;
    ck_assert_int_eq(deflate(&z, Z_FINISH), Z_STREAM_END);
    b.size -= z.avail_out;
    deflateEnd(&z);
    free(plain.data);
    return b;
}

static inline void write_bytes(const char *path, const void *data, size_t size)
{
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(data, 1, size, file), size);
    ck_assert_int_eq(fclose(file), 0);
}

/* Consumes `b`. */
static inline void put_file(const char *path, bytes b)
{
    write_bytes(path, b.data, b.size);
    free(b.data);
}

/* `st` failed and its message has every one of the facts (up to NULL). */
static inline void expect_failure(status st, ...)
{
    va_list facts;
    va_start(facts, st);
    ck_assert_msg(st != STATUS_OK, "no failure");
    for (const char *fact = va_arg(facts, const char *); fact != NULL;
         fact = va_arg(facts, const char *))
        ck_assert_msg(facts_in_a_line(status_text(), fact, NULL), "no \"%s\" in: %s", fact,
                      status_text());
    va_end(facts);
}

static inline void expect_ok(status st)
{
    ck_assert_msg(st == STATUS_OK, "%s", status_text());
}

#endif
