/* The border tells the background: its median is the paper, and how far three quarters of it stay
 * from that is the paper's shade and grain. Ink is what is further away than these, on the side
 * that has more of it. On a clean drawing shade is 0, and each level of grey counts. On a
 * photograph the paper's own greys fall away.
 *
 * Scaling averages: a pixel of the result is the mean of the source under it, where pixels of the
 * edge count by the part of them that lies there. If the source is the smaller one, the window is
 * one source pixel wide, and the mean is linear interpolation. */
#include "data/raster/mnist_image.h"

#include <math.h>
#include <string.h>

enum {
    LEVELS = 256,
    FAINT = 16,        /* ink that differs from the paper by less is none */
    EDGE_PERCENT = 10, /* of the darkest ink: where the drawing begins */
    PIECE_INK = 64,    /* of the result: what a piece of ink consists of */
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
