/* PyTorch's default initialisation of Conv2d and Linear, in every bit. */
#ifndef MNIST_DDP_MODEL_INIT_H
#define MNIST_DDP_MODEL_INIT_H

#include "base/mt19937.h"

#include <stddef.h>

/* Draws a weight (kaiming_uniform_ with a = sqrt(5)) or a bias, both uniform in (-bound, bound),
 * one number of the generator per element in row-major order. torch.manual_seed(seed) is
 * mt19937_init(seed); one stream runs through all layers, weight before bias. fan_in: in_features,
 * or C*K*K. */
void init_weight(mt19937 *generator, int fan_in, float *out, size_t count);
void init_bias(mt19937 *generator, int fan_in, float *out, size_t count);

#endif
