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
    const accelerator_ops *ops = graphs->dev->ops->accelerator;
    TRY(ops->capture_begin(graphs->dev));
    stream_trace_hold(graphs->dev->stream_trace, true);
    status st = enqueue(ctx, step);
    stream_trace_hold(graphs->dev->stream_trace, false);
    if (st == STATUS_OK)
        return ops->capture_end(graphs->dev, &one->graph);
    (void)ops->capture_end(graphs->dev, NULL);
    return st;
}

status step_graphs_run(step_graphs *graphs, int samples, int step, enqueue_step_fn enqueue,
                       void *ctx)
{
    step_graph *one = graphs->enabled ? find(graphs, samples) : NULL;
    if (one == NULL) {
        if (graphs->enabled && graphs->n < STEP_GRAPHS_MAX)
            graphs->known[graphs->n++] = (step_graph){.samples = samples};
        return enqueue(ctx, step);
    }
    if (one->graph == NULL)
        TRY(record(graphs, one, step, enqueue, ctx));
    device_span_switch(graphs->dev, "graph");
    return graphs->dev->ops->accelerator->graph_launch(graphs->dev, one->graph);
}

void step_graphs_close(step_graphs *graphs)
{
    for (int i = 0; i < graphs->n; i++)
        if (graphs->known[i].graph != NULL)
            graphs->dev->ops->accelerator->graph_destroy(graphs->known[i].graph);
    graphs->n = 0;
}
