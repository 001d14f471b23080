/* Graph capture in thread-local mode: calls of other threads meanwhile, such as a collective's
 * watchdog, neither enter a capture nor invalidate it. */
#include "base/memory.h"
#include "kernels/cuda/cuda_ops.h"

#include <stdlib.h>

struct device_graph {
    cudaGraphExec_t exec;
};

status cuda_capture_begin(device *dev)
{
    cuda_state *s = cuda_state_of(dev);
    ASSERT(!s->capturing);
    TRY(cuda_use(dev));
    TRY(CUDA_CALL(cudaStreamBeginCapture(s->stream, cudaStreamCaptureModeThreadLocal)));
    s->capturing = true;
    return STATUS_OK;
}

/* The graph is uploaded here, so that the first launch is as quick as later ones. */
static status instantiate(device *dev, cudaGraph_t captured, device_graph **out)
{
    device_graph *made = NULL;
    TRY(memory_alloc(sizeof *made, (void **)&made));
    status st = CUDA_CALL(cudaGraphInstantiate(&made->exec, captured, 0));
    if (st == STATUS_OK)
        st = CUDA_CALL(cudaGraphUpload(made->exec, cuda_state_of(dev)->stream));
    if (st != STATUS_OK) {
        cuda_graph_destroy(made);
        return st;
    }
    *out = made;
    return STATUS_OK;
}

/* A capture left open would make all later calls of this thread fail. */
static void abandon_capture(cudaStream_t stream)
{
    enum cudaStreamCaptureStatus state = cudaStreamCaptureStatusNone;
    cudaGraph_t captured = NULL;
    if (cudaStreamIsCapturing(stream, &state) == cudaSuccess &&
        state != cudaStreamCaptureStatusNone)
        (void)cudaStreamEndCapture(stream, &captured);
    if (captured != NULL)
        (void)cudaGraphDestroy(captured);
    (void)cudaGetLastError();
}

status cuda_capture_end(device *dev, device_graph **out)
{
    cuda_state *s = cuda_state_of(dev);
    cudaGraph_t captured = NULL;
    ASSERT(s->capturing);
    s->capturing = false;
    if (out == NULL) {
        abandon_capture(s->stream);
        return STATUS_OK;
    }
    status st = CUDA_CALL(cudaStreamEndCapture(s->stream, &captured));
    if (st != STATUS_OK)
        abandon_capture(s->stream);
    else
        st = instantiate(dev, captured, out);
    if (captured != NULL)
        (void)cudaGraphDestroy(captured);
    return st;
}

status cuda_graph_launch(device *dev, device_graph *graph)
{
    TRY(cuda_use(dev));
    return CUDA_CALL(cudaGraphLaunch(graph->exec, cuda_state_of(dev)->stream));
}

void cuda_graph_destroy(device_graph *graph)
{
    if (graph == NULL)
        return;
    if (graph->exec != NULL)
        (void)cudaGraphExecDestroy(graph->exec);
    free(graph);
}
