/* cuDNN's engines for one pass of a convolution, in the order of their expected speed.
 *
 * Left out are engines whose bits differ from run to run, that round their inputs to another type,
 * or that sum in less than float32. Float32 sums of plain float32 products need `tensor_cores` off:
 * then engines with large rounding errors (FFT, Winograd with large tiles) are left out too. */
#ifndef MNIST_DDP_KERNELS_CUDA_CONV_ENGINE_H
#define MNIST_DDP_KERNELS_CUDA_CONV_ENGINE_H

#include "kernels/cuda/conv_graph.h"

#include <stdbool.h>
#include <stddef.h>

/* The device for cuDNN: a handle, or the device's properties. */
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

/* The caller has set target ... many; the rest is zero. *found false: there are no more. The caller
 * closes *out. */
status conv_engine_next(conv_search *search, conv_engine *out, bool *found);

/* Ends a search at any point. */
void conv_engine_end(conv_search *search);

#endif
