#include "data/sampler.h"

#include "base/random.h"

#include <stdlib.h>

/* From this size on torch.randperm draws 64-bit numbers; no data set here is that large. */
enum { RANDPERM_LIMIT = UINT32_MAX / 20 };

status sampler_check(const sampler_options *options, sampler_plan *plan)
{
    uint32_t samples = options->samples;
    if (options->world_size < 1)
        return FAIL(STATUS_INVALID, "sampler: world size %d, expected at least 1",
                    options->world_size);
    if (options->rank < 0 || options->rank >= options->world_size)
        return FAIL(STATUS_INVALID,
                    "sampler: invalid rank %d, rank should be in the interval [0, %d]",
                    options->rank, options->world_size - 1);
    if (samples == 0)
        return FAIL(STATUS_INVALID, "sampler: no samples");
    if (options->shuffle && samples >= RANDPERM_LIMIT)
        return FAIL(STATUS_INVALID, "sampler: %u samples, at most %d can be shuffled", samples,
                    RANDPERM_LIMIT - 1);
    if (options->first > samples)
        return FAIL(STATUS_INVALID, "sampler: %u of %u samples are used", options->first, samples);
    uint32_t world_size = (uint32_t)options->world_size, left = samples - options->first;
    uint32_t whole = left / world_size, rest = left % world_size;
    if (options->drop_last && whole == 0 && options->first == 0)
        return FAIL(STATUS_INVALID,
                    "sampler: drop_last leaves nothing of %u samples for %u ranks: use fewer ranks "
                    "or keep the last ones",
                    samples, world_size);
    if (options->drop_last || rest == 0)
        *plan = (sampler_plan){.per_rank = whole, .dropped = rest};
    else
        *plan = (sampler_plan){.per_rank = whole + 1, .padded = world_size - rest};
    return STATUS_OK;
}

uint32_t sampler_used(const sampler_options *options, uint64_t taken)
{
    uint64_t left = options->samples - options->first;
    uint64_t world_size = (uint64_t)options->world_size, whole = left / world_size;
    if (taken <= whole)
        return options->first + (uint32_t)(taken * world_size);
    /* Indices beyond the last sample repeat some, or there are none. */
    return options->first + (uint32_t)(options->drop_last ? whole * world_size : left);
}

/* torch.randperm(n) on the CPU: Fisher-Yates from the front, by remainder. */
static void permute(uint32_t *order, uint32_t n, uint64_t seed)
{
    mt19937 generator;
    mt19937_init(&generator, seed);
    for (uint32_t i = 0; i + 1 < n; i++) {
        uint32_t other = i + mt19937_u32(&generator) % (n - i);
        uint32_t moved = order[i];
        order[i] = order[other];
        order[other] = moved;
    }
}

/* All ranks' list: (options->samples). */
static void put_in_order(const sampler_options *options, int64_t epoch, uint32_t *order)
{
    for (uint32_t i = 0; i < options->samples; i++)
        order[i] = i;
    if (options->shuffle)
        permute(order, options->samples, options->seed + (uint64_t)epoch);
}

status sampler_indices(const sampler_options *options, int64_t epoch, uint32_t *out)
{
    sampler_plan plan;
    TRY(sampler_check(options, &plan));
    if (options->world_size == 1 && options->first == 0) {
        put_in_order(options, epoch, out);
        return STATUS_OK;
    }
    if (plan.per_rank == 0)
        return STATUS_OK;
    uint32_t *order = malloc(options->samples * sizeof *order);
    if (order == NULL)
        return FAIL(STATUS_NO_MEMORY, "sampler: the order of %u samples", options->samples);
    put_in_order(options, epoch, order);

    /* Rank r takes every world_size-th index of one list, which wraps around. */
    const uint32_t *list = order + options->first;
    uint32_t n = options->samples - options->first;
    uint32_t step = (uint32_t)options->world_size % n;
    uint64_t at = (uint32_t)options->rank % n;
    for (uint32_t i = 0; i < plan.per_rank; i++) {
        out[i] = list[at];
        at += step;
        at -= at >= n ? n : 0;
    }
    free(order);
    return STATUS_OK;
}
