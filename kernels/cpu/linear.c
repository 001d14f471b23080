/* Linear layers. The weight lies in the arena as panels of up to 64 inputs, a panel as chunks of up
 * to 128 outputs, (I/64, O/128, 64, 128), outputs innermost. So every product reads or writes a
 * chunk from its first float to its last, and a chunk fits the first level of cache:
 *
 *   forward            y (n, 128) += x (n, 64) chunk (64, 128), for each panel
 *   backward, weights  chunk of dw (64, 128) = x^T (64, n) dy (n, 128)
 *   backward, data     dx (n, 64) += dy (n, 128) chunk^T (128, 64), for each chunk
 *
 * Most of x is zeros, or the background of a picture. What else is in 64 samples times 64 inputs is
 * multiplied by lists (kernels/cpu/vector_ops.h). Forward makes them, backward reads them if the
 * batch is one such block. Where x is 0 after a relu, its gradient goes no further: then dx is
 * computed only elsewhere.
 *
 * Backward, a piece is a panel. Forward, it is a block of samples times a stretch of panels; then
 * the sums of the stretches are added in their order. Stretches depend on the number of inputs
 * alone, so no row of y depends on the other samples, but for the rounding of a background that
 * is not 0. A large batch goes in rounds of samples, so that what a round reads again is still in
 * a cache.
 */
#include "base/memory.h"
#include "base/trace.h"
#include "kernels/cpu/state.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    PANEL = SPARSE_SIDE,   /* inputs, at most */
    PANEL_STEP = 16,       /* a panel's width is a multiple of it */
    STRETCHES = 4,         /* at most */
    STRETCH_PANELS = 3,    /* at least, if there is more than one stretch */
    SAMPLES = SPARSE_SIDE, /* a block's */
    ROUND = 4 * SAMPLES,
    FINISH_SAMPLES = 16, /* a piece's */
    CHUNK = 128,         /* outputs, at most */
    LANES = 16,          /* a product has a multiple of it as outputs */
    SPARSE_OUTPUTS = 32, /* at least: to make lists for less takes longer than the product */
};

typedef struct linear_plan {
    linear_shape s;
    cpu_state *cpu;
    precision how;
    int panels, stretches;
    /* The device's scratch memory holds, forward, the sums of a round's y: (stretches, chunks,
     * round, CHUNK); backward, dy of a round: (round / SAMPLES, chunks, SAMPLES, CHUNK). A chunk's
     * rows are as long as it is, up to a multiple of LANES, with zeros. */
    size_t outputs, stretch_floats; /* O, up to a multiple of LANES; of one stretch */
    /* Of the batch of the last forward, if it was one block of samples: the lists of each panel's
     * inputs; `rows` is 0 if it is dense. */
    sparse_panel *lists; /* (panels) */
    const float *listed; /* the batch; NULL: none */
    atomic_int nonzero;  /* the batch's elements that are not the background */
} linear_plan;

static linear_plan *plan_of(linear *plan)
{
    return (linear_plan *)(void *)plan;
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

static int pieces_of(int count, int piece)
{
    return (count + piece - 1) / piece;
}

/* The first input of a panel. All are multiples of PANEL_STEP, and widths differ by one such step
 * at most. */
static int panel_first(const linear_plan *p, int panel)
{
    int steps = p->s.in_features / PANEL_STEP;
    return (int)((int64_t)panel * steps / p->panels) * PANEL_STEP;
}

static int panel_width(const linear_plan *p, int panel)
{
    return panel_first(p, panel + 1) - panel_first(p, panel);
}

static size_t panel_offset(const linear_plan *p, int panel)
{
    return (size_t)panel_first(p, panel) * (size_t)p->s.out_features;
}

static status check(const linear_shape *s, int block)
{
    if (s->in_features % PANEL_STEP != 0 || s->out_features > VECTOR_MAX_SAMPLE)
        return FAIL(STATUS_INVALID,
                    "cpu device: a linear layer has a multiple of %d inputs and at most %d "
                    "outputs, not %d and %d",
                    PANEL_STEP, VECTOR_MAX_SAMPLE, s->in_features, s->out_features);
    if (s->channels % block != 0)
        return FAIL(STATUS_INVALID,
                    "cpu device: a flattened activation has a multiple of %d channels, not %d",
                    block, s->channels);
    return STATUS_OK;
}

status cpu_linear_create(device *dev, const linear_shape *shape, int max_n, linear **out)
{
    TRY(check(shape, cpu_of(dev)->vec->block));
    linear_plan *p = NULL;
    TRY(memory_alloc(sizeof *p, (void **)&p));
    p->s = *shape;
    p->cpu = cpu_of(dev);
    p->how = dev->precision == PRECISION_BF16 ? PRECISION_BF16 : PRECISION_F32;
    p->panels = pieces_of(shape->in_features, PANEL);
    p->stretches = least(STRETCHES, p->panels / STRETCH_PANELS);
    if (p->stretches < 1)
        p->stretches = 1;
    p->outputs = (size_t)(pieces_of(shape->out_features, LANES) * LANES);
    p->stretch_floats = (size_t)least(ROUND, pieces_of(max_n, SAMPLES) * SAMPLES) * p->outputs;
    status st = cpu_reserve_scratch(p->cpu, p->stretch_floats * (size_t)p->stretches);
    size_t lists = sizeof *p->lists * (size_t)p->panels;
    if (st == STATUS_OK && !p->cpu->dense && shape->out_features >= SPARSE_OUTPUTS)
        st = memory_alloc(lists, (void **)&p->lists);
    if (st != STATUS_OK) {
        free(p);
        return st;
    }
    if (p->lists != NULL)
        device_note_memory(dev, (int64_t)lists);
    *out = (linear *)(void *)p;
    return STATUS_OK;
}

void cpu_linear_destroy(linear *plan)
{
    if (plan != NULL)
        free(plan_of(plan)->lists);
    free(plan);
}

/* Plain rows of a flattened input are (C, area), private ones (C / block, area, block): one
 * transposition for each block of channels. */
static void reorder_input(const linear_plan *p, const float *from, float *to, bool to_private)
{
    int area = p->s.height * p->s.width, block = p->cpu->vec->block;
    int rows = to_private ? block : area, columns = to_private ? area : block;
    for (int at = 0; at < p->s.in_features; at += block * area) {
        transpose_args t = {
            .x = from + at, .out = to + at, .x_row = (size_t)columns, .out_row = (size_t)rows};
        p->cpu->vec->transpose(&t, rows, columns);
    }
}

/* Between the rows of n outputs, at most LANES, from output o on, whose order is private, and the
 * arena: each is the other's transpose, panel by panel. */
static void reorder_rows(const linear_plan *p, int o, int n, float *rows, float *weight,
                         bool import)
{
    size_t features = (size_t)p->s.in_features;
    int first = o / CHUNK * CHUNK, count = least(CHUNK, p->s.out_features - first);
    for (int panel = 0; panel < p->panels; panel++) {
        int width = panel_width(p, panel);
        float *plain = rows + panel_first(p, panel);
        float *ours = weight + panel_offset(p, panel) + first * width + o - first;
        transpose_args in = {plain, ours, features, (size_t)count};
        transpose_args out = {ours, plain, (size_t)count, features};
        if (n == LANES)
            p->cpu->vec->transpose(import ? &in : &out, import ? n : width, import ? width : n);
        for (int i = 0; i < n * width && n < LANES; i++) {
            float *row = plain + (size_t)(i / width) * features + i % width;
            float *at = ours + i % width * count + i / width;
            *(import ? at : row) = *(import ? row : at);
        }
    }
}

static status reorder_weight(const linear_plan *p, float *plain, float *weight, bool import)
{
    size_t features = (size_t)p->s.in_features, row_bytes = sizeof(float) * features;
    float *rows = NULL;
    TRY(memory_alloc(LANES * row_bytes, (void **)&rows));
    for (int o = 0; o < p->s.out_features; o += LANES) {
        int n = least(LANES, p->s.out_features - o);
        if (!import)
            reorder_rows(p, o, n, rows, weight, false);
        for (int i = 0; i < n; i++, plain += features) {
            float *row = rows + (size_t)i * features;
            if (p->s.channels > 0)
                reorder_input(p, import ? plain : row, import ? row : plain, import);
            else
                memcpy(import ? row : plain, import ? plain : row, row_bytes);
        }
        if (import)
            reorder_rows(p, o, n, rows, weight, true);
    }
    free(rows);
    return STATUS_OK;
}

status cpu_linear_import(linear *plan, const float *plain, float *weight)
{
    return reorder_weight(plan_of(plan), (float *)(uintptr_t)plain, weight, true);
}

status cpu_linear_export(linear *plan, const float *weight, float *plain)
{
    return reorder_weight(plan_of(plan), plain, (float *)(uintptr_t)weight, false);
}

/* One round: n samples of a batch. */
typedef struct linear_job {
    linear_plan *p;
    int first, n;                    /* the batch's */
    const float *x, *weight, *dy;    /* x and dy of the round */
    const linear_epilogue *epilogue; /* NULL: none */
    float *y;                        /* the batch's */
    const param_gradients *gradients;
    const float *input; /* the round's; NULL: no relu */
    float *dx, scale;   /* the round's */
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
    if (job->epilogue != NULL)
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

status cpu_linear_finish(linear *plan, int n, const linear_epilogue *epilogue, float *y)
{
    const linear_plan *p = plan_of(plan);
    p->cpu->vec->linear_epilogue(y, 0, n, p->s.out_features, epilogue);
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
