#include "data/digits.h"

#include "base/random.h"
#include "base/status.h"
#include "base/thread.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The random numbers of one digit: a stream over Philox whose place is (key, image index). */

typedef struct digits_random {
    uint64_t key;
    uint32_t index; /* of the image */
    uint32_t block; /* the next Philox block */
    int left;       /* words of `words` not yet taken */
    philox_words words;
} digits_random;

static inline digits_random digits_random_init(uint64_t key, uint32_t index)
{
    return (digits_random){.key = key, .index = index};
}

static inline uint32_t digits_random_u32(digits_random *random)
{
    if (random->left == 0) {
        random->words = philox4x32_10(random->index, random->block++, 0, 0, random->key);
        random->left = 4;
    }
    return random->words.w[--random->left];
}

/* One of 0 ... n - 1. */
static inline uint32_t digits_random_below(digits_random *random, uint32_t n)
{
    return (uint32_t)((uint64_t)digits_random_u32(random) * n >> 32);
}

/* Uniform in [low, high). */
static inline float digits_random_uniform(digits_random *random, float low, float high)
{
    return low + (high - low) * ((float)(digits_random_u32(random) >> 8) * 0x1p-24f);
}

/* Mean 0, standard deviation `deviation`; the sum of four uniforms, so never beyond 3.47 of them.
 */
static inline float digits_random_normal(digits_random *random, float deviation)
{
    uint32_t a = digits_random_u32(random), b = digits_random_u32(random);
    uint32_t sum = (a & 0xffff) + (a >> 16) + (b & 0xffff) + (b >> 16);
    const float sqrt3 = 1.7320508f;
    return deviation * sqrt3 * ((float)sum * 0x1p-16f - 2.0f);
}

/* The path of the pen over one digit. */

enum {
    DIGITS_MAX_KNOTS = 18, /* of a shape */
    DIGITS_BOX = 20,       /* pixels: the side of the square that a digit's ink just fits */
    DIGITS_SAMPLES = 5,    /* per stretch between two knots */
    DIGITS_MAX_POINTS = DIGITS_MAX_KNOTS * DIGITS_SAMPLES,
};

typedef struct digits_trace {
    int count;
    float x[DIGITS_MAX_POINTS], y[DIGITS_MAX_POINTS]; /* pixels in the box, y downwards */
    float radius[DIGITS_MAX_POINTS];                  /* half the line's width, pixels */
    bool lift[DIGITS_MAX_POINTS];                     /* no ink from here to the next point */
    float edge;                                       /* pixels over which ink fades to paper */
} digits_trace;

/* Knots of a shape are shaken and joined by cubic splines; the points on them then go through a
 * chain of maps of the plane, from local to global: rounding of corners, an elastic field, the
 * proportions of top to bottom, slant, aspect and rotation, and last the scale that fits the ink
 * into the box. The map moves points and not pixels, so a line keeps its width.
 */

typedef enum digits_knot_kind {
    DIGITS_KNOT_GO,   /* the pen runs through smoothly */
    DIGITS_KNOT_TURN, /* a corner */
    DIGITS_KNOT_LIFT, /* the end of a stroke */
} digits_knot_kind;

/* A point that the pen passes, in heights of the digit, which lies in 0 ... 1; y grows downwards.
 */
typedef struct digits_knot {
    float x, y;
    digits_knot_kind kind;
} digits_knot;

typedef struct shape {
    uint8_t digit;
    uint8_t weight;   /* its share among the shapes of its digit */
    const char *path; /* "x,y" of each knot; ! after a corner, | between strokes */
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

enum { N_SHAPES = sizeof SHAPES / sizeof SHAPES[0] };

static const shape *pick(int digit, uint32_t draw)
{
    ASSERT(digit >= 0 && digit < 10);
    uint32_t total = 0;
    for (size_t i = 0; i < N_SHAPES; i++)
        total += SHAPES[i].digit == digit ? SHAPES[i].weight : 0u;
    uint32_t at = (uint32_t)((uint64_t)draw * total >> 32);
    const shape *s = SHAPES;
    while (s->digit != digit || at >= s->weight) {
        at -= s->digit == digit ? s->weight : 0u;
        s++;
    }
    return s;
}

static int number(const char **at)
{
    int value = 0;
    while (**at >= '0' && **at <= '9')
        value = 10 * value + (*(*at)++ - '0');
    return value;
}

/* Sets `knots` (DIGITS_MAX_KNOTS) to one of the digit's shapes, by its share, and returns their
 * number; the last one is a LIFT, and each stroke has at least two. `digit` < 10; `draw` is any 32
 * random bits. */
static int digits_shapes_pick(int digit, uint32_t draw, digits_knot *knots)
{
    int count = 0;
    for (const char *at = pick(digit, draw)->path; *at != '\0';) {
        ASSERT(count < DIGITS_MAX_KNOTS);
        digits_knot *knot = &knots[count++];
        knot->x = 0.01f * (float)number(&at);
        at++; /* the comma */
        knot->y = 0.01f * (float)number(&at);
        knot->kind = DIGITS_KNOT_GO;
        for (; *at == ' ' || *at == '!' || *at == '|'; at++) {
            if (*at != ' ')
                knot->kind = *at == '!' ? DIGITS_KNOT_TURN : DIGITS_KNOT_LIFT;
        }
    }
    knots[count - 1].kind = DIGITS_KNOT_LIFT;
    return count;
}

enum { FIELD_CELLS = 4, FIELD_KNOTS = FIELD_CELLS + 2, PRESSURE_KNOTS = 5 };

/* A smooth random displacement: uniform quadratic B-splines over -0.25 ... 1.25 in x and y. */
typedef struct field {
    float dx[FIELD_KNOTS][FIELD_KNOTS], dy[FIELD_KNOTS][FIELD_KNOTS];
} field;

static float max_f(float a, float b)
{
    return a > b ? a : b;
}

static float min_f(float a, float b)
{
    return a < b ? a : b;
}

/* About e^u for small u, without libm, whose last bit depends on the machine. */
static float stretch(float u)
{
    return (1.0f + 0.5f * u) / (1.0f - 0.5f * u);
}

/* Moves the knots a little, and the ends of strokes also along the stroke: too short or too long.
 */
static void shake(digits_random *random, digits_knot *knots, int count)
{
    float deviation = digits_random_uniform(random, 0.01f, 0.045f);
    for (int i = 0; i < count; i++) {
        knots[i].x += digits_random_normal(random, deviation);
        knots[i].y += digits_random_normal(random, deviation);
    }
    for (int i = 0; i < count; i++) {
        bool starts = i == 0 || knots[i - 1].kind == DIGITS_KNOT_LIFT;
        bool ends = knots[i].kind == DIGITS_KNOT_LIFT;
        if (!starts && !ends)
            continue;
        const digits_knot *next = starts ? &knots[i + 1] : &knots[i - 1];
        float longer = digits_random_normal(random, 0.15f);
        knots[i].x += longer * (knots[i].x - next->x);
        knots[i].y += longer * (knots[i].y - next->y);
    }
}

/* The slope of the spline at knot i, towards its neighbour at i + side. One-sided at corners. */
static void slope(const digits_knot *knots, int i, int side, float tension, float *sx, float *sy)
{
    bool first = i == 0 || knots[i - 1].kind == DIGITS_KNOT_LIFT;
    bool smooth = knots[i].kind == DIGITS_KNOT_GO && !first;
    const digits_knot *before = smooth || side < 0 ? &knots[i - 1] : &knots[i];
    const digits_knot *after = smooth || side > 0 ? &knots[i + 1] : &knots[i];
    *sx = tension * (after->x - before->x);
    *sy = tension * (after->y - before->y);
}

static void add_point(digits_trace *trace, float x, float y, bool lift)
{
    trace->x[trace->count] = x;
    trace->y[trace->count] = y;
    trace->lift[trace->count] = lift;
    trace->count++;
}

/* Hermite cubics through the knots. */
static void join(const digits_knot *knots, int count, float tension, digits_trace *trace)
{
    trace->count = 0;
    for (int i = 0; i < count; i++) {
        if (knots[i].kind == DIGITS_KNOT_LIFT) {
            add_point(trace, knots[i].x, knots[i].y, true);
            continue;
        }
        const digits_knot *a = &knots[i], *b = &knots[i + 1];
        float ax, ay, bx, by;
        slope(knots, i, 1, tension, &ax, &ay);
        slope(knots, i + 1, -1, tension, &bx, &by);
        for (int k = 0; k < DIGITS_SAMPLES; k++) {
            float t = (float)k / (float)DIGITS_SAMPLES, u = 1.0f - t;
            float h0 = u * u * (1.0f + 2.0f * t), g0 = t * u * u;
            float h1 = t * t * (3.0f - 2.0f * t), g1 = -t * t * u;
            add_point(trace, h0 * a->x + h1 * b->x + g0 * ax + g1 * bx,
                      h0 * a->y + h1 * b->y + g0 * ay + g1 * by, false);
        }
    }
}

/* A quick hand cuts corners: each pass pulls every point to the mean of its neighbours. */
static void round_corners(digits_trace *trace, int passes)
{
    for (int pass = 0; pass < passes; pass++) {
        float x = trace->x[0], y = trace->y[0]; /* the point before i, as it was */
        for (int i = 1; i + 1 < trace->count; i++) {
            float was_x = trace->x[i], was_y = trace->y[i];
            if (!trace->lift[i] && !trace->lift[i - 1]) {
                trace->x[i] = 0.5f * was_x + 0.25f * (x + trace->x[i + 1]);
                trace->y[i] = 0.5f * was_y + 0.25f * (y + trace->y[i + 1]);
            }
            x = was_x;
            y = was_y;
        }
    }
}

/* The cell of the field that holds `at`, and the weights of its three knots. */
static int field_weights(float at, float *w)
{
    float place = (at + 0.25f) * ((float)FIELD_CELLS / 1.5f);
    place = min_f(max_f(place, 0.0f), (float)FIELD_CELLS);
    int cell = place < (float)FIELD_CELLS ? (int)place : FIELD_CELLS - 1;
    float t = place - (float)cell;
    w[0] = 0.5f * (1.0f - t) * (1.0f - t);
    w[1] = 0.5f + t * (1.0f - t);
    w[2] = 0.5f * t * t;
    return cell;
}

static void bend(digits_random *random, digits_trace *trace)
{
    field f;
    float deviation = digits_random_uniform(random, 0.02f, 0.09f);
    for (int i = 0; i < FIELD_KNOTS * FIELD_KNOTS; i++) {
        f.dx[i / FIELD_KNOTS][i % FIELD_KNOTS] = digits_random_normal(random, deviation);
        f.dy[i / FIELD_KNOTS][i % FIELD_KNOTS] = digits_random_normal(random, deviation);
    }
    for (int i = 0; i < trace->count; i++) {
        float wx[3], wy[3], dx = 0.0f, dy = 0.0f;
        int column = field_weights(trace->x[i], wx), row = field_weights(trace->y[i], wy);
        for (int k = 0; k < 9; k++) {
            float w = wy[k / 3] * wx[k % 3];
            dx += w * f.dx[row + k / 3][column + k % 3];
            dy += w * f.dy[row + k / 3][column + k % 3];
        }
        trace->x[i] += dx;
        trace->y[i] += dy;
    }
}

static void pose(digits_random *random, int digit, digits_trace *trace)
{
    float waist = digits_random_normal(random, 0.20f); /* moves the middle up or down */
    float taper = digits_random_normal(random, 0.25f); /* widens the bottom */
    float slant = 0.12f + digits_random_normal(random, digit == 1 ? 0.35f : 0.25f);
    float aspect = 1.12f * stretch(digits_random_normal(random, 0.18f));
    float half = digits_random_normal(random, 0.06f); /* tangent of half the angle of rotation */
    float unit = 1.0f / (1.0f + half * half);
    float cosine = (1.0f - half * half) * unit, sine = 2.0f * half * unit;
    for (int i = 0; i < trace->count; i++) {
        float x = trace->x[i] - 0.35f, y = trace->y[i];
        y += waist * y * (1.0f - y) - 0.5f;
        x = aspect * x * (1.0f + taper * y) - slant * y;
        trace->x[i] = cosine * x - sine * y;
        trace->y[i] = sine * x + cosine * y;
    }
}

/* Line widths along the way: the pen's own, times a pressure that comes and goes. */
static float press(digits_random *random, digits_trace *trace)
{
    float pressure[PRESSURE_KNOTS], widest = 0.0f;
    float pen = 1.25f * stretch(digits_random_normal(random, 0.30f));
    float deviation = digits_random_uniform(random, 0.03f, 0.18f);
    for (int k = 0; k < PRESSURE_KNOTS; k++)
        pressure[k] = 1.0f + digits_random_normal(random, deviation);
    for (int i = 0; i < trace->count; i++) {
        float place = (float)(i * (PRESSURE_KNOTS - 1)) / (float)trace->count;
        int k = (int)place;
        float t = place - (float)k;
        trace->radius[i] = pen * (pressure[k] + t * (pressure[k + 1] - pressure[k]));
        widest = max_f(widest, trace->radius[i]);
    }
    return widest;
}

/* Scales and moves the trace so that the ink, `margin` around it, fills the box's longer side and
 * is in the middle of the other. */
static void fit(digits_trace *trace, float margin)
{
    float left = trace->x[0], right = left, top = trace->y[0], bottom = top;
    for (int i = 1; i < trace->count; i++) {
        left = min_f(left, trace->x[i]);
        right = max_f(right, trace->x[i]);
        top = min_f(top, trace->y[i]);
        bottom = max_f(bottom, trace->y[i]);
    }
    float scale = ((float)DIGITS_BOX - 2.0f * margin) / max_f(right - left, bottom - top);
    for (int i = 0; i < trace->count; i++) {
        trace->x[i] = 0.5f * (float)DIGITS_BOX + scale * (trace->x[i] - 0.5f * (left + right));
        trace->y[i] = 0.5f * (float)DIGITS_BOX + scale * (trace->y[i] - 0.5f * (top + bottom));
    }
}

/* Writes `digit` (< 10) once, with a hand and a pen drawn from `random`. */
static void digits_trace_write(digits_random *random, int digit, digits_trace *trace)
{
    digits_knot knots[DIGITS_MAX_KNOTS];
    int count = digits_shapes_pick(digit, digits_random_u32(random), knots);
    shake(random, knots, count);
    join(knots, count, digits_random_uniform(random, 0.35f, 0.6f), trace);
    round_corners(trace, (int)digits_random_below(random, 8));
    bend(random, trace);
    pose(random, digit, trace);
    trace->edge = digits_random_uniform(random, 0.3f, 1.0f);
    float widest = press(random, trace);
    fit(trace, widest + 0.5f * trace->edge);
}

/* Ink is painted at twice the resolution of the box and averaged down. Each stretch between two
 * points is a capsule, a line with round ends whose radius may change from one to the other; if
 * capsules overlap, the darker one counts. */

enum { FINE = 2, FINE_SIDE = FINE * DIGITS_BOX, MIDDLE = DIGITS_SIDE / 2 };

typedef struct capsule {
    float x, y, dx, dy;    /* the axis: from (x, y) to (x + dx, y + dy), fine pixels */
    float radius, dradius; /* at its start, and the change over its length */
    float hardness;        /* of the edge */
    float over_length2;    /* 1 / (dx dx + dy dy) */
} capsule;

static int clamp_i(float value, int low, int high)
{
    if (value <= (float)low)
        return low;
    return value >= (float)high ? high : (int)value;
}

static float unit_f(float value)
{
    value = value > 0.0f ? value : 0.0f;
    return value < 1.0f ? value : 1.0f;
}

/* Near the edge, (r r - d d) / 2r is the distance to it: so no root is needed. */
static void paint_row(const capsule *c, float py, int from, int to, float *row)
{
    for (int i = from; i < to; i++) {
        float px = (float)i + 0.5f - c->x;
        float t = unit_f((px * c->dx + py * c->dy) * c->over_length2);
        float ex = px - t * c->dx, ey = py - t * c->dy, r = c->radius + t * c->dradius;
        float ink = unit_f((r * r - ex * ex - ey * ey) * c->hardness + 0.5f);
        row[i] = row[i] > ink ? row[i] : ink;
    }
}

static void paint(const capsule *c, float reach, float *fine)
{
    float left = c->dx < 0.0f ? c->x + c->dx : c->x, right = c->dx < 0.0f ? c->x : c->x + c->dx;
    float top = c->dy < 0.0f ? c->y + c->dy : c->y, bottom = c->dy < 0.0f ? c->y : c->y + c->dy;
    int from = clamp_i(left - reach, 0, FINE_SIDE);
    int to = clamp_i(right + reach + 1.0f, 0, FINE_SIDE);
    int last = clamp_i(bottom + reach + 1.0f, 0, FINE_SIDE);
    for (int j = clamp_i(top - reach, 0, FINE_SIDE); j < last; j++)
        paint_row(c, (float)j + 0.5f - c->y, from, to, fine + j * FINE_SIDE);
}

static void paint_trace(const digits_trace *trace, float *fine)
{
    float scale = (float)FINE, edge = scale * trace->edge;
    for (int i = 0; i + 1 < trace->count; i++) {
        if (trace->lift[i])
            continue;
        float r0 = scale * trace->radius[i], r1 = scale * trace->radius[i + 1];
        capsule c = {.x = scale * trace->x[i],
                     .y = scale * trace->y[i],
                     .dx = scale * (trace->x[i + 1] - trace->x[i]),
                     .dy = scale * (trace->y[i + 1] - trace->y[i]),
                     .radius = r0,
                     .dradius = r1 - r0,
                     .hardness = 1.0f / (edge * (r0 + r1))};
        float length2 = c.dx * c.dx + c.dy * c.dy;
        c.over_length2 = 1.0f / (length2 > 1e-6f ? length2 : 1e-6f);
        paint(&c, (r0 > r1 ? r0 : r1) + 0.5f * edge, fine);
    }
}

/* Sets `box` to the means of the fine pixels, times what makes the darkest one 255. */
static void average(const float *fine, float *box)
{
    float darkest = 1e-3f;
    for (int i = 0; i < DIGITS_BOX * DIGITS_BOX; i++) {
        const float *at = fine + i / DIGITS_BOX * FINE * FINE_SIDE + i % DIGITS_BOX * FINE;
        box[i] = at[0] + at[1] + at[FINE_SIDE] + at[FINE_SIDE + 1];
        darkest = box[i] > darkest ? box[i] : darkest;
    }
    for (int i = 0; i < DIGITS_BOX * DIGITS_BOX; i++)
        box[i] *= 255.0f / darkest;
}

/* Draws the trace, and moves its ink's centre of mass to the middle of `image` (28, 28; set). */
static void digits_ink_draw(const digits_trace *trace, uint8_t *image)
{
    float fine[FINE_SIDE * FINE_SIDE] = {0}, box[DIGITS_BOX * DIGITS_BOX];
    paint_trace(trace, fine);
    average(fine, box);

    float mass = 0.0f, mass_x = 0.0f, mass_y = 0.0f;
    for (int i = 0; i < DIGITS_BOX * DIGITS_BOX; i++) {
        mass += box[i];
        mass_x += box[i] * (float)(i % DIGITS_BOX);
        mass_y += box[i] * (float)(i / DIGITS_BOX);
    }
    const int room = DIGITS_SIDE - DIGITS_BOX;
    int left = clamp_i((float)MIDDLE + 0.5f - mass_x / mass, 1, room - 1);
    int top = clamp_i((float)MIDDLE + 0.5f - mass_y / mass, 1, room - 1);
    memset(image, 0, DIGITS_PIXELS);
    for (int y = 0; y < DIGITS_BOX; y++) {
        for (int x = 0; x < DIGITS_BOX; x++)
            image[(top + y) * DIGITS_SIDE + left + x] = (uint8_t)(box[y * DIGITS_BOX + x] + 0.5f);
    }
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
        digits_random random = digits_random_init(j->key, j->first + i);
        digits_trace trace;
        int digit = (int)digits_random_below(&random, 10);
        digits_trace_write(&random, digit, &trace);
        digits_ink_draw(&trace, j->images + (size_t)i * DIGITS_PIXELS);
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
    TRY(team_create(threads, NULL, &crew));
    job j = {split_key(range->seed, range->split), first, count, images, labels};
    int pieces = (int)(count / PIECE + (count % PIECE != 0));
    team_run(crew, make_piece, &j, pieces);
    team_destroy(crew);
    return STATUS_OK;
}
