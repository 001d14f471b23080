/* Linear layers. The weight lies in the arena as panels of up to 64 inputs, a panel as chunks of up
 * to 128 outputs, (I/64, O/128, 64, 128), outputs innermost. So every product reads or writes a
 * chunk from its first float to its last, and a chunk fits the first level of cache:
 *
 *   forward            y (n, 128) += x (n, 64) chunk (64, 128), for each panel
 *   backward, weights  chunk of dw (64, 128) = x^T (64, n) dy (n, 128)
 *   backward, data     dx (n, 64) += dy (n, 128) chunk^T (128, 64), for each chunk
 *
 * Most of x is zeros, or the background of a picture. What else is in 64 samples times 64 inputs is
 * multiplied by lists (kernels/cpu/sparse_panel.h). Forward makes them, backward reads them if the
 * batch is one such block. Where x is 0 after a relu, its gradient goes no further: then dx is
 * computed only elsewhere.
 *
 * Backward, a piece is a panel. Forward, it is a block of samples times a stretch of panels; then
 * the sums of the stretches are added in their order. Stretches depend on the number of inputs
 * alone, so no row of y depends on the other samples, but for the rounding of a background that
 * is not 0. A large batch goes in rounds of samples, so that what a round reads again is still in
 * a cache.
 */
#include "base/trace.h"
#include "kernels/cpu/linear_plan.h"

#include <string.h>

/* One round: n samples of a batch. */
typedef struct linear_job {
    linear_plan *p;
    int first, n;                 /* of the batch */
    const float *x, *weight, *dy; /* x and dy of the round */
    const linear_epilogue *epilogue;
    float *y; /* of the batch */
    const param_gradients *gradients;
    const float *input; /* of the round; NULL: no relu */
    float *dx, scale;   /* of the round */
} linear_job;

/* n rows of `width` floats lie too far apart for a processor to see a pattern. */
static void prefetch_rows(const float *x, size_t stride, int n, int width)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < width; j += PANEL_STEP)
            __builtin_prefetch(x + (size_t)i * stride + j);
}

/* Outputs [first, first + count). */
typedef struct chunk {
    int first, count;
    int padded; /* count, up to a multiple of LANES */
} chunk;

/* The chunk that begins at output `first`; its count is 0 behind the last. */
static chunk chunk_at(const linear_plan *p, int first)
{
    int count = least(CHUNK, p->s.out_features - first);
    return (chunk){first, count, pieces_of(count, LANES) * LANES};
}

/* n rows of `from` floats to rows of `to`; zeros follow if these are longer. */
static void copy_rows(const float *x, size_t from, int n, size_t to, float *out)
{
    size_t count = from < to ? from : to;
    for (int i = 0; i < n; i++, x += from, out += to) {
        memcpy(out, x, sizeof *out * count);
        memset(out + count, 0, sizeof *out * (to - count));
    }
}

/* A chunk of a panel, (width, padded): in the arena, or in `room` if its rows have to be padded. */
static const float *weights_of(const linear_plan *p, const float *weight, int panel, const chunk *c,
                               float *room)
{
    int width = panel_width(p, panel);
    const float *at = weight + panel_offset(p, panel) + width * c->first;
    if (c->count == c->padded)
        return at;
    copy_rows(at, (size_t)c->count, width, (size_t)c->padded, room);
    return room;
}

/* What a piece needs for a panel of a block of samples. */
typedef struct panel_room {
    _Alignas(64) float x[PANEL * SAMPLES], chunk[PANEL * CHUNK];
    sparse_panel lists;
} panel_room;

/* A product whose A is in lists, or, if these are NULL, m->a, rows of 64 floats. */
static void multiply(const linear_plan *p, const sparse_panel *lists, matmul_args m, int rows,
                     int columns)
{
    const vector_ops *vec = p->cpu->vec;
    m.a_row = PANEL;
    m.a_step = 1;
    if (lists != NULL)
        vec->sparse_multiply(lists, &m, columns);
    else if (p->how == PRECISION_F32)
        vec->matmul(&m, rows, columns);
    else
        for (int done = 0; done < columns; done += PANEL, m.b += PANEL, m.c += PANEL) {
            vec->matmul_bf16(&m, rows, least(PANEL, columns - done));
            m.ahead = (matmul_ahead){0};
        }
}

/* The lists of n samples of a panel's inputs, and those of its transpose, if backward may read
 * them; NULL: it is dense, and in room->x. */
static const sparse_panel *pack_samples(linear_plan *p, const float *x, int n, int panel,
                                        panel_room *room)
{
    size_t features = (size_t)p->s.in_features;
    int width = panel_width(p, panel);
    bool sparse = false;
    if (p->lists != NULL) {
        int nonzero = p->cpu->vec->sparse_pack(x, features, n, width, &room->lists);
        atomic_fetch_add_explicit(&p->nonzero, nonzero, memory_order_relaxed);
        sparse = room->lists.rows > 0;
    }
    if (p->listed != NULL && sparse)
        p->cpu->vec->sparse_transpose(&room->lists, &p->lists[panel]);
    else if (p->listed != NULL)
        p->lists[panel].rows = 0;
    for (int i = 0; i < n && !sparse; i++)
        memcpy(room->x + i * PANEL, x + (size_t)i * features, sizeof *x * (size_t)width);
    return sparse ? &room->lists : NULL;
}

static void forward_piece(void *arg, int piece)
{
    const linear_job *job = arg;
    linear_plan *p = job->p;
    int blocks = pieces_of(job->n, SAMPLES), block = piece % blocks, stretch = piece / blocks;
    int first = block * SAMPLES, n = least(SAMPLES, job->n - first);
    int panel = stretch * p->panels / p->stretches;
    int end = (stretch + 1) * p->panels / p->stretches;
    size_t features = (size_t)p->s.in_features;
    const float *x = job->x + (size_t)first * features + panel_first(p, panel);
    float *sums = p->cpu->scratch + (size_t)stretch * p->stretch_floats;
    panel_room room;
    matmul_args m = {.a = room.x};
    for (; panel < end; panel++, m.add = true) {
        int width = panel_width(p, panel), next = panel + 1 < end ? panel_width(p, panel + 1) : 0;
        const sparse_panel *lists = pack_samples(p, x, n, panel, &room);
        x += width;
        prefetch_rows(x, features, n, next);
        m.depth = width;
        for (chunk c = chunk_at(p, 0); c.count > 0; c = chunk_at(p, c.first + CHUNK)) {
            m.b = weights_of(p, job->weight, panel, &c, room.chunk);
            m.c = sums + c.first * job->n + first * c.padded;
            m.b_step = m.c_row = (size_t)c.padded;
            m.ahead =
                (matmul_ahead){.at = job->weight + panel_offset(p, panel + 1) + next * c.first,
                               .row = (size_t)(next * c.count),
                               .rows = next > 0,
                               .columns = next * c.count};
            multiply(p, lists, m, n, c.padded);
        }
    }
}

/* Samples of y from the sums of all stretches. */
static void finish_piece(void *arg, int piece)
{
    const linear_job *job = arg;
    const linear_plan *p = job->p;
    const vector_ops *vec = p->cpu->vec;
    int first = piece * FINISH_SAMPLES, n = least(FINISH_SAMPLES, job->n - first);
    float *y = job->y + (size_t)(job->first + first) * (size_t)p->s.out_features;
    for (int i = first; i < first + n; i++, y += p->s.out_features)
        for (chunk c = chunk_at(p, 0); c.count > 0; c = chunk_at(p, c.first + CHUNK)) {
            const float *sums = p->cpu->scratch + c.first * job->n + i * c.padded;
            memcpy(y + c.first, sums, sizeof *y * (size_t)c.count);
            for (int stretch = 1; stretch < p->stretches; stretch++)
                vec->add(y + c.first, sums + (size_t)stretch * p->stretch_floats, (size_t)c.count);
        }
    vec->linear_epilogue(job->y, job->first + first, n, p->s.out_features, job->epilogue);
}

static void trace_nonzero(linear_plan *p, int n)
{
    int64_t all = (int64_t)n * p->s.in_features;
    if (p->lists != NULL && all > 0)
        trace_number(p->cpu->dev->lane, CPU_NONZERO, 100 * atomic_load(&p->nonzero) / all);
}

status cpu_linear_forward(linear *plan, int n, const float *x, const float *weight,
                          const linear_epilogue *epilogue, float *y)
{
    linear_plan *p = plan_of(plan);
    linear_job job = {.p = p, .weight = weight, .epilogue = epilogue, .y = y};
    p->listed = p->lists != NULL && n <= SAMPLES ? x : NULL;
    atomic_store(&p->nonzero, 0);
    for (; job.first < n; job.first += ROUND) {
        job.n = least(ROUND, n - job.first);
        job.x = x + (size_t)job.first * (size_t)p->s.in_features;
        team_run(p->cpu->team, forward_piece, &job, p->stretches * pieces_of(job.n, SAMPLES));
        team_run(p->cpu->team, finish_piece, &job, pieces_of(job.n, FINISH_SAMPLES));
    }
    trace_nonzero(p, n);
    return STATUS_OK;
}

/* The lists of a panel's inputs for n samples of batch `all`, from `first` on; NULL: they are dense
 * and in room->x, (width, SAMPLES). */
static const sparse_panel *pack_inputs(const linear_plan *p, const float *all, int first, int n,
                                       int panel, panel_room *room)
{
    const float *x = all + (size_t)first * (size_t)p->s.in_features + panel_first(p, panel);
    int width = panel_width(p, panel);
    transpose_args t = {
        .x = x, .out = room->x, .x_row = (size_t)p->s.in_features, .out_row = SAMPLES};
    bool listed = p->listed == all && n <= SAMPLES && p->listed != NULL;
    if (listed && p->lists[panel].rows > 0)
        return &p->lists[panel];
    p->cpu->vec->transpose(&t, n, width);
    if (listed || p->lists == NULL)
        return NULL;
    p->cpu->vec->sparse_pack(room->x, SAMPLES, width, n, &room->lists);
    return room->lists.rows > 0 ? &room->lists : NULL;
}

/* A block of samples of dy, as its products read it. */
static float *gradients_of(const linear_plan *p, int first, const chunk *c)
{
    return p->cpu->scratch + (size_t)first * p->outputs + c->first * SAMPLES;
}

static void gradients_piece(void *arg, int block)
{
    const linear_job *job = arg;
    const linear_plan *p = job->p;
    int first = block * SAMPLES, n = least(SAMPLES, job->n - first);
    const float *dy = job->dy + (size_t)first * (size_t)p->s.out_features;
    for (chunk c = chunk_at(p, 0); c.count > 0; c = chunk_at(p, c.first + CHUNK)) {
        float *to = gradients_of(p, first, &c);
        for (int i = 0; i < n; i++)
            copy_rows(dy + i * p->s.out_features + c.first, (size_t)c.count, 1, (size_t)c.padded,
                      to + i * c.padded);
    }
}

static void weights_piece(void *arg, int panel)
{
    const linear_job *job = arg;
    const linear_plan *p = job->p;
    const param_gradients *out = job->gradients;
    int width = panel_width(p, panel), next = panel + 1 < p->panels ? panel_width(p, panel + 1) : 0;
    const float *x = job->x + panel_first(p, panel + 1);
    bool add = out->accumulate || job->first > 0;
    panel_room room;
    for (int first = 0; first < job->n; first += SAMPLES, add = true) {
        int n = least(SAMPLES, job->n - first);
        const sparse_panel *lists = pack_inputs(p, job->x, first, n, panel, &room);
        if (lists != &p->lists[panel])
            prefetch_rows(x, (size_t)p->s.in_features, n, next);
        x += (size_t)n * (size_t)p->s.in_features;
        for (chunk c = chunk_at(p, 0); c.count > 0; c = chunk_at(p, c.first + CHUNK)) {
            float *dw = out->dw + panel_offset(p, panel) + width * c.first;
            matmul_args m = {.a = room.x,
                             .b = gradients_of(p, first, &c),
                             .b_step = (size_t)c.padded,
                             .c = c.count == c.padded ? dw : room.chunk,
                             .c_row = (size_t)c.padded,
                             .depth = n,
                             .add = add && c.count == c.padded};
            multiply(p, lists, m, width, c.padded);
            for (int k = 0; k < width && m.c == room.chunk; k++) {
                if (!add)
                    memset(dw + k * c.count, 0, sizeof *dw * (size_t)c.count);
                p->cpu->vec->add(dw + k * c.count, room.chunk + k * c.padded, (size_t)c.count);
            }
        }
    }
    if (panel == 0)
        p->cpu->vec->column_sums(job->dy, job->n, p->s.out_features,
                                 out->accumulate || job->first > 0, out->db);
}

status cpu_linear_backward_weights(linear *plan, int n, const float *x, const float *dy,
                                   const param_gradients *out)
{
    linear_plan *p = plan_of(plan);
    linear_job job = {.p = p, .gradients = out};
    for (; job.first < n; job.first += ROUND) {
        job.n = least(ROUND, n - job.first);
        job.x = x + (size_t)job.first * (size_t)p->s.in_features;
        job.dy = dy + (size_t)job.first * (size_t)p->s.out_features;
        team_run(p->cpu->team, gradients_piece, &job, pieces_of(job.n, SAMPLES));
        team_run(p->cpu->team, weights_piece, &job, p->panels);
    }
    trace_nonzero(p, n);
    return STATUS_OK;
}

/* dx of n samples where the relu's output is not 0, if that is a list. */
static bool data_by_list(const linear_job *job, int panel, int first, int n, panel_room *room)
{
    const linear_plan *p = job->p;
    int width = panel_width(p, panel);
    size_t features = (size_t)p->s.in_features;
    chunk c = chunk_at(p, 0);
    bool even = p->s.out_features <= CHUNK || p->s.out_features % CHUNK == 0;
    if (job->input == NULL || !even)
        return false;
    const sparse_panel *lists = pack_inputs(p, job->input, first, n, panel, room);
    if (lists == NULL || lists->background != 0)
        return false;
    dots_args dots = {.a = weights_of(p, job->weight, panel, &c, room->chunk),
                      .b = gradients_of(p, first, &c),
                      .row = (size_t)c.padded,
                      .a_chunk = (size_t)(width * CHUNK),
                      .b_chunk = SAMPLES * CHUNK,
                      .chunks = pieces_of(p->s.out_features, CHUNK),
                      .depth = c.padded,
                      .scale = job->scale,
                      .out = room->x,
                      .out_row = PANEL};
    memset(room->x, 0, sizeof room->x);
    p->cpu->vec->sparse_dots(lists, &dots);
    float *dx = job->dx + (size_t)first * features + panel_first(p, panel);
    for (int i = 0; i < n; i++)
        memcpy(dx + (size_t)i * features, room->x + i * PANEL, sizeof *dx * (size_t)width);
    return true;
}

static void data_piece(void *arg, int panel)
{
    const linear_job *job = arg;
    const linear_plan *p = job->p;
    const vector_ops *vec = p->cpu->vec;
    int width = panel_width(p, panel);
    size_t features = (size_t)p->s.in_features;
    panel_room room;
    for (int first = 0; first < job->n; first += SAMPLES) {
        int n = least(SAMPLES, job->n - first);
        if (data_by_list(job, panel, first, n, &room))
            continue;
        size_t at = (size_t)first * features + (size_t)panel_first(p, panel);
        matmul_args m = {
            .c = job->dx + at, .a_step = 1, .b = room.chunk, .b_step = PANEL, .c_row = features};
        for (chunk c = chunk_at(p, 0); c.count > 0; c = chunk_at(p, c.first + CHUNK)) {
            transpose_args t = {.x = job->weight + panel_offset(p, panel) + width * c.first,
                                .out = room.chunk,
                                .x_row = (size_t)c.count,
                                .out_row = PANEL};
            vec->transpose(&t, width, c.count);
            m.a = gradients_of(p, first, &c);
            m.a_row = (size_t)c.padded;
            m.depth = c.count;
            m.add = c.first > 0;
            (p->how == PRECISION_BF16 ? vec->matmul_bf16 : vec->matmul)(&m, n, width);
        }
        if (job->input != NULL)
            vec->relu_backward(m.c, job->input + at, n, p->s.in_features, width, job->scale);
    }
}

status cpu_linear_backward_data(linear *plan, int n, const float *weight, const float *dy,
                                const relu_output *input, float *dx)
{
    linear_plan *p = plan_of(plan);
    linear_job job = {.p = p, .weight = weight};
    if (input != NULL)
        job.scale = 1.0f / (1.0f - input->p);
    for (; job.first < n; job.first += ROUND) {
        size_t in = (size_t)job.first * (size_t)p->s.in_features;
        job.n = least(ROUND, n - job.first);
        job.dy = dy + (size_t)job.first * (size_t)p->s.out_features;
        job.input = input != NULL ? input->y + in : NULL;
        job.dx = dx + in;
        team_run(p->cpu->team, gradients_piece, &job, pieces_of(job.n, SAMPLES));
        team_run(p->cpu->team, data_piece, &job, p->panels);
    }
    return STATUS_OK;
}
