#include "kernels/host.h"

#include "base/memory.h"
#include "kernels/clip_math.h"
#include "kernels/pixel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Large blocks begin at different places in a page: parameters, gradients and an optimizer's states
 * are read side by side, and the processor confuses a load with a store to the same place in
 * another page ("4K aliasing"), and keeps the same place of each huge page in the same few lines of
 * its cache. */
enum { LARGE_BYTES = 256 << 10, PLACE_BYTES = 17 * 64, PLACES = 8 };

/* Stands in front of each block of a device and is as wide as its alignment. */
typedef struct host_block {
    _Alignas(64) size_t size_bytes; /* this struct's, and what follows it */
    void *memory;                   /* what holds it */
} host_block;

/* Bytes that a block of `size_bytes` leaves free at its beginning. */
static size_t next_place(device *dev, size_t size_bytes)
{
    if (size_bytes < LARGE_BYTES)
        return 0;
    /* Not 0: gradients that ranks share begin with a page. */
    return (1 + dev->large_blocks++ % (PLACES - 1)) * (size_t)PLACE_BYTES;
}

status host_alloc(device *dev, size_t size_bytes, void **out)
{
    host_block *block = NULL;
    size_t all_bytes = 0, before = next_place(dev, size_bytes);
    void *memory = NULL;
    if (__builtin_add_overflow(size_bytes, sizeof *block + before, &all_bytes))
        return FAIL(STATUS_NO_MEMORY, "cannot allocate %zu bytes", size_bytes);
    TRY(memory_alloc(all_bytes, &memory));
    block = (host_block *)((unsigned char *)memory + before);
    *block = (host_block){.size_bytes = all_bytes, .memory = memory};
    device_note_memory(dev, (int64_t)all_bytes);
    *out = block + 1;
    return STATUS_OK;
}

void host_free(device *dev, void *memory)
{
    if (memory == NULL)
        return;
    host_block *block = (host_block *)memory - 1;
    device_note_memory(dev, -(int64_t)block->size_bytes);
    free(block->memory);
}

status host_copy(device *dev, void *dst, const void *src, size_t size_bytes)
{
    (void)dev;
    memcpy(dst, src, size_bytes);
    return STATUS_OK;
}

status host_synchronize(device *dev)
{
    (void)dev;
    return STATUS_OK;
}

status host_begin_step(device *dev, const step_plan *plan, step_state *state, float *stop_flag)
{
    (void)dev;
    ASSERT(!plan->scale_loss); /* 16-bit types are an accelerator's */
    step_begin(plan, state, stop_flag);
    return STATUS_OK;
}

status host_begin_forward(device *dev, const float *parameters, size_t count)
{
    (void)dev, (void)parameters, (void)count;
    return STATUS_OK;
}

static void augment(const gather_source *source, uint32_t sample, uint32_t epoch, float *x)
{
    const uint8_t *image = source->images + sample * (size_t)source->pixels;
    affine drawn = augmentation_draw(&source->augment, sample, epoch);
    affine_map map = augmentation_map(&drawn);
    for (int at = 0; at < source->pixels; at++)
        x[at] = pixel_normalised(
            augmentation_sample(image, &map, at % AUGMENTATION_SIDE, at / AUGMENTATION_SIDE));
}

status host_gather(device *dev, const gather_source *source, const step_state *state,
                   uint32_t offset, int n, const gather_output *out)
{
    (void)dev;
    const uint32_t *order = source->order + state->plan.first + offset;
    size_t pixels = (size_t)source->pixels;
    float normalised[256]; /* a byte has few values: 256 divisions instead of n * pixels */
    for (int value = 0; value < 256; value++)
        normalised[value] = pixel_normalised((float)value);
    for (int i = 0; i < n; i++) {
        const uint8_t *image = source->images + order[i] * pixels;
        float *row = out->x + (size_t)i * pixels;
        if (augmentation_is_on(&source->augment))
            augment(source, order[i], state->plan.epoch, row);
        else
            for (size_t j = 0; j < pixels; j++)
                row[j] = normalised[image[j]];
        out->labels[i] = source->labels[order[i]];
        out->samples[i] = order[i];
    }
    return STATUS_OK;
}

static int argmax(const float *row, int classes)
{
    int best = 0;
    for (int c = 1; c < classes; c++)
        if (row[c] > row[best])
            best = c;
    return best;
}

static double mean_of(const float *row, int classes)
{
    double sum = 0;
    for (int c = 0; c < classes; c++)
        sum += (double)row[c];
    return sum / classes;
}

status host_cross_entropy(device *dev, const loss_input *in, const step_state *state, score *totals,
                          float *dlogits)
{
    (void)dev;
    int classes = in->classes;
    double even = (double)in->smoothing / classes;
    const double target[] = {even,
                             even + 1 - (double)in->smoothing}; /* other classes', the label's */
    float grad_scale = dlogits != NULL ? state->plan.grad_scale : 0.0f;
    double loss = 0;
    int64_t hits = 0;
    for (int i = 0; i < in->n; i++) {
        const float *row = in->logits + (size_t)i * (size_t)classes;
        int best = argmax(row, classes), label = in->labels[i];
        float largest = row[best];
        double sum = 0;
        for (int c = 0; c < classes; c++)
            sum += exp((double)(row[c] - largest));
        double cost = log(sum) - (double)(row[label] - largest);
        if (in->smoothing > 0)
            cost += (double)in->smoothing * ((double)row[label] - mean_of(row, classes));
        loss += cost;
        hits += best == label;
        if (dlogits == NULL)
            continue;
        float *gradient = dlogits + (size_t)i * (size_t)classes;
        for (int c = 0; c < classes; c++) {
            double softmax = exp((double)(row[c] - largest)) / sum;
            gradient[c] = (float)(softmax - target[c == label]) * grad_scale;
        }
    }
    totals->loss_sum += loss;
    double earlier = in->before > 0 ? totals->last_loss * in->before : 0;
    totals->last_loss = (earlier + loss) / (in->before + in->n);
    totals->correct += hits;
    return STATUS_OK;
}

status host_clip_gradients(device *dev, const gradient_clip *clip, const step_state *state)
{
    (void)dev, (void)state; /* a host scales no loss */
    *clip->norm = sqrt(clip_sum_of_squares(clip->grad, clip->count));
    float factor = clip_factor(*clip->norm, clip->max_norm);
    if (clip_changes(factor))
        clip_scale(clip->grad, clip->count, factor);
    return STATUS_OK;
}
