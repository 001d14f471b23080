/* Knots of a shape are shaken and joined by cubic splines; the points on them then go through a
 * chain of maps of the plane, from local to global: rounding of corners, an elastic field, the
 * proportions of top to bottom, slant, aspect and rotation, and last the scale that fits the ink
 * into the box. The map moves points and not pixels, so a line keeps its width.
 */
#include "data/digits/digits_trace.h"

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

void digits_trace_write(digits_random *random, int digit, digits_trace *trace)
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
