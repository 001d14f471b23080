#include "data/digits/digits.h"

#include "base/team.h"
#include "data/digits/digits_ink.h"
#include "data/digits/digits_random.h"
#include "data/digits/digits_trace.h"

#include <stddef.h>

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
