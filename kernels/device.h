/* A device: where tensors live and who does the arithmetic.
 *
 * Every operation of every device stands in one table, kernels/ops.h. Parameters and gradients are
 * flat float32 in the device's own memory. Order and type of the activations between the ends of a
 * network, and the order of a weight inside its slice, are the device's private choice (ops.h says
 * where plain order comes back).
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
    const char *name;         /* "cpu" (oneDNN, or the reference kernels if it was not built in),
                                 "reference" (plain loops), "cuda", "auto": cuda if a module, a
                                 driver and a GPU are found, else cpu */
    int threads;              /* >= 1: host threads that compute */
    int index;                /* of the GPU among those that CUDA_VISIBLE_DEVICES leaves */
    enum precision precision; /* other than PRECISION_F32: cuda only */
} device_options;

enum { DEVICE_TEXT_BYTES = 256, DEVICE_ID_BYTES = 48 };

typedef struct device {
    const device_ops *ops;
    void *state; /* the implementation's own */
    int threads; /* host threads that compute */
    enum precision precision;
    device_stream *stream;               /* where its work is enqueued; NULL: a host device */
    char description[DEVICE_TEXT_BYTES]; /* "oneDNN 2.6.3", "cuda:0 NVIDIA H200 (GPU-...)" */
    char id[DEVICE_ID_BYTES];            /* of the GPU, the same in all processes: its UUID; "": a
                                            host device */
    const char *emulation;               /* NULL, or what stands in for the hardware */
    int64_t memory_bytes, memory_peak;   /* what tensors and plans take of its memory: now, and the
                                            most so far */
    struct trace_lane *lane; /* of the thread that uses it (base/trace.h); NULL: no trace */

    struct stream_trace *stream_trace; /* kernels/stream_trace.h; NULL: no trace, or no stream */

    /* Asked again and again while a call waits for enqueued work: STATUS_OK, or why to give up.
     * NULL: nobody to ask. */
    status (*interrupted)(void *ctx);
    void *interrupted_ctx;
} device;

/* What a library of the device's chose for one kind of work, or would not do: for reports. */
typedef struct device_choice {
    const char *library;     /* "cudnn", "cublaslt" */
    char subject[64];        /* "32->64, 3x3 on 26x26": the work */
    char pass[32];           /* "forward", "data", ...; the library's name of an epilogue */
    int batch;               /* images that were asked for; 0: of any batch */
    int piece;               /* images that go at once */
    int64_t engine;          /* the library's number of it; -1: none, own kernels do it */
    int64_t workspace_bytes; /* that it uses */
    char notes[160];         /* the library's, of the engine; where there is none: why */
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

/* The four that follow choose among the kinds of devices: device_kinds.c.
 *
 * STATUS_INVALID for a name, an index or a precision that is not there, with the ones that are;
 * STATUS_DEVICE where the accelerator does not work. */
status device_create(const device_options *options, device **out);

/* How many GPUs "cuda" has here. STATUS_INVALID or STATUS_DEVICE, with the reason, where there are
 * none. */
status device_count(int *out);

/* Whether "auto" means cuda here. Quick where no driver is installed. */
bool device_auto_is_cuda(void);

/* What the cpu device computes with: "oneDNN 2.6.3" or "reference kernels". */
const char *device_libraries(void);

/* From now on `lane` gets what the calling thread does with the device, and further lanes of `t`
 * what the device's own threads do. For a device that has not computed yet. */
struct trace;
struct trace_lane;
status device_trace(device *dev, struct trace *t, struct trace_lane *lane);

/* Accepts NULL. Everything made on the device must be gone. */
void device_destroy(device *dev);

/* Bytes of one element of a batch's pixels and of the logits' gradient: as wide as what the device
 * multiplies. */
static inline size_t device_element_bytes(const device *dev)
{
    return dev->precision == PRECISION_BF16 || dev->precision == PRECISION_F16 ? 2 : 4;
}

/* "f32", "tf32", "bf16", "fp16". */
const char *precision_name(precision p);

#endif
