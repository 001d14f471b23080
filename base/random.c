#include "base/random.h"

enum { SHIFT_WORDS = 397 };

void mt19937_init(mt19937 *generator, uint64_t seed)
{
    uint32_t *s = generator->state;
    s[0] = (uint32_t)seed;
    for (uint32_t i = 1; i < MT19937_WORDS; i++)
        s[i] = 1812433253u * (s[i - 1] ^ s[i - 1] >> 30) + i;
    generator->next = MT19937_WORDS;
}

static uint32_t twisted(uint32_t high, uint32_t low)
{
    uint32_t mixed = (high & 0x80000000u) | (low & 0x7fffffffu);
    return mixed >> 1 ^ (-(low & 1) & 0x9908b0dfu);
}

static void twist(uint32_t *s)
{
    int i = 0;
    for (; i < MT19937_WORDS - SHIFT_WORDS; i++)
        s[i] = s[i + SHIFT_WORDS] ^ twisted(s[i], s[i + 1]);
    for (; i < MT19937_WORDS - 1; i++)
        s[i] = s[i + SHIFT_WORDS - MT19937_WORDS] ^ twisted(s[i], s[i + 1]);
    s[i] = s[SHIFT_WORDS - 1] ^ twisted(s[i], s[0]);
}

void mt19937_advance(mt19937 *generator)
{
    twist(generator->state);
    for (int i = 0; i < MT19937_WORDS; i++) {
        uint32_t y = generator->state[i];
        y ^= y >> 11;
        y ^= y << 7 & 0x9d2c5680u;
        y ^= y << 15 & 0xefc60000u;
        generator->outputs[i] = y ^ y >> 18;
    }
    generator->next = 0;
}
