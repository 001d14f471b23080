/* The random numbers of one digit: a stream over Philox whose place is (key, image index). */
#ifndef MNIST_DDP_DATA_DIGITS_DIGITS_RANDOM_H
#define MNIST_DDP_DATA_DIGITS_DIGITS_RANDOM_H

#include "base/random.h"

typedef struct digits_random {
    uint64_t key;
    uint32_t index; /* of the image */
    uint32_t block; /* the next Philox block */
    int left;       /* words of `words` not yet taken */
    philox_words words;
} digits_random;

static inline digits_random digits_random_init(uint64_t key, uint32_t index)
{
    return (digits_random){.key = key, .index = index};
}

static inline uint32_t digits_random_u32(digits_random *random)
{
    if (random->left == 0) {
        random->words = philox4x32_10(random->index, random->block++, 0, 0, random->key);
        random->left = 4;
    }
    return random->words.w[--random->left];
}

/* One of 0 ... n - 1. */
static inline uint32_t digits_random_below(digits_random *random, uint32_t n)
{
    return (uint32_t)((uint64_t)digits_random_u32(random) * n >> 32);
}

/* Uniform in [low, high). */
static inline float digits_random_uniform(digits_random *random, float low, float high)
{
    return low + (high - low) * ((float)(digits_random_u32(random) >> 8) * 0x1p-24f);
}

/* Mean 0, standard deviation `deviation`; the sum of four uniforms, so never beyond 3.47 of them.
 */
static inline float digits_random_normal(digits_random *random, float deviation)
{
    uint32_t a = digits_random_u32(random), b = digits_random_u32(random);
    uint32_t sum = (a & 0xffff) + (a >> 16) + (b & 0xffff) + (b >> 16);
    const float sqrt3 = 1.7320508f;
    return deviation * sqrt3 * ((float)sum * 0x1p-16f - 2.0f);
}

#endif
