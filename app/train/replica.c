#include "app/train/replica.h"

#include "base/clock.h"
#include "dist/chunk.h"
#include "kernels/device_kind.h"
#include "kernels/ops.h"

#include <stdio.h>

static status interrupted(void *ctx)
{
    const replica *r = ctx;
    for (int group = 0; group < r->all->n_groups; group++)
        if (r->groups[group] != NULL)
            TRY(process_group_check(r->groups[group]));
    return STATUS_OK;
}

/* Of all but the master, whose device has the main thread's. */
static status open_trace(replica *r)
{
    trace *spans = r->all->rank->trace.spans;
    trace_lane *lane = NULL;
    char name[TRACE_LANE_NAME_BYTES];
    snprintf(name, sizeof name, "replica %d", r->index);
    TRY(trace_lane_open(spans, name, TRACE_NESTED, &lane));
    return device_trace(r->dev, spans, lane);
}

static status open_transfers(replica *r)
{
    char name[TRACE_LANE_NAME_BYTES];
    snprintf(name, sizeof name, "transfers of replica %d", r->index);
    return r->lane != NULL
               ? STATUS_OK
               : trace_lane_open(r->all->rank->trace.spans, name, TRACE_OVERLAPPING, &r->lane);
}

static status open_compute(replica *r)
{
    size_t chunk = (size_t)r->all->chunk;
    TRY(device_create(&r->where, &r->dev));
    TRY(open_trace(r));
    const device_ops *ops = r->dev->ops;
    TRY(ops->alloc(r->dev, sizeof *r->state, (void **)&r->state));
    TRY(ops->alloc(r->dev, sizeof *r->x * chunk * DATASET_PIXELS, (void **)&r->x));
    TRY(ops->alloc(r->dev, sizeof *r->samples * chunk, (void **)&r->samples));
    return network_create(r->dev, &r->all->network, &r->net);
}

/* On zeros for a batch of `n`: its inputs lie in `zeros`. The master also computes the whole
 * batch's loss, and may add to gradients. */
static status run_once(replica *r, network *net, const batch *zeros, int n)
{
    replicas *all = r->all;
    batch own = *zeros, whole = *zeros;
    own.n = chunk_rows(n, all->n, r->index);
    whole.n = n;
    if (own.n == 0)
        return STATUS_OK;
    TRY(network_forward(net, &own, NETWORK_TRAIN));
    if (r->index == 0)
        TRY(network_loss(net, all->logits, &whole, all->dlogits));
    TRY(network_backward_from(net, false, NULL, NULL));
    return r->index == 0 && all->rank->opts->accum > 1
               ? network_backward_from(net, true, NULL, NULL)
               : STATUS_OK;
}

status replica_load_kernels(replica *r)
{
    replicas *all = r->all;
    bool is_master = r->index == 0;
    network *net = is_master ? all->rank->net : r->net;
    step_state *state = is_master ? all->rank->state : r->state;
    step_plan plan = {.scale_loss = r->dev->precision == PRECISION_F16}; /* of an evaluation */
    const device_ops *ops = r->dev->ops;
    void *zeros = NULL;
    /* A chunk's images are more bytes than the labels and positions of all replicas' samples. */
    TRY(ops->alloc(r->dev, sizeof(float) * (size_t)all->chunk * DATASET_PIXELS, &zeros));
    batch in = {.x = zeros, .labels = zeros, .samples = zeros, .state = state};
    status st = ops->begin_step(r->dev, &plan, state, NULL);
    for (int i = 0; i < REPLICA_GROUPS && st == STATUS_OK; i++)
        if (all->batches[i] > 0)
            st = run_once(r, net, &in, all->batches[i]);
    if (st == STATUS_OK && is_master)
        st = network_reset_score(net);
    if (st == STATUS_OK)
        st = ops->synchronize(r->dev);
    ops->free(r->dev, zeros);
    return st;
}

static void close_compute(replica *r)
{
    replica_leave(r);
    network_destroy(r->net);
    if (r->dev != NULL) {
        r->dev->ops->free(r->dev, r->samples);
        r->dev->ops->free(r->dev, r->x);
        r->dev->ops->free(r->dev, r->state);
    }
    device_destroy(r->dev);
    r->net = NULL;
    r->dev = NULL;
}

static status open_keys(replica *r, int group)
{
    char prefix[32];
    snprintf(prefix, sizeof prefix, "replicas/%d/", group);
    store_options where = {.host = "127.0.0.1",
                           .port = store_server_port(r->all->server),
                           .prefix = prefix,
                           .timeout_ms = r->all->timeout_ms,
                           .connect_timeout_ms = r->all->timeout_ms,
                           .describe = ""};
    return r->keys[group] != NULL ? STATUS_OK : store_create(&where, &r->keys[group]);
}

status replica_join(replica *r)
{
    replicas *all = r->all;
    TRY(open_transfers(r));
    for (int group = 0; group < all->n_groups; group++) {
        const replica_group *members = &all->groups[group];
        if (r->index >= members->n || members->n < 2)
            continue;
        if (all->server != NULL)
            TRY(open_keys(r, group));
        process_group_options settings = {.backend = all->backend,
                                          .rank = r->index,
                                          .world_size = members->n,
                                          .store = r->keys[group],
                                          .hub = members->hub,
                                          .timeout_ms = all->timeout_ms,
                                          .device = r->dev,
                                          .stuck = all->stuck,
                                          .stuck_ctx = all,
                                          .lane = r->lane};
        TRY(process_group_create(&settings, &r->groups[group]));
    }
    r->dev->interrupted = interrupted;
    r->dev->interrupted_ctx = r;
    return STATUS_OK;
}

void replica_leave(replica *r)
{
    if (r->dev != NULL)
        r->dev->interrupted = NULL;
    for (int group = 0; group < REPLICA_GROUPS; group++) {
        process_group_destroy(r->groups[group]);
        store_destroy(r->keys[group]);
        r->groups[group] = NULL;
        r->keys[group] = NULL;
    }
}

static void arrive(replica *r, replica_point point)
{
    atomic_store(&r->arrived_ns[point], clock_now_ns());
}

/* The other side of strategy_dp.c's run_batch, on one chunk. What is not a float is sent
 * as one: these transfers do no arithmetic. */
static status work_on_chunk(replica *r, const task *t)
{
    process_group *group = r->groups[t->group];
    device_stream *stream = r->dev->stream;
    size_t count = network_count(r->net);
    int rows = chunk_rows(t->n, r->all->n, r->index);
    size_t n = (size_t)rows, row_bytes = network_dlogits_row_bytes(r->net);
    size_t image_bytes = DATASET_PIXELS * device_element_bytes(r->dev);
    batch in = {.n = rows, .x = r->x, .samples = r->samples, .state = r->state};
    if (t->begins_step)
        TRY(r->dev->ops->begin_step(r->dev, &t->plan, r->state, NULL));
    arrive(r, AT_PARAMETERS);
    TRY(process_group_broadcast(group, network_parameters(r->net), count, DTYPE_F32, 0, stream));
    TRY(process_group_recv(group, r->x, n * image_bytes / sizeof(float), DTYPE_F32, 0, stream));
    TRY(process_group_recv(group, r->samples, n, DTYPE_F32, 0, stream));
    TRY(network_forward(r->net, &in, NETWORK_TRAIN));
    arrive(r, AT_LOGITS);
    TRY(process_group_send(group, network_logits(r->net), n * NETWORK_CLASSES, DTYPE_F32, 0,
                           stream));
    TRY(process_group_recv(group, network_dlogits(r->net), n * row_bytes / sizeof(float), DTYPE_F32,
                           0, stream));
    TRY(network_backward_from(r->net, false, NULL, NULL));
    arrive(r, AT_GRADIENTS);
    float *gradients = network_gradients(r->net);
    return process_group_reduce(
        group, &(reduction){gradients, gradients, count, DTYPE_F32, REDUCE_SUM, 1}, 0, stream);
}

static status do_task(replica *r, const task *t)
{
    switch (t->kind) {
    case TASK_OPEN:
        return open_compute(r);
    case TASK_LOAD:
        return replica_load_kernels(r);
    case TASK_JOIN:
        return replica_join(r);
    case TASK_WORK:
        return r->index < r->all->groups[t->group].n ? work_on_chunk(r, t) : STATUS_OK;
    case TASK_END:
        break;
    }
    return STATUS_OK;
}

static task next_task(replica *r)
{
    replicas *all = r->all;
    pthread_mutex_lock(&all->lock);
    while (all->issued == r->done)
        pthread_cond_wait(&all->changed, &all->lock);
    task next = all->current;
    pthread_mutex_unlock(&all->lock);
    return next;
}

static void report(replica *r, status st)
{
    pthread_mutex_lock(&r->all->lock);
    r->done++;
    r->st = st;
    if (st != STATUS_OK)
        snprintf(r->message, sizeof r->message, "%s", status_text());
    pthread_cond_broadcast(&r->all->changed);
    pthread_mutex_unlock(&r->all->lock);
}

/* A replica that has failed says so, closes its groups, so that nobody waits for it, and ends. */
void *replica_main(void *arg)
{
    replica *r = arg;
    for (;;) {
        task next = next_task(r);
        status st = do_task(r, &next);
        if (next.kind == TASK_END)
            break;
        report(r, st);
        if (st != STATUS_OK)
            break;
    }
    close_compute(r);
    return NULL;
}
