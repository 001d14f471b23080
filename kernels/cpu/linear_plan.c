#include "kernels/cpu/linear_plan.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

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
