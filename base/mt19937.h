/* Mersenne Twister as PyTorch's CPU generator uses it: 32-bit MT19937, seeded by init_genrand.
 * Only for numbers that must equal torch's; randomness of our own is base/philox.h. */
#ifndef MNIST_DDP_BASE_MT19937_H
#define MNIST_DDP_BASE_MT19937_H

#include <stddef.h>
#include <stdint.h>

enum { MT19937_WORDS = 624 };

typedef struct mt19937 {
    uint32_t state[MT19937_WORDS];
    uint32_t outputs[MT19937_WORDS]; /* of this state, */
    int next;                        /* of which those from here on have not been drawn */
} mt19937;

/* torch.manual_seed(seed): only the low 32 bits count. */
void mt19937_init(mt19937 *generator, uint64_t seed);

/* The next state, and its outputs. */
void mt19937_advance(mt19937 *generator);

static inline uint32_t mt19937_u32(mt19937 *generator)
{
    if (generator->next == MT19937_WORDS)
        mt19937_advance(generator);
    return generator->outputs[generator->next++];
}

/* Draws several numbers: `most` (>= 1), or as many as this state still has. Sets *n; they stay
 * where they are until the next call. */
static inline const uint32_t *mt19937_run(mt19937 *generator, size_t most, size_t *n)
{
    if (generator->next == MT19937_WORDS)
        mt19937_advance(generator);
    const uint32_t *first = generator->outputs + generator->next;
    size_t left = (size_t)(MT19937_WORDS - generator->next);
    *n = left < most ? left : most;
    generator->next += (int)*n;
    return first;
}

/* Two outputs, first one high: what torch draws for a 64-bit number. */
static inline uint64_t mt19937_u64(mt19937 *generator)
{
    uint64_t high = mt19937_u32(generator);
    return high << 32 | mt19937_u32(generator);
}

#endif
