#include "data/digits/digits.h"

#include "base/thread.h"
#include "data/digits/digits_random.h"
#include "data/digits/digits_trace.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

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
