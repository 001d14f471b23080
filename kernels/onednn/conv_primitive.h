/* A convolution of oneDNN: one pass over a fixed number of images, on the calling thread. */
#ifndef MNIST_DDP_KERNELS_ONEDNN_CONV_PRIMITIVE_H
#define MNIST_DDP_KERNELS_ONEDNN_CONV_PRIMITIVE_H

#include "kernels/onednn/dnnl_api.h"
#include "kernels/onednn/state.h"

typedef enum conv_pass { CONV_FORWARD, CONV_DATA, CONV_WEIGHTS, CONV_PASSES } conv_pass;

/* Its arrays, in this order; those that a pass sets are gradients. CONV_DATA has no bias. */
enum { CONV_X, CONV_WEIGHT, CONV_BIAS, CONV_Y, CONV_ARRAYS };

typedef struct conv_primitive conv_primitive;

/* One pass of a convolution without its relu. `weight`: the order of the weights; NULL: the one
 * that oneDNN prefers. STATUS_DEVICE if oneDNN has none. Not while the team works. */
status conv_primitive_create(onednn_state *state, const conv2d_shape *shape, conv_pass pass,
                             int images, dnnl_api_md weight, conv_primitive **out);
void conv_primitive_destroy(conv_primitive *p); /* accepts NULL */

/* The order of its weights; valid as long as the primitive. */
dnnl_api_md conv_primitive_weight_md(const conv_primitive *p);

/* Inside a piece of a team's job. The arrays are those of the primitive's images. */
dnnl_status_t conv_primitive_run(conv_primitive *p, const float *const arrays[CONV_ARRAYS]);

#endif
