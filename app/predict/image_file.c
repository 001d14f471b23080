#include "app/predict/image_file.h"

#include "data/idx_file.h"
#include "data/raster/mnist_image.h"
#include "data/raster/raster_file.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAGIC_BYTES = 4 };

static bool is_idx(const char *path)
{
    static const uint8_t images[MAGIC_BYTES] = {0, 0, 8, 3}, labels[MAGIC_BYTES] = {0, 0, 8, 1};
    uint8_t magic[MAGIC_BYTES] = {0};
    struct stat info;
    int fd = -1;
    if (file_open(path, &fd, &info) != STATUS_OK)
        return false;
    ssize_t n = read(fd, magic, sizeof magic);
    close(fd);
    bool gzip = magic[0] == 0x1f && magic[1] == 0x8b;
    return n == MAGIC_BYTES && (gzip || memcmp(magic, images, sizeof magic) == 0 ||
                                memcmp(magic, labels, sizeof magic) == 0);
}

static status make_room(image_file *file)
{
    file->images = malloc((size_t)file->count * MNIST_IMAGE_PIXELS);
    if (file->images == NULL)
        return FAIL(STATUS_NO_MEMORY, "%s: %u images", file->path, file->count);
    return STATUS_OK;
}

static status read_picture(image_file *file)
{
    raster picture = {0};
    if (is_idx(file->path))
        return FAIL(STATUS_INVALID,
                    "%s: an IDX file: say which of its images after its name: #0, or #0-9 for "
                    "the first ten",
                    file->path);
    file->count = 1;
    TRY(raster_file_read(file->path, &picture));
    status st = make_room(file);
    if (st == STATUS_OK)
        st = mnist_image_make(file->path, &picture, file->images);
    raster_free(&picture);
    return st;
}

/* "3" or "3-7"; false if it is neither. */
static bool read_range(const char *text, uint32_t *first, uint32_t *last)
{
    char *end;
    if (!isdigit((unsigned char)*text))
        return false;
    errno = 0;
    unsigned long from = strtoul(text, &end, 10), to = from;
    if (*end == '-' && isdigit((unsigned char)end[1]))
        to = strtoul(end + 1, &end, 10);
    if (*end != '\0' || errno != 0 || from > to || to > UINT32_MAX - 1)
        return false;
    *first = (uint32_t)from;
    *last = (uint32_t)to;
    return true;
}

/* What follows the # of `word` is no range. */
static status no_range(const char *word, const char *mark)
{
    int length = (int)(mark - word);
    return FAIL(STATUS_INVALID,
                "%.*s: '%.40s' is no range of its images: #3 is one, #3-7 are five, and the first "
                "is #0",
                length, word, mark);
}

static status read_idx(image_file *file, uint32_t last)
{
    idx_file idx = {0};
    file->is_idx = true;
    TRY(idx_file_open(file->path, IDX_IMAGES, &idx));
    file->count = last - file->first + 1;
    status st = last < idx.count ? make_room(file)
                                 : FAIL(STATUS_INVALID, "%s#%u: the file has images 0 to %u",
                                        file->path, last, idx.count - 1);
    if (st == STATUS_OK)
        memcpy(file->images, idx.elements + (size_t)file->first * MNIST_IMAGE_PIXELS,
               (size_t)file->count * MNIST_IMAGE_PIXELS);
    idx_file_close(&idx);
    return st;
}

status image_file_read(const char *word, image_file *out)
{
    image_file file = {0};
    const char *mark = strrchr(word, '#');
    uint32_t last = 0;
    bool marked = mark != NULL && !file_exists(word);
    bool ranged = marked && read_range(mark + 1, &file.first, &last);
    size_t length = marked ? (size_t)(mark - word) : strlen(word);
    if (length >= sizeof file.path)
        return FAIL(STATUS_INVALID, "%.80s...: a path of %zu bytes is too long", word, length);
    memcpy(file.path, word, length);
    if (marked && !ranged) {
        if (file_exists(file.path))
            return no_range(word, mark);
        return FAIL(STATUS_IO, "%s: there is no such file", word);
    }
    status st = ranged ? read_idx(&file, last) : read_picture(&file);
    if (st == STATUS_OK)
        *out = file;
    else
        image_file_free(&file);
    return st;
}

void image_file_free(image_file *file)
{
    free(file->images);
    file->images = NULL;
}
