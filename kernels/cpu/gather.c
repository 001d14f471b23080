/* Batches from the data set. Its images lie in random order in memory that no cache holds, so those
 * of the next image are asked for while one is normalised. */
#include "kernels/cpu/state.h"

enum {
    IMAGES = 8, /* of a piece */
    LINE_BYTES = 64,
};

typedef struct gather_job {
    const vector_ops *vec;
    const gather_source *source;
    const uint32_t *order; /* of the batch */
    uint32_t epoch;
    int n;
    const gather_output *out;
} gather_job;

static const uint8_t *image_of(const gather_source *s, uint32_t index)
{
    return s->images + (size_t)index * (size_t)s->pixels;
}

static void prefetch_image(const gather_source *s, uint32_t index)
{
    const uint8_t *image = image_of(s, index);
    for (int at = 0; at < s->pixels; at += LINE_BYTES)
        __builtin_prefetch(image + at);
}

static void place_image(const gather_job *job, uint32_t index, float *x)
{
    const gather_source *s = job->source;
    if (!augmentation_is_on(&s->augment)) {
        job->vec->normalise(image_of(s, index), x, (size_t)s->pixels);
        return;
    }
    affine drawn = augmentation_draw(&s->augment, index, job->epoch);
    affine_map map = augmentation_map(&drawn);
    job->vec->augment(image_of(s, index), &map, x);
}

static void gather_piece(void *arg, int piece)
{
    const gather_job *job = arg;
    const gather_source *s = job->source;
    int first = piece * IMAGES, end = job->n - first < IMAGES ? job->n : first + IMAGES;
    for (int i = first; i < end; i++) {
        uint32_t index = job->order[i];
        if (i + 1 < end)
            prefetch_image(s, job->order[i + 1]);
        place_image(job, index, job->out->x + (size_t)i * (size_t)s->pixels);
        job->out->labels[i] = s->labels[index];
        job->out->samples[i] = index;
    }
}

status cpu_gather(device *dev, const gather_source *source, const step_state *state,
                  uint32_t offset, int n, const gather_output *out)
{
    gather_job job = {.vec = cpu_of(dev)->vec,
                      .source = source,
                      .order = source->order + state->plan.first + offset,
                      .epoch = state->plan.epoch,
                      .n = n,
                      .out = out};
    team_run(cpu_of(dev)->team, gather_piece, &job, (n + IMAGES - 1) / IMAGES);
    return STATUS_OK;
}
