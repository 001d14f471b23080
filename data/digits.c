#include "data/digits.h"

#include "base/random.h"
#include "base/status.h"
#include "base/thread.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* The random numbers of one image: a stream over Philox, at the image's index. */
typedef struct random_stream {
    uint64_t key;
    uint32_t index, drawn;
    philox_words words;
} random_stream;

static uint32_t draw_u32(random_stream *random)
{
    if (random->drawn % 4 == 0)
        random->words = philox4x32_10(random->index, random->drawn / 4, 0, 0, random->key);
    return random->words.w[random->drawn++ % 4];
}

/* One of 0 ... n - 1. */
static uint32_t draw_below(random_stream *random, uint32_t n)
{
    return (uint32_t)((uint64_t)draw_u32(random) * n >> 32);
}

/* Uniform in [low, high). */
static float draw_uniform(random_stream *random, float low, float high)
{
    return low + (high - low) * ((float)(draw_u32(random) >> 8) * 0x1p-24f);
}

/* Mean 0; the sum of four uniforms, so never beyond 3.47 standard deviations. */
static float draw_normal(random_stream *random, float deviation)
{
    uint32_t a = draw_u32(random), b = draw_u32(random);
    uint32_t sum = (a & 0xffff) + (a >> 16) + (b & 0xffff) + (b >> 16);
    const float sqrt3 = 1.7320508f;
    return deviation * sqrt3 * ((float)sum * 0x1p-16f - 2.0f);
}

/* About e^u for a small random u, without libm, whose last bit depends on the machine. */
static float draw_factor(random_stream *random, float deviation)
{
    float u = draw_normal(random, deviation);
    return (1.0f + 0.5f * u) / (1.0f - 0.5f * u);
}

/* The ways to write a digit: knots that the pen passes, in hundredths of the digit's height, y
 * downwards. ! follows a corner, | ends a stroke. */
typedef struct shape {
    uint32_t digit, weight; /* its share among the shapes of its digit */
    const char *path;
} shape;

static const shape SHAPES[] = {
    {0, 5, "40,2 14,20 5,52 16,86 38,99 60,84 70,50 60,16 38,2"},
    {0, 3, "55,8 32,3 10,24 5,58 20,93 45,97 66,75 68,38 52,10 36,4 28,10"},
    {0, 2, "52,14 36,6 14,22 6,55 18,92 44,96 66,70 64,30 44,6 30,2"},
    {1, 16, "30,0 30,50 30,100"},
    {1, 3, "12,22 34,0! 34,50 34,100"},
    {1, 1, "14,20 34,0! 34,50 34,99 | 10,99 35,98 60,99"},
    {2, 4, "8,22 20,5 42,1 60,14 60,36 42,62 20,84 4,98! 32,96 68,97"},
    {2, 4, "8,20 24,3 46,2 60,18 56,42 38,68 18,90 6,94 4,84 14,78 32,86 52,97 72,92"},
    {2, 2, "8,8 34,4 58,8 56,24 30,64 5,96! 36,95 66,94"},
    {2, 2, "12,32 6,18 20,3 44,2 62,18 58,42 34,70 12,92 6,98! 28,92 50,97 70,92"},
    {2, 3, "14,30 24,6 50,2 62,24 54,60 34,90 12,98 4,80 20,66 40,76 60,96 76,92"},
    {2, 1, "8,20 22,8 34,10 32,40 16,76 4,96! 34,95 70,94"},
    {2, 2, "10,14 34,2 56,10 56,40 36,76 12,98 6,76 34,72 72,90 92,84"},
    {3, 4, "8,14 28,1 54,6 58,26 44,42 24,48! 46,52 64,68 58,90 34,100 6,90"},
    {3, 2, "8,12 30,1 56,8 58,28 40,46 24,50 22,44 34,44 56,54 66,74 52,95 26,99 4,88"},
    {3, 1, "8,4 34,3 60,3! 46,22 30,40! 54,46 66,68 54,92 28,100 4,90"},
    {3, 2, "10,10 36,0 58,14 50,36 30,46! 52,50 62,72 48,92 24,98 4,96"},
    {4, 4, "14,2 8,28 4,54! 34,53 70,50 | 56,4 52,50 48,100"},
    {4, 2, "50,2 26,28 2,60! 36,61 72,60 | 52,0 50,50 48,100"},
    {4, 3, "10,2 4,34 16,52 40,48 58,34 | 62,2 56,50 50,100"},
    {4, 2, "14,4 8,48! 36,46 58,40 62,4! 56,50 50,100"},
    {4, 2, "16,0 10,26 4,50! 36,48 68,44 | 48,22 44,60 40,100"},
    {5, 4, "14,4 10,24 8,46! 30,38 54,48 60,70 46,92 22,100 2,92 | 14,4 40,3 66,2"},
    {5, 4, "64,2 40,4 16,6! 12,26 10,46! 34,40 56,54 58,78 38,97 4,96"},
    {5, 2, "66,4 38,4 18,14 14,34 32,46 52,60 54,82 34,98 4,94"},
    {5, 2, "20,8 16,28 12,46 34,46 54,62 50,86 26,99 2,94 | 28,8 50,5 76,0"},
    {5, 2, "62,3 40,4 18,6! 14,26 12,44 34,38 58,52 60,78 40,98 16,97 4,84 14,72"},
    {5, 1, "18,8 14,28 20,38 42,44 50,62 44,82 28,100 | 18,8 46,5 72,0"},
    {6, 4, "46,0 22,22 8,52 8,82 26,99 50,92 58,72 44,56 22,62 10,80"},
    {6, 3, "40,0 20,34 6,68 14,94 38,98 54,82 48,64 30,60 12,72"},
    {6, 2, "58,8 42,1 20,20 6,54 12,88 34,100 58,88 60,66 42,54 20,64 10,76"},
    {6, 2, "50,0 28,26 10,58 6,84 20,99 40,94 46,80 36,70 18,78 10,90"},
    {6, 3, "14,0 6,36 6,70 20,98 46,96 62,72 50,50 28,56 20,80"},
    {6, 2, "20,0 6,30 4,66 16,96 42,98 60,76 50,52 30,56 22,78 30,96"},
    {7, 5, "4,8 34,6 62,4! 48,34 34,66 24,100"},
    {7, 2, "4,12 30,4 56,4 62,14 46,48 34,74 28,100"},
    {7, 2, "6,20 8,4! 36,4 62,4! 44,50 30,100"},
    {7, 3, "4,6 34,5 62,4! 46,48 28,100 | 20,52 44,48 68,46"},
    {7, 2, "2,10 24,12 52,6! 52,40 50,70 48,100"},
    {7, 1, "4,14 12,2 24,12 44,10 62,2! 48,40 36,66 28,100"},
    {8, 5, "58,14 36,1 12,14 14,34 36,48 58,66 56,90 32,100 8,88 10,66 34,48 56,30 58,14"},
    {8, 2, "34,2 14,14 18,38 36,46 54,34 54,12 34,2 | 36,46 10,62 8,86 34,99 60,86 58,60 36,46"},
    {8, 3, "60,10 40,2 18,10 18,30 40,50 54,72 46,94 24,98 10,82 24,62 48,38 66,16"},
    {8, 3, "44,0 22,8 20,28 40,44 50,66 44,94 28,98 22,78 36,50 56,24 58,8 44,0"},
    {9, 4, "56,16 36,2 10,14 6,36 24,50 46,40 56,16! 52,58 48,100"},
    {9, 2, "58,14 34,2 10,16 8,38 28,50 50,36 58,14! 58,56 46,90 26,99 8,92"},
    {9, 3, "56,10 34,2 10,18 8,38 26,46 48,32 56,10 54,36 42,68 30,100"},
    {9, 2, "50,6 26,4 8,22 16,42 40,40 56,18! 50,60 44,100"},
    {9, 2, "46,4 24,8 16,28 26,42 44,30 50,6! 48,50 42,100"},
};

enum {
    N_SHAPES = sizeof SHAPES / sizeof SHAPES[0],
    MAX_KNOTS = 18,
    SAMPLES = 5, /* points between two knots */
    BOX = 20,    /* pixels: the side of the square that a digit's ink just fits */
};

typedef struct point {
    float x, y;
    float sx, sy; /* a knot's: the curve's slope there */
    bool corner;  /* the curve does not run through it smoothly */
    bool lift;    /* no ink from here to the next point */
} point;

static const char *pick_shape(random_stream *random, uint32_t digit)
{
    uint32_t total = 0;
    for (size_t i = 0; i < N_SHAPES; i++)
        total += SHAPES[i].digit == digit ? SHAPES[i].weight : 0;
    uint32_t at = draw_below(random, total);
    const shape *s = SHAPES;
    for (; s->digit != digit || at >= s->weight; s++)
        at -= s->digit == digit ? s->weight : 0;
    return s->path;
}

/* Reads a path, each knot moved a little by a shaking hand; returns their number. */
static int read_knots(random_stream *random, const char *at, point *knots)
{
    int n = 0;
    float shake = draw_uniform(random, 0.01f, 0.055f);
    while (*at != '\0') {
        char *end = NULL;
        ASSERT(n < MAX_KNOTS);
        point *knot = &knots[n++];
        knot->x = 0.01f * (float)strtol(at, &end, 10) + draw_normal(random, shake);
        knot->y = 0.01f * (float)strtol(end + 1, &end, 10) + draw_normal(random, shake);
        knot->corner = *end == '!';
        at = end + strspn(end, "! ");
        knot->lift = *at == '|' || *at == '\0';
        at += strspn(at, "| ");
    }
    return n;
}

/* Hermite cubics through the knots; their slope is 0 at corners and at the ends of strokes. Returns
 * the number of points. */
static int join_knots(random_stream *random, point *knots, int n, point *points)
{
    int count = 0;
    float tension = draw_uniform(random, 0.35f, 0.6f);
    for (int i = 0; i < n; i++) {
        bool smooth = i > 0 && !knots[i - 1].lift && !knots[i].lift && !knots[i].corner;
        knots[i].sx = smooth ? tension * (knots[i + 1].x - knots[i - 1].x) : 0.0f;
        knots[i].sy = smooth ? tension * (knots[i + 1].y - knots[i - 1].y) : 0.0f;
    }
    for (int i = 0; i < n; i++) {
        const point *a = &knots[i], *b = &knots[i + 1];
        points[count++] = *a;
        for (int k = 1; k < SAMPLES && !a->lift; k++) {
            float t = (float)k / (float)SAMPLES, u = 1.0f - t;
            float ha = u * u * (1.0f + 2.0f * t), ga = t * u * u;
            float hb = t * t * (3.0f - 2.0f * t), gb = -t * t * u;
            points[count++] = (point){.x = ha * a->x + hb * b->x + ga * a->sx + gb * b->sx,
                                      .y = ha * a->y + hb * b->y + ga * a->sy + gb * b->sy};
        }
    }
    return count;
}

/* A hand of its own: a random map of the plane of the second degree, about the digit's middle. It
 * moves points and not pixels, so a line keeps its width. */
static void bend(random_stream *random, uint32_t digit, point *points, int count)
{
    float squares[2][3];
    for (int i = 0; i < 6; i++)
        squares[i / 3][i % 3] = draw_normal(random, 0.26f);
    float aspect = 1.12f * draw_factor(random, 0.18f), turn = draw_normal(random, 0.12f);
    float slant = 0.12f + turn + draw_normal(random, digit == 1 ? 0.35f : 0.25f);
    for (int i = 0; i < count; i++) {
        float x = points[i].x - 0.35f, y = points[i].y - 0.5f, xx = x * x, xy = x * y, yy = y * y;
        const float *a = squares[0], *b = squares[1];
        points[i].x = aspect * x - slant * y + a[0] * xx + a[1] * xy + a[2] * yy;
        points[i].y = y + turn * x + b[0] * xx + b[1] * xy + b[2] * yy;
    }
}

/* Scales and moves the points so that the ink, `margin` around them, fills the box's longer side
 * and is in the middle of the other. */
static void fit(point *points, int count, float margin)
{
    float left = points[0].x, right = left, top = points[0].y, bottom = top;
    for (int i = 1; i < count; i++) {
        left = points[i].x < left ? points[i].x : left;
        right = points[i].x > right ? points[i].x : right;
        top = points[i].y < top ? points[i].y : top;
        bottom = points[i].y > bottom ? points[i].y : bottom;
    }
    float width = right - left, height = bottom - top, middle = 0.5f * (float)BOX;
    float scale = ((float)BOX - 2.0f * margin) / (width > height ? width : height);
    for (int i = 0; i < count; i++) {
        points[i].x = middle + scale * (points[i].x - 0.5f * (left + right));
        points[i].y = middle + scale * (points[i].y - 0.5f * (top + bottom));
    }
}

typedef struct pen {
    float radius, edge; /* pixels: half the line's width, and over how many ink fades to paper */
} pen;

static float clamp(float value, float low, float high)
{
    value = value > low ? value : low;
    return value < high ? value : high;
}

/* Inks the way from a to b, a line with round ends. If lines overlap, the darker one counts. Near
 * the edge, (r r - d d) / 2r is the distance to it: so no root is needed. */
static void paint(const pen *p, const point *a, const point *b, float *box)
{
    float dx = b->x - a->x, dy = b->y - a->y, length2 = dx * dx + dy * dy;
    float over = 1.0f / (length2 > 1e-6f ? length2 : 1e-6f);
    float r = p->radius, hardness = 0.5f / (p->edge * r), reach = r + 0.5f * p->edge;
    int left = (int)clamp((dx < 0.0f ? b->x : a->x) - reach, 0.0f, (float)BOX);
    int right = (int)clamp((dx < 0.0f ? a->x : b->x) + reach + 1.0f, 0.0f, (float)BOX);
    int top = (int)clamp((dy < 0.0f ? b->y : a->y) - reach, 0.0f, (float)BOX);
    int bottom = (int)clamp((dy < 0.0f ? a->y : b->y) + reach + 1.0f, 0.0f, (float)BOX);
    for (int y = top; y < bottom; y++)
        for (int x = left; x < right; x++) {
            float px = (float)x + 0.5f - a->x, py = (float)y + 0.5f - a->y;
            float t = clamp((px * dx + py * dy) * over, 0.0f, 1.0f);
            float ex = px - t * dx, ey = py - t * dy;
            float ink = clamp((r * r - ex * ex - ey * ey) * hardness + 0.5f, 0.0f, 1.0f);
            float *at = &box[y * BOX + x];
            *at = *at > ink ? *at : ink;
        }
}

/* Moves the ink's centre of mass to the middle of `image` (28, 28; set), the darkest pixel 255. */
static void place(const float *box, uint8_t *image)
{
    float mass = 0.0f, mass_x = 0.0f, mass_y = 0.0f, darkest = 1e-3f;
    for (int i = 0; i < BOX * BOX; i++) {
        mass += box[i];
        mass_x += box[i] * (float)(i % BOX);
        mass_y += box[i] * (float)(i / BOX);
        darkest = box[i] > darkest ? box[i] : darkest;
    }
    const float middle = 0.5f * (float)DIGITS_SIDE + 0.5f, most = (float)(DIGITS_SIDE - BOX - 1);
    int left = (int)clamp(middle - mass_x / mass, 1.0f, most);
    int top = (int)clamp(middle - mass_y / mass, 1.0f, most);
    memset(image, 0, DIGITS_PIXELS);
    for (int i = 0; i < BOX * BOX; i++)
        image[(top + i / BOX) * DIGITS_SIDE + left + i % BOX] =
            (uint8_t)(box[i] * 255.0f / darkest + 0.5f);
}

static void write_digit(random_stream *random, uint32_t digit, uint8_t *image)
{
    point knots[MAX_KNOTS], points[MAX_KNOTS * SAMPLES];
    float box[BOX * BOX] = {0};
    pen p = {1.25f * draw_factor(random, 0.30f), draw_uniform(random, 0.6f, 1.2f)};
    int n = read_knots(random, pick_shape(random, digit), knots);
    int count = join_knots(random, knots, n, points);
    bend(random, digit, points, count);
    fit(points, count, p.radius + 0.5f * p.edge);
    for (int i = 0; i + 1 < count; i++)
        if (!points[i].lift)
            paint(&p, &points[i], &points[i + 1], box);
    place(box, image);
}

enum { PIECE = 64 }; /* images that a thread makes at a time */

typedef struct job {
    uint64_t key;
    uint32_t first, count;
    uint8_t *images, *labels;
} job;

/* Splits differ in their key, so that no index of one meets an index of the other. */
static uint64_t split_key(uint64_t seed, digits_split split)
{
    philox_words words = philox4x32_10((uint32_t)split, 0, 0, 1, seed);
    return (uint64_t)words.w[0] << 32 | words.w[1];
}

static void make_piece(void *arg, int piece)
{
    const job *j = arg;
    uint32_t from = (uint32_t)piece * PIECE;
    uint32_t to = j->count - from < PIECE ? j->count : from + PIECE;
    for (uint32_t i = from; i < to; i++) {
        random_stream random = {.key = j->key, .index = j->first + i};
        uint32_t digit = draw_below(&random, 10);
        write_digit(&random, digit, j->images + (size_t)i * DIGITS_PIXELS);
        j->labels[i] = (uint8_t)digit;
    }
}

status digits_generate(const digits_range *range, int threads, uint8_t *images, uint8_t *labels)
{
    uint32_t first = range->first, count = range->count;
    if (threads < 1)
        return FAIL(STATUS_INVALID, "digits: %d threads, expected at least 1", threads);
    if (count > 0 && count - 1 > UINT32_MAX - first)
        return FAIL(STATUS_INVALID, "digits: %u images from %u on: an index exceeds 32 bits",
                    (unsigned)count, (unsigned)first);
    team *crew = NULL;
    TRY(team_create(threads, &crew));
    job j = {split_key(range->seed, range->split), first, count, images, labels};
    int pieces = (int)(count / PIECE + (count % PIECE != 0));
    team_run(crew, make_piece, &j, pieces);
    team_destroy(crew);
    return STATUS_OK;
}
