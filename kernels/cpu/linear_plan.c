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

/* Where the weight of an input and an output lies. */
static size_t weight_at(const linear_plan *p, int panel, int k, int o)
{
    int first = o / CHUNK * CHUNK, count = least(CHUNK, p->s.out_features - first);
    return panel_offset(p, panel) + (size_t)(first * panel_width(p, panel)) +
           (size_t)((k - panel_first(p, panel)) * count + o - first);
}

/* Between output o's row in the private order and the arena. */
static void reorder_row(const linear_plan *p, int o, float *row, float *weight, bool import)
{
    for (int panel = 0; panel < p->panels; panel++)
        for (int k = panel_first(p, panel); k < panel_first(p, panel + 1); k++) {
            float *at = weight + weight_at(p, panel, k, o);
            *(import ? at : row + k) = *(import ? row + k : at);
        }
}

status cpu_linear_import(linear *plan, const float *plain, float *weight)
{
    const linear_plan *p = plan_of(plan);
    float *row = NULL;
    TRY(memory_alloc(sizeof *row * (size_t)p->s.in_features, (void **)&row));
    for (int o = 0; o < p->s.out_features; o++, plain += p->s.in_features) {
        if (p->s.channels > 0)
            reorder_input(p, plain, row, true);
        else
            memcpy(row, plain, sizeof *row * (size_t)p->s.in_features);
        reorder_row(p, o, row, weight, true);
    }
    free(row);
    return STATUS_OK;
}

status cpu_linear_export(linear *plan, const float *weight, float *plain)
{
    const linear_plan *p = plan_of(plan);
    float *row = NULL;
    TRY(memory_alloc(sizeof *row * (size_t)p->s.in_features, (void **)&row));
    for (int o = 0; o < p->s.out_features; o++, plain += p->s.in_features) {
        reorder_row(p, o, row, (float *)(uintptr_t)weight, false);
        if (p->s.channels > 0)
            reorder_input(p, row, plain, false);
        else
            memcpy(plain, row, sizeof *row * (size_t)p->s.in_features);
    }
    free(row);
    return STATUS_OK;
}
