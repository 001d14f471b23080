#include "data/raster/raster_file.h"

#include "base/file.h"

#include <ctype.h>
#include <png.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

status raster_make(const char *name, uint64_t width, uint64_t height, raster *out)
{
    if (width == 0 || height == 0)
        return FAIL(STATUS_INVALID, "%s: a picture without pixels (%llux%llu)", name,
                    (unsigned long long)width, (unsigned long long)height);
    if (width > RASTER_MAX_SIDE || height > RASTER_MAX_SIDE || width * height > RASTER_MAX_PIXELS)
        return FAIL(STATUS_INVALID,
                    "%s: %llux%llu pixels are too many: at most %d million, and %d a side; make it "
                    "smaller: convert '%s' -resize 1000x1000 small.png",
                    name, (unsigned long long)width, (unsigned long long)height,
                    RASTER_MAX_PIXELS >> 20, RASTER_MAX_SIDE, name);
    uint8_t *grey = malloc((size_t)(width * height));
    if (grey == NULL)
        return FAIL(STATUS_NO_MEMORY, "%s: a picture of %llux%llu pixels", name,
                    (unsigned long long)width, (unsigned long long)height);
    *out = (raster){(int)width, (int)height, grey};
    return STATUS_OK;
}

void raster_free(raster *p)
{
    free(p->grey);
    *p = (raster){0};
}

enum { DEPTH_MAX = 65535 };

/* A file while it is read. */
typedef struct reader {
    const char *name;
    const uint8_t *bytes;
    size_t size_bytes, at;
    int type;       /* 1 to 6 */
    uint32_t depth; /* the brightest value */
} reader;

bool netpbm_magic(const uint8_t *bytes, size_t size_bytes)
{
    return size_bytes >= 3 && bytes[0] == 'P' && bytes[1] >= '1' && bytes[1] <= '6' &&
           (isspace(bytes[2]) || bytes[2] == '#');
}

static bool is_text(const reader *in)
{
    return in->type <= 3;
}

static bool is_bitmap(const reader *in)
{
    return in->type == 1 || in->type == 4;
}

static int channels(const reader *in)
{
    return in->type == 3 || in->type == 6 ? 3 : 1;
}

static status truncated(const reader *in)
{
    return FAIL(STATUS_INVALID, "%s: byte %zu: truncated: the picture goes on, the file does not",
                in->name, in->size_bytes);
}

/* A '#' begins a comment up to the end of the line. */
static void skip_blanks(reader *in)
{
    bool comment = false;
    for (; in->at < in->size_bytes; in->at++) {
        uint8_t c = in->bytes[in->at];
        comment = comment ? c != '\n' && c != '\r' : c == '#';
        if (!comment && !isspace(c))
            return;
    }
}

/* The next number of the header or of a text's pixels, at most `limit`. `digits_max`: 1 where
 * numbers need no blank between them. */
static status read_number(reader *in, uint32_t limit, int digits_max, uint32_t *out)
{
    uint64_t value = 0;
    int digits = 0;
    skip_blanks(in);
    if (in->at == in->size_bytes)
        return truncated(in);
    size_t begin = in->at;
    for (; in->at < in->size_bytes && digits < digits_max && isdigit(in->bytes[in->at]); digits++)
        value = value * 10 + in->bytes[in->at++] - '0';
    if (digits == 0)
        return FAIL(STATUS_INVALID, "%s: byte %zu: not a number", in->name, begin);
    if (value > limit)
        return FAIL(STATUS_INVALID, "%s: byte %zu: %llu: at most %u may stand here", in->name,
                    begin, (unsigned long long)value, limit);
    *out = (uint32_t)value;
    return STATUS_OK;
}

enum { NUMBER_DIGITS = 18 };

static status read_header(reader *in, uint32_t *width, uint32_t *height)
{
    in->type = in->bytes[1] - '0';
    in->at = 2;
    in->depth = 1;
    TRY(read_number(in, UINT32_MAX, NUMBER_DIGITS, width));
    TRY(read_number(in, UINT32_MAX, NUMBER_DIGITS, height));
    if (!is_bitmap(in))
        TRY(read_number(in, DEPTH_MAX, NUMBER_DIGITS, &in->depth));
    if (in->depth == 0)
        return FAIL(STATUS_INVALID, "%s: byte %zu: the brightest value is 0", in->name, in->at - 1);
    in->at += !is_text(in); /* one blank, then pixels */
    return STATUS_OK;
}

/* A value of a binary file whose size has been checked. */
static uint32_t take_value(reader *in)
{
    uint32_t value = in->bytes[in->at++];
    if (in->depth > 255)
        value = value << 8 | in->bytes[in->at++];
    return value < in->depth ? value : in->depth;
}

static uint8_t grey_of(const uint32_t value[3], int n_channels, uint32_t depth)
{
    uint64_t sum = n_channels == 1
                       ? (uint64_t)value[0] * 10000
                       : (uint64_t)value[0] * 2126 + (uint64_t)value[1] * 7152 + value[2] * 722u;
    return (uint8_t)((sum * 255 + (uint64_t)depth * 5000) / ((uint64_t)depth * 10000));
}

/* In a bitmap 1 is black. */
static status read_text(reader *in, raster *out)
{
    int n_channels = channels(in), digits_max = is_bitmap(in) ? 1 : NUMBER_DIGITS;
    size_t count = (size_t)out->width * (size_t)out->height;
    for (size_t i = 0; i < count; i++) {
        uint32_t value[3];
        for (int c = 0; c < n_channels; c++)
            TRY(read_number(in, in->depth, digits_max, &value[c]));
        uint8_t grey = grey_of(value, n_channels, in->depth);
        out->grey[i] = is_bitmap(in) ? (uint8_t)(255 - grey) : grey;
    }
    return STATUS_OK;
}

static status read_bits(reader *in, raster *out)
{
    size_t row_bytes = ((size_t)out->width + 7) / 8;
    if (in->at > in->size_bytes || in->size_bytes - in->at < row_bytes * (size_t)out->height)
        return truncated(in);
    for (int y = 0; y < out->height; y++)
        for (int x = 0; x < out->width; x++) {
            const uint8_t *row = in->bytes + in->at + row_bytes * (size_t)y;
            bool black = row[x / 8] >> (7 - x % 8) & 1;
            out->grey[(size_t)y * (size_t)out->width + (size_t)x] = black ? 0 : 255;
        }
    return STATUS_OK;
}

static status read_values(reader *in, raster *out)
{
    int n_channels = channels(in);
    size_t count = (size_t)out->width * (size_t)out->height;
    size_t pixel_bytes = (size_t)n_channels * (in->depth > 255 ? 2 : 1);
    if (in->at > in->size_bytes || in->size_bytes - in->at < pixel_bytes * count)
        return truncated(in);
    for (size_t i = 0; i < count; i++) {
        uint32_t value[3];
        for (int c = 0; c < n_channels; c++)
            value[c] = take_value(in);
        out->grey[i] = grey_of(value, n_channels, in->depth);
    }
    return STATUS_OK;
}

status netpbm_decode(const char *name, const uint8_t *bytes, size_t size_bytes, raster *out)
{
    reader in = {.name = name, .bytes = bytes, .size_bytes = size_bytes};
    uint32_t width, height;
    raster p = {0};
    TRY(read_header(&in, &width, &height));
    TRY(raster_make(name, width, height, &p));
    status st = is_text(&in)     ? read_text(&in, &p)
                : is_bitmap(&in) ? read_bits(&in, &p)
                                 : read_values(&in, &p);
    if (st == STATUS_OK)
        *out = p;
    else
        raster_free(&p);
    return st;
}

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
