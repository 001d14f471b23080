/* A pass of a convolution as cuDNN's graph interface describes it, and algorithm selection: the
 * cuDNN engine for one pass at one batch size. */
#ifndef MNIST_DDP_KERNELS_CUDA_CONV_CHOOSE_H
#define MNIST_DDP_KERNELS_CUDA_CONV_CHOOSE_H

#include "kernels/cuda/cuda_call.h"
#include "kernels/ops.h"

#include <stdbool.h>
#include <stddef.h>

/* Of a descriptor of cuDNN's graph interface, which is made, given its attributes and finalized at
 * once. */
typedef struct conv_attribute {
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t count; /* 0: the attribute is left out */
    const void *value;
} conv_attribute;

/* STATUS_DEVICE with cuDNN's reason if it refuses. */
status conv_descriptor_make(cudnnBackendDescriptorType_t type, const conv_attribute *attributes,
                            int count, cudnnBackendDescriptor_t *out);

/* Accepts NULL. */
void conv_descriptor_destroy(cudnnBackendDescriptor_t descriptor);

typedef enum conv_pass {
    CONV_PASS_FORWARD_BIAS, /* y = conv(x, w) + bias */
    CONV_PASS_FORWARD,      /* y = conv(x, w) */
    CONV_PASS_DATA,         /* x set: the gradient of x from that of y */
    CONV_PASS_WEIGHTS,      /* w set: the gradient of w from x and the gradient of y */
    CONV_PASSES,
} conv_pass;

/* The tensors' unique ids in the graph and its execution. */
enum { CONV_X = 1, CONV_W, CONV_Y, CONV_BIAS, CONV_SUM };

enum { CONV_ALIGNMENT = 16, CONV_GRAPH_PARTS = 12 }; /* bytes; descriptors below a graph */

typedef struct conv_graph {
    cudnnBackendDescriptor_t graph, parts[CONV_GRAPH_PARTS];
    int count; /* parts in use */
} conv_graph;

/* x (n, C, H, W), w (O, C, K, K), y (n, O, OH, OW), bias (1, O, 1, 1): all of `type`; products are
 * summed in float32, and bias is added there. */
typedef struct conv_work {
    conv2d_shape shape;
    cudnnDataType_t type;
    conv_pass pass;
    int n;
    bool planes; /* in memory as written here; false: channels innermost, as the device has them */
} conv_work;

/* handle NULL: to no device. */
status conv_graph_init(const conv_work *work, cudnnHandle_t handle, conv_graph *out);

/* Accepts an empty one. */
void conv_graph_close(conv_graph *g);

/* The device for cuDNN: a handle, or the device's properties. */
typedef struct conv_target {
    conv_attribute heuristics,
        plan; /* that the descriptors of engine heuristics and of plans are given */
} conv_target;

/* An engine with its settings, ready for execution. */
typedef struct conv_engine {
    cudnnBackendDescriptor_t config, plan;
    size_t workspace_bytes;
    int64_t index;                /* cuDNN's number of it, for this kind of graph */
    unsigned numerical, behavior; /* its notes: bit i is cuDNN's note i */
} conv_engine;

enum { CONV_SEARCH_CONFIGS = 64, CONV_SEARCH_TEXT_BYTES = 256 };

/* A search over the engines. */
typedef struct conv_search {
    const conv_target *target;
    const conv_graph *graph;
    bool tensor_cores; /* engines that use them are allowed */
    bool compile;      /* engines that are compiled at run time are allowed; takes seconds each */
    bool many;         /* more than the first will be asked for; takes 20 ms */
    int stage;
    cudnnBackendDescriptor_t configs[CONV_SEARCH_CONFIGS];
    int count, at;
    char refusal[CONV_SEARCH_TEXT_BYTES]; /* cuDNN's latest reason for refusing an engine */
} conv_search;

/* Its notes in words, as in "tensor_core,runtime_compilation"; cut at size_bytes. */
void conv_engine_write_notes(const conv_engine *engine, char *out, size_t size_bytes);

/* Accepts an empty one. */
void conv_engine_close(conv_engine *engine);

/* The caller has set target ... many; the rest is zero. *found false: there are no more. The caller
 * closes *out. */
status conv_engine_next(conv_search *search, conv_engine *out, bool *found);

/* Ends a search at any point. */
void conv_engine_end(conv_search *search);

typedef struct conv_problem {
    conv_work work;
    cudnnHandle_t handle; /* NULL: not bound to a device */
    conv_target target;
    bool tensor_cores; /* allowed */
    size_t workspace_bytes;
    /* The fastest of the first `tries` engines is taken, by `measure`; 1: the first. */
    int tries;
    status (*measure)(void *ctx, const conv_engine *engine, float *out_ms);
    void *ctx;
} conv_problem;

typedef struct conv_choice {
    int n;
    int piece;          /* 0: the whole batch at once by `engine`; else images of a piece */
    conv_engine engine; /* empty, with piece 0: no engine; CONV_PASS_FORWARD_BIAS only */
} conv_choice;

/* If the engine that is expected to be fastest wants too much workspace, the batch is cut into
 * pieces. If those are tiny, the next engine is taken. The caller closes out->engine. */
status conv_choose(const conv_problem *problem, conv_choice *out);

#endif
