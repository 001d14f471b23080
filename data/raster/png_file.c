#include "data/raster/png_file.h"

#include <png.h>
#include <string.h>

static const uint8_t MAGIC[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

bool png_file_magic(const uint8_t *bytes, size_t size_bytes)
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

status png_file_decode(const char *name, const uint8_t *bytes, size_t size_bytes, raster *out)
{
    png_image image = {.version = PNG_IMAGE_VERSION};
    if (!png_image_begin_read_from_memory(&image, bytes, size_bytes))
        return FAIL(STATUS_INVALID, "%s: a damaged PNG file: %s", name, image.message);
    status st = decode(name, &image, out);
    png_image_free(&image);
    return st;
}
