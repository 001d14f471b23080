/* Random numbers: our own, and PyTorch's. */
#ifndef MNIST_DDP_BASE_RANDOM_H
#define MNIST_DDP_BASE_RANDOM_H

#include <stddef.h>
#include <stdint.h>

/* Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw,
 * "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
 *
 * One key and one counter give four words, with no state: a number depends on what it is for, never
 * on who draws it or when. Serves C and CUDA.
 */

#ifdef __CUDACC__
#define PHILOX_FN static inline __host__ __device__
#else
#define PHILOX_FN static inline
#endif

typedef struct philox_words {
    uint32_t w[4];
} philox_words;

PHILOX_FN philox_words philox4x32_10(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3,
                                     uint64_t key)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    philox_words out = {{c0, c1, c2, c3}};
    return out;
}

/* Mersenne Twister as PyTorch's CPU generator uses it: 32-bit MT19937, seeded by init_genrand.
 * Only for numbers that must equal torch's; randomness of our own is Philox. */

enum { MT19937_WORDS = 624 };

typedef struct mt19937 {
    uint32_t state[MT19937_WORDS];
    uint32_t outputs[MT19937_WORDS]; /* what this state gives */
    int next;                        /* the first of them that has not been drawn */
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
