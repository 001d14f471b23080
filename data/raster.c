#include "data/raster.h"

#include "base/file.h"

#include <ctype.h>
#include <math.h>
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

static uint8_t grey_of(const uint32_t value[3], int n_channels, uint32_t depth)
{
    uint64_t sum = n_channels == 1
                       ? (uint64_t)value[0] * 10000
                       : (uint64_t)value[0] * 2126 + (uint64_t)value[1] * 7152 + value[2] * 722u;
    return (uint8_t)((sum * 255 + (uint64_t)depth * 5000) / ((uint64_t)depth * 10000));
}

/* The next value of the pixel in column x. The size of a binary file has been checked. */
static status read_value(reader *in, int x, uint32_t *out)
{
    if (is_text(in))
        return read_number(in, in->depth, is_bitmap(in) ? 1 : NUMBER_DIGITS, out);
    if (is_bitmap(in)) { /* a row begins with a byte of its own */
        in->at += x % 8 == 0;
        *out = in->bytes[in->at - 1] >> (7 - x % 8) & 1;
        return STATUS_OK;
    }
    uint32_t value = in->bytes[in->at++];
    if (in->depth > 255)
        value = value << 8 | in->bytes[in->at++];
    *out = value < in->depth ? value : in->depth;
    return STATUS_OK;
}

/* In a bitmap 1 is black. */
static status read_pixels(reader *in, raster *out)
{
    int n_channels = in->type == 3 || in->type == 6 ? 3 : 1;
    size_t row_bytes = (size_t)out->width * (size_t)n_channels * (in->depth > 255 ? 2 : 1);
    if (is_bitmap(in))
        row_bytes = ((size_t)out->width + 7) / 8;
    if (!is_text(in) &&
        (in->at > in->size_bytes || in->size_bytes - in->at < row_bytes * (size_t)out->height))
        return truncated(in);
    uint8_t *pixel = out->grey;
    for (int y = 0; y < out->height; y++)
        for (int x = 0; x < out->width; x++) {
            uint32_t value[3];
            for (int c = 0; c < n_channels; c++)
                TRY(read_value(in, x, &value[c]));
            uint8_t grey = grey_of(value, n_channels, in->depth);
            *pixel++ = is_bitmap(in) ? (uint8_t)(255 - grey) : grey;
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
    status st = read_pixels(&in, &p);
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
    size_t offset; /* where the magic is */
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

/* The border tells the background: its median is the paper, and how far three quarters of it stay
 * from that is the paper's shade and grain. Ink is what is further away than these, on the side
 * that has more of it. On a clean drawing shade is 0, and each level of grey counts. On a
 * photograph the paper's own greys fall away.
 *
 * Scaling averages: a pixel of the result is the mean of the source under it, where pixels of the
 * edge count by the part of them that lies there. If the source is the smaller one, the window is
 * one source pixel wide, and the mean is linear interpolation. */

enum {
    LEVELS = 256,
    FAINT = 16,        /* ink that differs from the paper by less is none */
    EDGE_PERCENT = 10, /* this share of the darkest ink is where the drawing begins */
    PIECE_INK = 64,    /* in the result: a piece of ink consists of at least this */
};

typedef struct background {
    int level; /* the median of the border */
    int shade; /* what differs by no more is background */
} background;

typedef struct rectangle {
    int x, y, width, height;
} rectangle;

static void count_border(const raster *p, uint32_t counts[LEVELS])
{
    size_t width = (size_t)p->width, last = (size_t)(p->height - 1) * width;
    memset(counts, 0, LEVELS * sizeof *counts);
    for (size_t x = 0; x < width; x++) {
        counts[p->grey[x]]++;
        counts[p->grey[last + x]]++;
    }
    for (size_t y = 0; y < (size_t)p->height; y++) {
        counts[p->grey[y * width]]++;
        counts[p->grey[y * width + width - 1]]++;
    }
}

/* The lowest level at which `share` of all are counted. */
static int quantile(const uint32_t counts[LEVELS], double share)
{
    uint64_t all = 0, seen = 0;
    for (int i = 0; i < LEVELS; i++)
        all += counts[i];
    for (int i = 0; i < LEVELS; i++) {
        seen += counts[i];
        if ((double)seen >= share * (double)all)
            return i;
    }
    return LEVELS - 1;
}

static background find_background(const raster *p)
{
    uint32_t counts[LEVELS], distances[LEVELS] = {0};
    count_border(p, counts);
    int level = quantile(counts, 0.5);
    for (int i = 0; i < LEVELS; i++)
        distances[i < level ? level - i : i - level] += counts[i];
    return (background){level, 3 * quantile(distances, 0.75) / 2};
}

/* Whether the ink is darker than the paper: by the squares, so that a few strokes outweigh much
 * shade. */
static bool ink_is_dark(const raster *p, background b)
{
    size_t count = (size_t)p->width * (size_t)p->height;
    uint64_t dark = 0, bright = 0;
    for (size_t i = 0; i < count; i++) {
        int above = p->grey[i] - b.level - b.shade, below = b.level - b.shade - p->grey[i];
        if (below > 0)
            dark += (uint64_t)(below * below);
        else if (above > 0)
            bright += (uint64_t)(above * above);
    }
    return dark >= bright;
}

/* Makes the pixels ink: 0 is none. Returns the most. */
static int make_ink(raster *p, background b)
{
    size_t count = (size_t)p->width * (size_t)p->height;
    bool dark = ink_is_dark(p, b);
    int most = 0;
    for (size_t i = 0; i < count; i++) {
        int ink = (dark ? b.level - p->grey[i] : p->grey[i] - b.level) - b.shade;
        p->grey[i] = (uint8_t)(ink > 0 ? ink : 0);
        most = ink > most ? ink : most;
    }
    return most;
}

/* What all ink of at least `edge` lies in. */
static rectangle find_ink(const raster *p, int edge)
{
    int left = p->width, right = -1, top = p->height, bottom = -1;
    for (int y = 0; y < p->height; y++) {
        const uint8_t *row = p->grey + (size_t)y * (size_t)p->width;
        for (int x = 0; x < p->width; x++) {
            if (row[x] < edge)
                continue;
            left = x < left ? x : left;
            right = x > right ? x : right;
            top = y < top ? y : top;
            bottom = y;
        }
    }
    return (rectangle){left, top, right - left + 1, bottom - top + 1};
}

/* A window of the source on one axis. */
typedef struct window {
    double from, to;
    int first, last; /* pixels that it touches */
} window;

/* That of pixel `at` of the result, of the `length` source pixels from `begin` on. */
static window find_window(int at, double scale, int begin, int length)
{
    double middle = ((double)at + 0.5) * scale, half = (scale > 1.0 ? scale : 1.0) / 2.0;
    double from = fmax(middle - half, 0.0), to = fmin(middle + half, (double)length);
    int last = (int)ceil(to) - 1;
    return (window){from, to, begin + (int)from, begin + (last < length ? last : length - 1)};
}

static double overlap(window w, int begin, int pixel)
{
    double from = fmax(w.from, (double)(pixel - begin));
    return fmin(w.to, (double)(pixel - begin + 1)) - from;
}

/* The ink under a pixel of the result; what lies outside the rectangle is none. */
static double mean_under(const raster *p, rectangle r, window across, window down, double scale)
{
    double sum = 0.0, side = scale > 1.0 ? scale : 1.0;
    for (int y = down.first; y <= down.last; y++) {
        const uint8_t *row = p->grey + (size_t)y * (size_t)p->width;
        double in_row = 0.0;
        for (int x = across.first; x <= across.last; x++)
            in_row += overlap(across, r.x, x) * row[x];
        sum += overlap(down, r.y, y) * in_row;
    }
    return sum / (side * side);
}

/* The drawing at its new size. */
typedef struct box {
    int width, height; /* the longer one is MNIST_IMAGE_BOX */
    double ink[MNIST_IMAGE_BOX][MNIST_IMAGE_BOX];
} box;

static void scale_into_box(const raster *p, rectangle r, box *out)
{
    double scale = (double)(r.width > r.height ? r.width : r.height) / MNIST_IMAGE_BOX;
    out->width = (int)ceil(r.width / scale - 1e-9);
    out->height = (int)ceil(r.height / scale - 1e-9);
    for (int i = 0; i < out->height; i++)
        for (int j = 0; j < out->width; j++)
            out->ink[i][j] = mean_under(p, r, find_window(j, scale, r.x, r.width),
                                        find_window(i, scale, r.y, r.height), scale);
}

/* Where a side of the drawing begins in the result: its centre of mass comes to the middle, but no
 * ink leaves the image. */
static int find_place(double moment, double mass, int side)
{
    int place = (int)ceil(MNIST_IMAGE_SIDE / 2.0 - moment / mass - 0.5),
        last = MNIST_IMAGE_SIDE - side;
    place = place < last ? place : last;
    return place > 0 ? place : 0;
}

/* The darkest pixel becomes 255: a thin line is as dark as a thick one. */
static void place_box(const box *in, uint8_t out[MNIST_IMAGE_PIXELS])
{
    double mass = 0.0, across = 0.0, down = 0.0, most = 0.0;
    for (int i = 0; i < in->height; i++)
        for (int j = 0; j < in->width; j++) {
            double ink = in->ink[i][j];
            mass += ink;
            across += j * ink;
            down += i * ink;
            most = fmax(most, ink);
        }
    int x = find_place(across, mass, in->width), y = find_place(down, mass, in->height);
    memset(out, 0, MNIST_IMAGE_PIXELS);
    for (int i = 0; i < in->height; i++)
        for (int j = 0; j < in->width; j++)
            out[(i + y) * MNIST_IMAGE_SIDE + j + x] = (uint8_t)lround(255.0 * in->ink[i][j] / most);
}

/* But for faint grain. */
static bool is_one_colour(const raster *p)
{
    size_t count = (size_t)p->width * (size_t)p->height;
    int least = LEVELS, most = 0;
    for (size_t i = 0; i < count; i++) {
        least = p->grey[i] < least ? p->grey[i] : least;
        most = p->grey[i] > most ? p->grey[i] : most;
    }
    return most - least < FAINT;
}

status mnist_image_make(const char *name, raster *p, uint8_t out[MNIST_IMAGE_PIXELS])
{
    box scaled;
    bool blank = is_one_colour(p);
    int most = make_ink(p, find_background(p));
    if (most < FAINT && !blank)
        return FAIL(STATUS_INVALID,
                    "%s: no ink can be told from the paper: draw with a margin around the digit, "
                    "darker or brighter than the paper",
                    name);
    if (most < FAINT)
        return FAIL(STATUS_INVALID, "%s: nothing is drawn here: all of its %dx%d pixels are alike",
                    name, p->width, p->height);
    int edge = most * EDGE_PERCENT / 100;
    scale_into_box(p, find_ink(p, edge), &scaled);
    place_box(&scaled, out);
    return STATUS_OK;
}

/* Erases the piece of ink that this pixel belongs to, and returns its size. */
static int take_piece(uint8_t image[MNIST_IMAGE_PIXELS], int x, int y)
{
    int at = y * MNIST_IMAGE_SIDE + x, size = 1;
    if (x < 0 || y < 0 || x >= MNIST_IMAGE_SIDE || y >= MNIST_IMAGE_SIDE || image[at] < PIECE_INK)
        return 0;
    image[at] = 0;
    for (int i = 0; i < 9; i++) /* it and its eight neighbours */
        size += take_piece(image, x + i % 3 - 1, y + i / 3 - 1);
    return size;
}

bool mnist_image_has_several(const uint8_t image[MNIST_IMAGE_PIXELS])
{
    uint8_t rest[MNIST_IMAGE_PIXELS];
    int largest = 0, second = 0;
    int left = MNIST_IMAGE_SIDE, right = 0, top = MNIST_IMAGE_SIDE, bottom = 0;
    memcpy(rest, image, sizeof rest);
    for (int at = 0; at < MNIST_IMAGE_PIXELS; at++) {
        int x = at % MNIST_IMAGE_SIDE, y = at / MNIST_IMAGE_SIDE;
        if (image[at] < PIECE_INK)
            continue;
        left = x < left ? x : left;
        right = x > right ? x : right;
        top = y < top ? y : top;
        bottom = y;
        int size = take_piece(rest, x, y);
        second = size > largest ? largest : size > second ? size : second;
        largest = size > largest ? size : largest;
    }
    bool wide = 2 * (right - left + 1) > 3 * (bottom - top + 1);
    return wide || 2 * second > largest;
}
