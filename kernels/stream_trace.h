/* When an accelerator does what: timers, which are events on its stream that note the time, read
 * later, a few hundred at once. Out of them come the spans of a trace's lane, and how long each
 * phase of the work took. It is the only pool of timers.
 *
 * The device_ calls here note both: what the host does in dev->lane (which is all of it on a host
 * device) and, if the device has a stream, when the work that it enqueues meanwhile is done.
 * Without a trace they cost a test of a pointer.
 */
#ifndef MNIST_DDP_KERNELS_STREAM_TRACE_H
#define MNIST_DDP_KERNELS_STREAM_TRACE_H

#include "base/trace.h"
#include "kernels/device.h"

typedef struct stream_trace stream_trace;

/* For an accelerator with timers. Waits for the device. `t` NULL: phases are timed, and there are
 * no spans. */
status stream_trace_open(device *dev, trace *t, const char *name, stream_trace **out);
void stream_trace_close(stream_trace *s); /* accepts NULL */

/* The stream's part of the calls below. A failure to enqueue a timer ends the lane, not the run;
 * stream_trace_switch with a total and stream_trace_settle return it. */
void stream_trace_begin(stream_trace *s, const char *of, const char *name);
void stream_trace_end(stream_trace *s);
status stream_trace_switch(stream_trace *s, const char *name, int64_t *total_ns);

/* While work is recorded in a graph its spans are not kept: they are the recording's. */
void stream_trace_hold(stream_trace *s, bool held);

/* Waits for the device and brings the spans so far into the lane, and the times of the phases that
 * have ended into their totals. */
status stream_trace_settle(stream_trace *s);

/* As trace_begin and trace_end. */
static inline void device_span_begin(device *dev, const char *of, const char *name)
{
    if (dev->lane == NULL)
        return;
    trace_begin(dev->lane, of, name);
    if (dev->stream_trace != NULL)
        stream_trace_begin(dev->stream_trace, of, name);
}

static inline void device_span_end(device *dev)
{
    if (dev->lane == NULL)
        return;
    if (dev->stream_trace != NULL)
        stream_trace_end(dev->stream_trace);
    trace_end(dev->lane);
}

/* The thread and the stream go on to another phase: `name` in the trace, NULL: no span. The
 * stream's time in it is added to *total_ns once it is known; NULL: to nothing. STATUS_DEVICE if it
 * is to be added and cannot be told. */
static inline status device_span_switch(device *dev, const char *name, int64_t *total_ns)
{
    trace_switch(dev->lane, name);
    return dev->stream_trace != NULL ? stream_trace_switch(dev->stream_trace, name, total_ns)
                                     : STATUS_OK;
}

#endif
