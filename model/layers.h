/* What a layer is, and how a batch goes through it. */
#ifndef MNIST_DDP_MODEL_LAYERS_H
#define MNIST_DDP_MODEL_LAYERS_H

#include "kernels/ops.h"
#include "model/network.h"

typedef enum layer_kind { LAYER_CONV2D, LAYER_POOL, LAYER_LINEAR } layer_kind;

/* What a layer is. Its input is the output of the one before. */
typedef struct layer_spec {
    layer_kind kind;
    const char *name; /* as in "conv1.weight"; a pool has none */
    int channels, height,
        width;  /* the input's; a linear layer on plain rows: channels = features */
    int out;    /* out_channels or out_features */
    int kernel; /* side, of a convolution */
    bool relu;
    float dropout; /* p, after the relu; 0: none */
} layer_spec;

enum { LAYERS_MAX = 6 };

/* A layer with its plan and buffers. */
typedef struct layer {
    const layer_spec *spec;
    conv2d *conv; /* the plan of its kind */
    linear *line;
    const parameter *weight, *bias; /* NULL for a pool */
    size_t out_elements;            /* one sample's */
    float *y;                       /* (max_n, out_elements) the output, after relu and dropout */
    float *dy;           /* gradient of the loss by y; for linear layers, by the relu's input */
    uint8_t *argmax;     /* a pool's winners */
    int dropout_index;   /* among the layers that drop, from 0; -1: none */
    const uint8_t *keep; /* an injected mask, or NULL */
    uint32_t first;      /* of its outputs among the whole layer's, if others have the rest */
    bool is_partial;     /* forward leaves a part of a sum in y: layer_finish follows */
} layer;

/* Inputs of one output, and parameters, weight and bias together; 0 for a pool. */
int layer_fan_in(const layer_spec *spec);
size_t layer_count(const layer_spec *spec);

/* Elements of one sample's output. */
size_t layer_out_elements(const layer_spec *spec);

/* "conv1"; "pool" for a layer without parameters. */
const char *layer_name(const layer *lay);

conv2d_shape layer_conv_shape(const layer_spec *spec);

/* Makes plan and buffers. layer_close accepts a zeroed layer. */
status layer_init(device *dev, const layer_spec *spec, int max_n, layer *out);
void layer_close(device *dev, layer *lay);

/* Which elements a layer drops for this batch; p = 0 in evaluation. */
dropout layer_dropout(const layer *lay, const batch *in, network_mode mode, uint64_t seed);

/* x is the layer's input: the batch, or y of the layer before. */
status layer_forward(device *dev, layer *lay, int n, const float *x, const float *parameters,
                     const dropout *drop);

/* Of a layer that is_partial, when y is the whole sum: adds the bias, then relu and dropout. */
status layer_finish(device *dev, layer *lay, int n, const float *parameters, const dropout *drop);

/* Where in the arena the gradients of its parameters are. */
param_gradients layer_gradients(const layer *lay, float *gradients, bool accumulate);

/* Gradients of the layer's own parameters into the arena. */
status layer_backward_weights(device *dev, layer *lay, int n, const float *x, float *gradients,
                              bool accumulate);

/* Gradient of the layer's input into before->dy. */
status layer_backward_data(device *dev, layer *lay, int n, const float *parameters, layer *before);

#endif
