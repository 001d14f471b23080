/* cuDNN's engines for one pass of a convolution: asked for in the order of their expected speed,
 * and only those that keep our promises.
 *
 * Never one whose bits differ from run to run, that rounds its inputs to another type first, or
 * that sums in less than float32. Float32 sums of plain float32 products need `tensor_cores` off:
 * then none transforms with roundings that show either (FFT, Winograd's with large tiles).
 */
#ifndef MNIST_DDP_KERNELS_CUDA_CONV_ENGINE_H
#define MNIST_DDP_KERNELS_CUDA_CONV_ENGINE_H

#include "kernels/cuda/conv_graph.h"

#include <stdbool.h>
#include <stddef.h>

/* How cuDNN is told the device: by a handle, or without one by its properties. */
typedef struct conv_target {
    conv_attribute heuristics, plan; /* of the descriptors of engine heuristics and plans */
} conv_target;

/* An engine with its settings, ready for execution. */
typedef struct conv_engine {
    cudnnBackendDescriptor_t config, plan;
    size_t workspace_bytes;
    int64_t index;                /* cuDNN's number of it, for this kind of graph */
    unsigned numerical, behavior; /* its notes: bit i is cuDNN's note i */
} conv_engine;

/* Its notes in words, as in "tensor_core,runtime_compilation"; cut at size_bytes. */
void conv_engine_write_notes(const conv_engine *engine, char *out, size_t size_bytes);

/* Accepts an empty one. */
void conv_engine_close(conv_engine *engine);

enum { CONV_SEARCH_CONFIGS = 64, CONV_SEARCH_TEXT_BYTES = 256 };

/* A walk over the engines. */
typedef struct conv_search {
    const conv_target *target;
    const conv_graph *graph;
    bool tensor_cores; /* engines that use them are welcome */
    bool compile;      /* so are engines that are compiled first, which takes seconds each */
    bool many;         /* more than the first will be asked for; takes 20 ms */
    int stage;
    cudnnBackendDescriptor_t configs[CONV_SEARCH_CONFIGS];
    int count, at;
    char refusal[CONV_SEARCH_TEXT_BYTES]; /* cuDNN's latest reason against an engine */
} conv_search;

/* target to many are set, the rest is zero. *found false: there is no
 * other. The caller closes *out. */
status conv_engine_next(conv_search *search, conv_engine *out, bool *found);

/* Ends a walk wherever it is. */
void conv_engine_end(conv_search *search);

#endif
