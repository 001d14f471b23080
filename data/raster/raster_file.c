#include "data/raster/raster_file.h"

#include "base/file.h"
#include "data/raster/netpbm.h"
#include "data/raster/raster.h"

#include <png.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const uint8_t MAGIC[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

/* Do the first bytes of a file say PNG? */
static bool png_file_magic(const uint8_t *bytes, size_t size_bytes)
{
    return size_bytes >= sizeof MAGIC && memcmp(bytes, MAGIC, sizeof MAGIC) == 0;
}

static status decode(const char *name, png_image *image, raster *out)
{
    static const png_color white = {255, 255, 255};
    raster p = {0};
    TRY(raster_make(name, image->width, image->height, &p));
    image->format = PNG_FORMAT_GRAY;
    int whole = png_image_finish_read(image, &white, p.grey, 0, NULL);
    if (!whole || PNG_IMAGE_FAILED(*image)) {
        raster_free(&p);
        return FAIL(STATUS_INVALID, "%s: a damaged PNG file: %s", name, image->message);
    }
    *out = p;
    return STATUS_OK;
}

/* Of any colour type and depth, interlaced or not; what is transparent lies on white. Fails as
 * raster_file_decode; a file that was cut off is refused. */
static status png_file_decode(const char *name, const uint8_t *bytes, size_t size_bytes,
                              raster *out)
{
    png_image image = {.version = PNG_IMAGE_VERSION};
    if (!png_image_begin_read_from_memory(&image, bytes, size_bytes))
        return FAIL(STATUS_INVALID, "%s: a damaged PNG file: %s", name, image.message);
    status st = decode(name, &image, out);
    png_image_free(&image);
    return st;
}

/* Formats that are recognised only to say what to do. */
typedef struct foreign_format {
    const char *name;
    size_t offset; /* of the magic */
    const char *magic;
    size_t magic_bytes;
} foreign_format;

static const foreign_format FOREIGN[] = {
    {"a JPEG", 0, "\xff\xd8\xff", 3},  {"a GIF", 0, "GIF8", 4},
    {"a WebP", 8, "WEBP", 4},          {"a BMP", 0, "BM", 2},
    {"a TIFF", 0, "II*", 4},           {"a TIFF", 0, "MM\0*", 4},
    {"an HEIC or AVIF", 4, "ftyp", 4}, {"a PDF", 0, "%PDF", 4},
};

static status refuse(const char *name, const uint8_t *bytes, size_t size_bytes)
{
    for (size_t i = 0; i < sizeof FOREIGN / sizeof FOREIGN[0]; i++) {
        const foreign_format *f = &FOREIGN[i];
        if (size_bytes >= f->offset + f->magic_bytes &&
            memcmp(bytes + f->offset, f->magic, f->magic_bytes) == 0)
            return FAIL(STATUS_INVALID,
                        "%s: %s file; PNG and PGM are read. ImageMagick converts it: convert '%s' "
                        "digit.png",
                        name, f->name, name);
    }
    return FAIL(STATUS_INVALID,
                "%s: not a picture: it begins neither as a PNG nor as a PBM, PGM or PPM file",
                name);
}

status raster_file_decode(const char *name, const uint8_t *bytes, size_t size_bytes, raster *out)
{
    if (size_bytes == 0)
        return FAIL(STATUS_INVALID, "%s: an empty file", name);
    if (png_file_magic(bytes, size_bytes))
        return png_file_decode(name, bytes, size_bytes, out);
    if (netpbm_magic(bytes, size_bytes))
        return netpbm_decode(name, bytes, size_bytes, out);
    return refuse(name, bytes, size_bytes);
}

status raster_file_read(const char *path, raster *out)
{
    char *bytes = NULL;
    size_t size_bytes = 0;
    struct stat info;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        return FAIL(STATUS_INVALID, "%s: a folder; name the pictures in it: '%s'/*.png", path,
                    path);
    TRY(file_read(path, RASTER_FILE_MAX_BYTES, &bytes, &size_bytes));
    status st = raster_file_decode(path, (const uint8_t *)bytes, size_bytes, out);
    free(bytes);
    return st;
}
