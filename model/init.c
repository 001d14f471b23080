#include "model/init.h"

#include <math.h>

/* torch computes x * (hi - lo) + lo with x = k / 2^24, a whole number k below 2^24, rounded once.
 * As lo is -hi, that is hi * (k - 2^23) / 2^23. The number in parentheses is exact as a float and a
 * power of two changes no digits: one product rounds alike, and a compiler makes vectors of it. */
static void uniform(mt19937 *generator, float hi, float *out, size_t count)
{
    const int32_t half = 1 << 23;
    float unit = hi * 0x1p-23f;
    for (size_t n; count > 0; out += n, count -= n) {
        const uint32_t *numbers = mt19937_run(generator, count, &n);
        for (size_t i = 0; i < n; i++)
            out[i] = (float)((int32_t)(numbers[i] & 0xffffff) - half) * unit;
    }
}

void init_weight(mt19937 *generator, int fan_in, float *out, size_t count)
{
    double gain = sqrt(2.0 / (1 + 5.0));
    uniform(generator, (float)(sqrt(3.0) * (gain / sqrt((double)fan_in))), out, count);
}

void init_bias(mt19937 *generator, int fan_in, float *out, size_t count)
{
    uniform(generator, (float)(1 / sqrt((double)fan_in)), out, count);
}
