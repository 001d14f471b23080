#include "model/init.h"

#include <math.h>

/* torch computes x * (hi - lo) + lo as one fused operation: rounding twice would change every
 * second bit pattern. */
static void uniform(mt19937 *generator, float hi, float *out, size_t count)
{
    float lo = -hi, width = hi - lo;
    for (size_t i = 0; i < count; i++)
        out[i] = fmaf((float)(mt19937_u32(generator) & 0xffffff) * 0x1p-24f, width, lo);
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
