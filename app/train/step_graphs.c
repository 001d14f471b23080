#include "app/train/step_graphs.h"

#include "kernels/stream_trace.h"

static step_graph *find(step_graphs *graphs, int samples)
{
    for (int i = 0; i < graphs->n; i++)
        if (graphs->known[i].samples == samples)
            return &graphs->known[i];
    return NULL;
}

static status record(step_graphs *graphs, step_graph *one, int step, enqueue_step_fn enqueue,
                     void *ctx)
{
    device *dev = graphs->timeline->dev;
    const accelerator_ops *ops = dev->ops->accelerator;
    TRY(ops->capture_begin(dev));
    stream_trace_hold(dev->stream_trace, true);
    status st = enqueue(ctx, step);
    stream_trace_hold(dev->stream_trace, false);
    if (st == STATUS_OK)
        return ops->capture_end(dev, &one->graph);
    (void)ops->capture_end(dev, NULL);
    return st;
}

status step_graphs_run(step_graphs *graphs, int samples, int step, enqueue_step_fn enqueue,
                       void *ctx)
{
    device *dev = graphs->timeline->dev;
    step_graph *one = graphs->enabled ? find(graphs, samples) : NULL;
    if (one == NULL) {
        if (graphs->enabled && graphs->n < STEP_GRAPHS_MAX)
            graphs->known[graphs->n++] = (step_graph){.samples = samples};
        return enqueue(ctx, step);
    }
    if (one->graph == NULL)
        TRY(record(graphs, one, step, enqueue, ctx));
    TRY(timeline_enter(graphs->timeline, MOMENT_GRAPH));
    TRY(dev->ops->accelerator->graph_launch(dev, one->graph));
    return timeline_enter(graphs->timeline, MOMENT_BETWEEN);
}

void step_graphs_close(step_graphs *graphs)
{
    for (int i = 0; i < graphs->n; i++)
        if (graphs->known[i].graph != NULL)
            graphs->timeline->dev->ops->accelerator->graph_destroy(graphs->known[i].graph);
    graphs->n = 0;
}
