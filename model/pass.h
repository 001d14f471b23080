/* The layers of a network that a device computes in one call: one layer, or, if the device has a
 * convolution block (kernels/ops.h), all before the first linear layer. */
#ifndef MNIST_DDP_MODEL_PASS_H
#define MNIST_DDP_MODEL_PASS_H

#include "model/layers.h"

typedef struct pass {
    layer *layers; /* n of them, the network's own */
    size_t n;
    conv_block *block; /* NULL: one layer */
    const layer *conv[CONV_BLOCK_CONVS];
} pass;

/* Makes the next pass of a network, and its layers: specs[0] is the first of the n_specs that are
 * left, `layers` has room for all. pass_close accepts a zeroed pass. */
status pass_init(device *dev, const layer_spec *specs, size_t n_specs, int max_n, layer *layers,
                 pass *out);
void pass_close(device *dev, pass *p);

/* "conv_block", or the layer's name. */
const char *pass_name(const pass *p);

/* The layer whose output is the pass's. */
static inline layer *pass_last(const pass *p)
{
    return &p->layers[p->n - 1];
}

typedef struct pass_input {
    int n;
    const float *x; /* the batch, or the output of the pass before */
    const float *parameters;
} pass_input;

status pass_forward(device *dev, const pass *p, const pass_input *in, const dropout *drop);

/* Gradients of its layers' parameters into the arena. */
status pass_backward_weights(device *dev, const pass *p, const pass_input *in, float *gradients,
                             bool accumulate);

/* Gradient of its input into before->dy. Not for a block. */
status pass_backward_data(device *dev, const pass *p, const pass_input *in, layer *before);

/* Copies its weights from PyTorch's order to the arena's (`import`), or back; host to host. */
status pass_reorder(device *dev, const pass *p, const float *from, float *to, bool import);

#endif
