/* A device holds tensors and computes on them.
 *
 * Every operation of every device is a row of one table, kernels/ops.h. Parameters and gradients
 * are flat float32 in the device's own memory. Layout and type of the activations between the ends
 * of a network, and the layout of a weight inside its slice, are the device's private choice; ops.h
 * says which arrays are in plain order.
 *
 * A host device has done its work when a call returns. An accelerator enqueues it on its stream;
 * errors of the work itself come back from a later call.
 */
#ifndef MNIST_DDP_KERNELS_DEVICE_H
#define MNIST_DDP_KERNELS_DEVICE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct device_stream device_stream; /* an accelerator's queue; NULL: host */
typedef struct device_ops device_ops;

/* How numbers are multiplied; sums and master weights are float32 always. */
typedef enum precision { PRECISION_F32, PRECISION_TF32, PRECISION_BF16, PRECISION_F16 } precision;

typedef struct device_options {
    const char *name;         /* "cpu", "reference" (plain loops), "cuda" (a module), or "auto":
                                 cuda if a module, a driver and a GPU are found, else cpu */
    int threads;              /* >= 1: host threads that compute */
    int index;                /* the GPU's, among those that CUDA_VISIBLE_DEVICES leaves */
    enum precision precision; /* cpu: F32 or BF16; the other hosts: F32; cuda: any */
    const char *isa;          /* the cpu device's: "avx512", "avx2", "generic"; NULL or "auto": the
                                 best that the processor has */
    bool dense;               /* the cpu device multiplies zeros, too */
} device_options;

enum { DEVICE_TEXT_BYTES = 256, DEVICE_ID_BYTES = 48, DEVICE_MODEL_BYTES = 72 };

typedef struct device {
    const device_ops *ops;
    void *state; /* the implementation's own */
    int threads; /* host threads that compute */
    enum precision precision;
    size_t element_bytes;                /* device_element_bytes */
    device_stream *stream;               /* its work is enqueued here; NULL: a host device */
    char description[DEVICE_TEXT_BYTES]; /* "avx512 kernels", "cuda:0 NVIDIA H200 (GPU-...)" */
    char id[DEVICE_ID_BYTES];            /* the GPU's UUID, the same in all processes; "": a
                                            host device */
    const char *emulation;               /* NULL, or what stands in for the hardware */
    int64_t memory_bytes, memory_peak;   /* memory in use by tensors and plans: now, and the peak */
    unsigned large_blocks;               /* so many a host device allocated (host.c) */
    struct trace_lane *lane;             /* its user's thread's (base/trace.h); NULL: no trace */

    struct stream_trace *stream_trace; /* kernels/stream_trace.h; NULL: no trace, or no stream */

    /* Polled while a call waits for enqueued work. STATUS_OK: keep waiting; otherwise the wait ends
     * with this status. NULL: not polled. */
    status (*interrupted)(void *ctx);
    void *interrupted_ctx;
} device;

/* Algorithm selection: what a library of the device chose for one kind of work, or refused. For
 * reports. */
typedef struct device_choice {
    const char *library;     /* "cudnn", "cublaslt" */
    char subject[64];        /* "32->64, 3x3 on 26x26": the work */
    char pass[32];           /* "forward", "data", ...; the library's name of an epilogue */
    int batch;               /* images that were asked for; 0: of any batch */
    int piece;               /* images that go at once */
    int64_t engine;          /* the library's number of it; -1: none, our own kernels do it */
    int64_t workspace_bytes; /* that it uses */
    char notes[160];         /* what the library says of the engine; if there is none, why */
} device_choice;

/* `bytes` more of the device's memory are in use, or, negative, fewer. */
static inline void device_note_memory(device *dev, int64_t bytes)
{
    dev->memory_bytes += bytes;
    if (dev->memory_bytes > dev->memory_peak)
        dev->memory_peak = dev->memory_bytes;
}

/* The gradient slice [offset, offset + count) of the arena is final once the work enqueued on
 * `stream` so far is done. Called while a backward pass is enqueued. */
typedef status (*grad_ready_fn)(void *ctx, size_t offset, size_t count, device_stream *stream);

/* From now on, what the calling thread does with the device is traced in `lane`, and what the
 * device's own threads do in further lanes of `t`. Call it before the device computes. */
struct trace;
struct trace_lane;
status device_trace(device *dev, struct trace *t, struct trace_lane *lane);

/* Accepts NULL. Everything made on the device must be gone. */
void device_destroy(device *dev);

/* Bytes of one element of a batch's pixels and of the logits' gradient. */
static inline size_t device_element_bytes(const device *dev)
{
    return dev->element_bytes;
}

/* "f32", "tf32", "bf16", "fp16". */
const char *precision_name(precision p);

#endif
