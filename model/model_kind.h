/* The models that there are. A model is a row of MODEL_KINDS and its layers in model_kind.c: the
 * flag --model, names in checkpoints and results, and the benchmarks follow from these. */
#ifndef MNIST_DDP_MODEL_MODEL_KIND_H
#define MNIST_DDP_MODEL_MODEL_KIND_H

#include "base/status.h"

#include <stddef.h>

/* clang-format off */
#define MODEL_KINDS(ROW) /* the kind: MODEL_MLP, MLP_LAYERS; its name */                       \
    /* fc1 784-512, ReLU, fc2 512-512, ReLU, fc3 512-10:                 669,706 parameters */ \
    ROW(MLP, "mlp")                                                                            \
    /* conv1 32, ReLU, conv2 64, ReLU, maxpool 2, dropout .25, fc1 9216-128, ReLU, dropout     \
       .5, fc2 128-10, the net of pytorch/examples:                    1,199,882 parameters */ \
    ROW(CNN, "cnn")                                                                            \
    /* conv1 5x5 16, maxpool 2, ReLU, conv2 32, maxpool 2, ReLU, fc1 800-128, ReLU, fc2 128-10,\
       which needs the least time to 99 %:                               108,874 parameters */ \
    ROW(SPEEDRUN, "speedrun")
/* clang-format on */

#define MODEL_KIND_CONSTANT(KIND, name) MODEL_##KIND,
typedef enum model_kind { MODEL_KINDS(MODEL_KIND_CONSTANT) MODEL_COUNT } model_kind;
#undef MODEL_KIND_CONSTANT

extern const char *const model_kind_names[MODEL_COUNT]; /* by kind: "mlp" */
extern const char *const model_kind_list;               /* "mlp, cnn, speedrun" */
const char *model_kind_name(model_kind kind);

/* STATUS_INVALID with all names if it is none of them. */
status model_kind_parse(const char *name, model_kind *out);

/* Its layers from input to output (model/layers.h); *n: how many. */
const struct layer_spec *model_kind_layers(model_kind kind, size_t *n);

/* How many parameters a network of this kind has, before there is one. */
size_t model_kind_count(model_kind kind);

#endif
