/* Pinning, events, and copies that overlap with kernels. */
#include "base/memory.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/wait.h"

#include <stdlib.h>

struct device_event {
    cudaEvent_t event;
};

status cuda_pin(device *dev, void *host, size_t size_bytes)
{
    TRY(cuda_use(dev));
    return CUDA_CALL(cudaHostRegister(host, size_bytes, cudaHostRegisterDefault));
}

void cuda_unpin(device *dev, void *host)
{
    if (host != NULL && cuda_drain(dev))
        (void)cudaHostUnregister(host);
}

static status create_event(device *dev, unsigned flags, device_event **out)
{
    device_event *made = NULL;
    TRY(memory_alloc(sizeof *made, (void **)&made));
    status st = cuda_use(dev);
    if (st == STATUS_OK)
        st = CUDA_CALL(cudaEventCreateWithFlags(&made->event, flags));
    if (st != STATUS_OK) {
        free(made);
        return st;
    }
    *out = made;
    return STATUS_OK;
}

status cuda_event_create(device *dev, device_event **out)
{
    return create_event(dev, cudaEventDisableTiming, out);
}

status cuda_timer_create(device *dev, device_event **out)
{
    return create_event(dev, cudaEventDefault, out);
}

status cuda_event_record(device *dev, device_event *timer)
{
    cuda_state *s = cuda_state_of(dev);
    if (s->capturing)
        return FAIL(STATUS_INVALID, "a timing event is enqueued while a graph is recorded");
    return CUDA_CALL(cudaEventRecord(timer->event, s->stream));
}

status cuda_event_elapsed(device *dev, device_event *from, device_event *to, int64_t *ns)
{
    float ms = 0;
    TRY(cuda_use(dev));
    TRY(CUDA_CALL(cudaEventElapsedTime(&ms, from->event, to->event)));
    *ns = (int64_t)((double)ms * 1e6);
    return STATUS_OK;
}

void cuda_event_destroy(device_event *event)
{
    if (event == NULL)
        return;
    (void)cudaEventDestroy(event->event);
    free(event);
}

status cuda_copy_out(device *dev, void *pinned, const void *src, size_t size_bytes,
                     device_event *done)
{
    cuda_state *s = cuda_state_of(dev);
    if (s->capturing)
        return FAIL(STATUS_INVALID, "a copy to the host is enqueued while a graph is recorded");
    TRY(cuda_use(dev));
    TRY(CUDA_CALL(cudaEventRecord(s->fence, s->stream)));
    TRY(CUDA_CALL(cudaStreamWaitEvent(s->copies, s->fence, 0)));
    TRY(CUDA_CALL(cudaMemcpyAsync(pinned, src, size_bytes, cudaMemcpyDeviceToHost, s->copies)));
    return CUDA_CALL(cudaEventRecord(done->event, s->copies));
}

status cuda_event_wait(device *dev, device_event *event)
{
    return cuda_wait_event(dev, event->event, "event_wait");
}

status cuda_copy_in(device *dev, void *dst, const void *pinned, size_t size_bytes)
{
    TRY(cuda_use(dev));
    return CUDA_CALL(cudaMemcpyAsync(dst, pinned, size_bytes, cudaMemcpyHostToDevice,
                                     cuda_state_of(dev)->stream));
}
