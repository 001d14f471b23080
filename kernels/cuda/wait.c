/* No blocking call of the driver is used: if a collective hangs, it would block forever. */
#include "kernels/cuda/wait.h"

#include "base/clock.h"

#include <stdio.h>

/* Exactly one of the two is waited for. */
typedef struct awaited {
    cudaStream_t stream;
    cudaEvent_t event;
} awaited;

static cudaError_t query(const awaited *a)
{
    return a->event != NULL ? cudaEventQuery(a->event) : cudaStreamQuery(a->stream);
}

/* STATUS_OK: the work ended, with *code. Otherwise dev->interrupted ended the wait. */
static status poll(device *dev, const awaited *a, cudaError_t *code)
{
    poll_pause pause = {0};
    while ((*code = query(a)) == cudaErrorNotReady) {
        if (!poll_pause_once(&pause) || dev->interrupted == NULL)
            continue;
        status st = dev->interrupted(dev->interrupted_ctx);
        if (st != STATUS_OK) {
            cuda_state_of(dev)->given_up = true;
            return st;
        }
    }
    if (*code == cudaSuccess) {
        *code = cudaGetLastError();
        if (*code == cudaErrorNotReady) /* some versions keep that answer as the last error */
            *code = cudaSuccess;
    }
    return STATUS_OK;
}

static status wait_for(device *dev, const awaited *a, const char *what)
{
    const cuda_state *s = cuda_state_of(dev);
    cudaError_t code = cudaSuccess;
    if (s->capturing)
        return FAIL(STATUS_INVALID, "%s waits for the GPU while a graph is recorded", what);
    if (s->given_up)
        return FAIL(STATUS_DEVICE, "%s: GPU %d was given up", what, s->index);
    TRY(poll(dev, a, &code));
    if (code == cudaSuccess)
        return STATUS_OK;
    char call[64];
    snprintf(call, sizeof call, "%s in %s", a->event != NULL ? "cudaEventQuery" : "cudaStreamQuery",
             what);
    return cuda_call_status(code, call, __FILE__, __LINE__);
}

status cuda_wait_stream(device *dev, cudaStream_t stream, const char *what)
{
    awaited a = {.stream = stream};
    return wait_for(dev, &a, what);
}

status cuda_wait_event(device *dev, cudaEvent_t event, const char *what)
{
    awaited a = {.event = event};
    return wait_for(dev, &a, what);
}

bool cuda_drain(device *dev)
{
    const cuda_state *s = cuda_state_of(dev);
    awaited all[] = {{.stream = s->copies}, {.stream = s->stream}};
    status_kept before;
    status_keep(&before);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        cudaError_t code = cudaSuccess;
        if (s->given_up || s->capturing)
            return false;
        if (all[i].stream != NULL && poll(dev, &all[i], &code) != STATUS_OK) {
            status_restore(&before);
            return false;
        }
        if (code != cudaSuccess)
            (void)cudaGetLastError(); /* failed work does not hang */
    }
    return true;
}

status cuda_recover(device *dev, int64_t timeout_ms)
{
    cuda_state *s = cuda_state_of(dev);
    const cudaStream_t streams[] = {s->copies, s->stream};
    int64_t deadline_ns = clock_deadline_ns(timeout_ms);
    for (size_t i = 0; i < sizeof streams / sizeof streams[0]; i++) {
        poll_pause pause = {0};
        while (streams[i] != NULL && cudaStreamQuery(streams[i]) == cudaErrorNotReady) {
            (void)cudaGetLastError();
            if (poll_pause_once(&pause) && clock_passed(deadline_ns))
                return FAIL(STATUS_DEVICE, "GPU %d does not end what was aborted", s->index);
        }
    }
    (void)cudaGetLastError(); /* what was aborted leaves an error */
    s->given_up = false;
    return STATUS_OK;
}
