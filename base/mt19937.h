/* Mersenne Twister as PyTorch's CPU generator uses it: 32-bit MT19937, seeded by init_genrand.
 * Only for numbers that must equal torch's; randomness of our own is base/philox.h. */
#ifndef MNIST_DDP_BASE_MT19937_H
#define MNIST_DDP_BASE_MT19937_H

#include <stdint.h>

typedef struct mt19937 {
    uint32_t state[624];
    int next; /* index of the next output; 624: twist first */
} mt19937;

/* torch.manual_seed(seed): only the low 32 bits count. */
void mt19937_init(mt19937 *generator, uint64_t seed);

uint32_t mt19937_u32(mt19937 *generator);

/* Two outputs, first one high: what torch draws for a 64-bit number. */
static inline uint64_t mt19937_u64(mt19937 *generator)
{
    uint64_t high = mt19937_u32(generator);
    return high << 32 | mt19937_u32(generator);
}

#endif
