/* DataParallel: replicas are threads of this process, each with a device and a network of its own.
 * The rank's own thread is the master and replica 0: its network, with the rank's device, has the
 * parameters that count.
 *
 * A batch is cut as torch.chunk cuts it, so the last chunk may be smaller, and there may be fewer
 * chunks than replicas: the replicas that are left over then do nothing at all. Every transfer is a
 * copy from one replica's memory to another's, through a process group among the threads.
 */
#include "app/common/device_list.h"
#include "app/train/failure.h"
#include "app/train/rank_context.h"
#include "app/train/strategy_ops.h"
#include "base/clock.h"
#include "base/thread.h"
#include "dist/backends/local/backend_local.h"
#include "dist/chunk.h"
#include "dist/process_group/process_group.h"
#include "dist/store/store.h"
#include "kernels/device.h"
#include "kernels/device_kind.h"
#include "kernels/ops.h"
#include "model/network.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum {
    REPLICA_MESSAGE_BYTES = 1024,
    REPLICA_GROUPS = 2, /* an epoch has full batches and at most one smaller one */
};

struct replica;

/* What each replica is to do. */
typedef struct task {
    status (*run)(struct replica *r, const struct task *t); /* NULL: to end */
    bool begins_step;
    step_plan plan; /* the step's */
    int n;          /* samples of the whole batch */
} task;

struct replicas;

typedef struct replica {
    struct replicas *all;
    int index;
    pthread_t thread; /* all but the master have one */
    device_options where;
    device *dev;
    struct trace_lane *lane; /* for its transfers; NULL: no trace */
    network *net;
    step_state *step_state;                /* device memory, as the next two: */
    float *x;                              /* (chunk, 784) */
    uint32_t *samples;                     /* (chunk) */
    store *keys[REPLICA_GROUPS];           /* NULL: none is needed */
    process_group *groups[REPLICA_GROUPS]; /* NULL: not of this group, or a group of one */
    _Atomic int64_t arrived_ns[N_PHASES];  /* when it last was ready for the master, by what */

    /* under the lock of `all` */
    uint64_t done; /* tasks */
    status st;
    char message[REPLICA_MESSAGE_BYTES];
} replica;

typedef struct replicas {
    int n, chunk;                    /* chunk: samples of the largest */
    int batches[REPLICA_GROUPS];     /* samples of a full batch and of an epoch's last; 0: none */
    int in_use[REPLICA_GROUPS];      /* the first replicas, for such a batch; 0: as for the other */
    local_hub *hubs[REPLICA_GROUPS]; /* NULL: they meet through the store */
    replica members[REPLICAS_MAX];   /* the first one is the master */
    network_options network;
    const char *backend;
    store_server *server; /* for the groups that meet through it; NULL */
    int64_t timeout_ms;
    bool ready; /* all have what they need: until then they open libraries, which takes longer */
    rank_context *rank;     /* the master */
    float *logits;          /* (batch, 10): all replicas', in the master's memory */
    unsigned char *dlogits; /* (batch): rows of network_dlogits_row_bytes() */
    task next;              /* for the next batch */
    int started;            /* threads */

    pthread_mutex_t lock; /* guards the tasks and what members say of them */
    pthread_cond_t changed;
    task current;
    uint64_t issued; /* tasks so far */
} replicas;

/* What the master sees of a replica's failure is that it is gone, and the replica itself knows
 * more.
 */
static status explain(void *self, status st)
{
    replicas *all = self;
    const replica *cause = NULL;
    pthread_mutex_lock(&all->lock);
    for (int i = 1; i <= all->started; i++) {
        const replica *r = &all->members[i];
        if (r->st != STATUS_OK && (cause == NULL || cause->st == STATUS_PEER))
            cause = r;
    }
    if (cause != NULL && cause->st != STATUS_PEER)
        st = FAIL(cause->st, "replica %d: %s", cause->index, cause->message);
    pthread_mutex_unlock(&all->lock);
    return st;
}

/* The master hangs in the driver because a replica has gone, and that one knows why it went. */
static void end_stuck(void *ctx, status st)
{
    replicas *all = ctx;
    failure_end_stuck(all->rank, explain(all, st));
}

/* A replica, on its thread. */

static status interrupted(void *ctx)
{
    const replica *r = ctx;
    for (int group = 0; group < REPLICA_GROUPS; group++)
        if (r->groups[group] != NULL)
            TRY(process_group_check(r->groups[group]));
    return STATUS_OK;
}

/* Device and network. Of all but the master, whose device has the main thread's trace. */
static status open_compute(replica *r, const task *t)
{
    trace *spans = r->all->rank->trace.spans;
    trace_lane *lane = NULL;
    char name[TRACE_LANE_NAME_BYTES];
    size_t chunk = (size_t)r->all->chunk;
    (void)t;
    snprintf(name, sizeof name, "replica %d", r->index);
    TRY(device_create(&r->where, &r->dev));
    TRY(trace_lane_open(spans, name, TRACE_NESTED, &lane));
    TRY(device_trace(r->dev, spans, lane));
    const device_ops *ops = r->dev->ops;
    TRY(ops->alloc(r->dev, sizeof *r->step_state, (void **)&r->step_state));
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

/* Of replicas that talk through nccl, before there is a communicator: runs this replica's part of a
 * batch of every size once, on zeros, so that every kernel of it is loaded. A kernel's first launch
 * may wait for all that runs on the device, or on any (CUDA's programming guide, "Lazy Loading"):
 * with replicas in one process then for a transfer whose other end waits for that launch. What
 * runs only when all transfers of a step are enqueued, as the optimizer, need not be loaded.
 * Weights, optimizer, totals and loss scale stay as they are; gradients do not. */
static status replica_load_kernels(replica *r, const task *t)
{
    (void)t;
    replicas *all = r->all;
    bool is_master = r->index == 0;
    network *net = is_master ? all->rank->net : r->net;
    step_state *state = is_master ? all->rank->step_state : r->step_state;
    step_plan plan = {.scale_loss = r->dev->precision == PRECISION_F16}; /* an evaluation's */
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

static void replica_leave(replica *r)
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

static void close_compute(replica *r)
{
    replica_leave(r);
    network_destroy(r->net);
    if (r->dev != NULL) {
        r->dev->ops->free(r->dev, r->samples);
        r->dev->ops->free(r->dev, r->x);
        r->dev->ops->free(r->dev, r->step_state);
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
    return store_create(&where, &r->keys[group]);
}

/* Opens this replica's process groups. */
static status replica_join(replica *r, const task *t)
{
    (void)t;
    replicas *all = r->all;
    char name[TRACE_LANE_NAME_BYTES];
    snprintf(name, sizeof name, "transfers of replica %d", r->index);
    TRY(trace_lane_open(all->rank->trace.spans, name, TRACE_OVERLAPPING, &r->lane));
    for (int group = 0; group < REPLICA_GROUPS; group++) {
        if (r->index >= all->in_use[group] || all->in_use[group] < 2)
            continue;
        if (all->server != NULL)
            TRY(open_keys(r, group));
        process_group_options settings = {.backend = all->backend,
                                          .rank = r->index,
                                          .world_size = all->in_use[group],
                                          .store = r->keys[group],
                                          .hub = all->hubs[group],
                                          .timeout_ms = all->timeout_ms,
                                          .device = r->dev,
                                          .stuck = end_stuck,
                                          .stuck_ctx = all,
                                          .eager = true,
                                          .lane = r->lane};
        TRY(process_group_create(&settings, &r->groups[group]));
    }
    r->dev->interrupted = interrupted;
    r->dev->interrupted_ctx = r;
    return STATUS_OK;
}

/* The group for batches of `n` samples. */
static int group_of(const replicas *all, int n)
{
    return chunk_count(n, all->n) == all->in_use[0] ? 0 : 1;
}

/* The sum over the group, on rank 0. */
static status reduce_gradients(process_group *group, network *net, device_stream *stream)
{
    float *gradients = network_gradients(net);
    collective c = {
        .kind = COLLECTIVE_REDUCE, .in = gradients, .out = gradients, .count = network_count(net)};
    return process_group_run(group, &c, stream);
}

/* The other side of forward_backward, on one chunk, if this replica has one. What is not a float is
 * sent as one: these transfers do no arithmetic. */
static status work_on_chunk(replica *r, const task *t)
{
    int which = group_of(r->all, t->n);
    if (r->index >= r->all->in_use[which])
        return STATUS_OK;
    process_group *group = r->groups[which];
    device_stream *stream = r->dev->stream;
    int rows = chunk_rows(t->n, r->all->n, r->index);
    size_t n = (size_t)rows, row_bytes = network_dlogits_row_bytes(r->net);
    size_t image_bytes = DATASET_PIXELS * device_element_bytes(r->dev);
    batch in = {.n = rows, .x = r->x, .samples = r->samples, .state = r->step_state};
    if (t->begins_step)
        TRY(r->dev->ops->begin_step(r->dev, &t->plan, r->step_state, NULL));
    atomic_store(&r->arrived_ns[MOMENT_BROADCAST], clock_now_ns());
    TRY(process_group_broadcast(group, network_parameters(r->net), network_count(r->net), DTYPE_F32,
                                0, stream));
    TRY(process_group_recv(group, r->x, n * image_bytes / sizeof(float), DTYPE_F32, 0, stream));
    TRY(process_group_recv(group, r->samples, n, DTYPE_F32, 0, stream));
    TRY(network_forward(r->net, &in, NETWORK_TRAIN));
    atomic_store(&r->arrived_ns[MOMENT_GATHER], clock_now_ns());
    TRY(process_group_send(group, network_logits(r->net), n * NETWORK_CLASSES, DTYPE_F32, 0,
                           stream));
    TRY(process_group_recv(group, network_dlogits(r->net), n * row_bytes / sizeof(float), DTYPE_F32,
                           0, stream));
    TRY(network_backward_from(r->net, false, NULL, NULL));
    atomic_store(&r->arrived_ns[MOMENT_REDUCE], clock_now_ns());
    return reduce_gradients(group, r->net, stream);
}

/* A replica that has failed says so, closes its groups, so that nobody waits for it, and ends. */
static void *replica_main(void *arg)
{
    replica *r = arg;
    replicas *all = r->all;
    pthread_mutex_lock(&all->lock);
    while (r->st == STATUS_OK) {
        while (all->issued == r->done)
            pthread_cond_wait(&all->changed, &all->lock);
        const task next = all->current;
        if (next.run == NULL)
            break;
        pthread_mutex_unlock(&all->lock);
        status st = next.run(r, &next);
        pthread_mutex_lock(&all->lock);
        r->done++;
        r->st = st;
        if (st != STATUS_OK)
            snprintf(r->message, sizeof r->message, "%s", status_text());
        pthread_cond_broadcast(&all->changed);
    }
    pthread_mutex_unlock(&all->lock);
    close_compute(r);
    return NULL;
}

/* The master. */

static status check(const options *opts, int n)
{
    (void)n;
    const char *name = opts->backend;
    if (strcmp(name, "local") != 0 && strcmp(name, "auto") != 0 && strcmp(name, "nccl") != 0)
        return FAIL(STATUS_INVALID,
                    "--backend=%s: is for processes; the threads of --mode=dp take "
                    "--backend=local, or nccl for GPUs",
                    name);
    return STATUS_OK;
}

/* For full batches, and for the epoch's last one. */
static void set_batches(replicas *all, const rank_context *rank)
{
    int samples = (int)loader_samples(rank->loader), full = rank->settings.batch_size;
    all->batches[0] = samples < full ? samples : full;
    all->batches[1] = samples > full ? samples % full : 0;
    for (int i = 0; i < REPLICA_GROUPS; i++)
        all->in_use[i] = all->batches[i] > 0 ? chunk_count(all->batches[i], all->n) : 0;
    if (all->in_use[1] == all->in_use[0])
        all->in_use[1] = 0;
}

/* nccl if every replica has a GPU of its own. */
static status open_groups(replicas *all)
{
    const char *asked = all->rank->opts->backend;
    int gpus = 0;
    bool on_gpus = all->rank->dev->stream != NULL, wanted = strcmp(asked, "nccl") == 0;
    if (on_gpus)
        TRY(device_list_count(all->rank->opts, &gpus));
    if (wanted && all->n > gpus)
        return FAIL(STATUS_INVALID,
                    "backend nccl needs one GPU per replica, %d replicas have %d: give "
                    "--replicas=%d or --backend=local",
                    all->n, gpus, gpus > 0 ? gpus : 1);
    bool nccl = wanted || (strcmp(asked, "auto") == 0 && on_gpus && all->n <= gpus);
    all->backend = all->n < 2 ? "none" : nccl ? "nccl" : "local";
    if (strcmp(all->backend, "nccl") == 0)
        return store_server_create("127.0.0.1", 0, &all->server);
    for (int i = 0; i < REPLICA_GROUPS; i++)
        if (all->in_use[i] > 1)
            TRY(local_hub_create(all->in_use[i], &all->hubs[i]));
    return STATUS_OK;
}

/* The lock is held. The master waits until all replicas have done their task, or one has failed.
 */
static status await_all(replicas *all)
{
    int64_t timeout_ms = all->timeout_ms * (all->ready ? 1 : PROCESS_GROUP_FIRST_TIMES);
    int64_t deadline_ns = clock_deadline_ns(timeout_ms);
    for (int i = 1; i <= all->started;) {
        const replica *r = &all->members[i];
        if (r->st != STATUS_OK)
            return FAIL(r->st, "replica %d: %s", i, r->message);
        if (r->done == all->issued) {
            i++;
            continue;
        }
        if (!clock_await(&all->changed, &all->lock, deadline_ns) && r->done < all->issued)
            return FAIL(STATUS_TIMEOUT, "waited %.1f s for replica %d", (double)timeout_ms / 1000,
                        i);
    }
    return STATUS_OK;
}

/* After all have done the one before. NULL: only waits for that. */
static status give_task(replicas *all, const task *what)
{
    pthread_mutex_lock(&all->lock);
    status st = await_all(all);
    if (st == STATUS_OK && what != NULL) {
        all->current = *what;
        all->issued++;
        pthread_cond_broadcast(&all->changed);
    }
    pthread_mutex_unlock(&all->lock);
    return st;
}

/* All replicas do it at once; the master, which is one of them, here. Of two failures, the one
 * counts that is not only about the other. */
static status do_with_all(replicas *all, status (*run)(replica *, const task *))
{
    const task what = {.run = run};
    status_kept own;
    TRY(give_task(all, &what));
    status st = run(&all->members[0], &what);
    status_keep(&own);
    status others = give_task(all, NULL);
    if (others != STATUS_OK && (st == STATUS_OK || others != STATUS_PEER))
        return others;
    status_restore(&own);
    return st;
}

static status open_members(replicas *all)
{
    for (int i = 0; i < all->n; i++) {
        replica *r = &all->members[i];
        r->all = all;
        r->index = i;
        r->where.threads = all->rank->settings.threads;
        TRY(device_list_choose(all->rank->opts, i, &r->where));
    }
    all->members[0].dev = all->rank->dev;
    for (replica *r = all->members + 1; r < all->members + all->n; r++, all->started++)
        TRY(thread_start(replica_main, r, "a replica's", &r->thread));
    TRY(give_task(all, &(task){.run = open_compute}));
    if (all->server != NULL)
        TRY(do_with_all(all, replica_load_kernels));
    return do_with_all(all, replica_join);
}

/* Also after a failure: replicas that wait for one another are called off. */
static void close_replicas(void *self)
{
    replicas *all = self;
    replica_leave(&all->members[0]); /* whoever waits for the master need not */
    pthread_mutex_lock(&all->lock);
    all->current = (task){0};
    all->issued++;
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->lock);
    for (int i = 1; i <= all->started; i++)
        pthread_join(all->members[i].thread, NULL);
    for (int i = 0; i < REPLICA_GROUPS; i++)
        local_hub_destroy(all->hubs[i]);
    store_server_destroy(all->server);
    device *dev = all->rank->dev;
    dev->ops->free(dev, all->logits);
    dev->ops->free(dev, all->dlogits);
    pthread_cond_destroy(&all->changed);
    pthread_mutex_destroy(&all->lock);
}

/* Starts the threads, and returns when all have what they need. */
static status open_replicas(rank_context *rank, void *self)
{
    const rank_settings *settings = &rank->settings;
    replicas *all = self;
    pthread_cond_init(&all->changed, NULL);
    pthread_mutex_init(&all->lock, NULL);
    all->rank = rank;
    all->n = settings->replicas;
    all->chunk = chunk_size(settings->batch_size, all->n);
    all->timeout_ms = rank->opts->timeout * 1000;
    all->network = rank_context_network_options(rank);
    all->network.max_batch = all->chunk;
    set_batches(all, rank);
    TRY(open_groups(all));
    size_t bytes = sizeof(float) * (size_t)settings->batch_size * NETWORK_CLASSES;
    TRY(rank->dev->ops->alloc(rank->dev, bytes, (void **)&all->logits));
    TRY(rank->dev->ops->alloc(rank->dev, bytes, (void **)&all->dlogits));
    TRY(open_members(all));
    all->ready = true;
    return STATUS_OK;
}

static const char *backend(void *self)
{
    return ((const replicas *)self)->backend;
}

static device_use use(void *self, int index)
{
    const replica *r = &((const replicas *)self)->members[index];
    device_use sum = {.memory_peak = r->dev->memory_peak};
    for (int group = 0; group < REPLICA_GROUPS; group++) {
        uint64_t sent = 0, received = 0;
        if (r->groups[group] != NULL)
            process_group_traffic(r->groups[group], &sent, &received);
        sum.sent_bytes += (int64_t)sent;
        sum.received_bytes += (int64_t)received;
    }
    return sum;
}

static void plan_step(void *self, const step_plan *plan)
{
    replicas *all = self;
    all->next = (task){.run = work_on_chunk, .begins_step = true, .plan = *plan};
    all->next.plan.loss_sum = NULL; /* memory of the master's device */
}

/* One batch on its way. */
typedef struct batch_run {
    replicas *all;
    rank_context *rank; /* the master */
    const step_batch *b;
    process_group *group; /* NULL: the master alone */
    int members;
} batch_run;

static size_t rows_of(const batch_run *run, int member)
{
    return (size_t)chunk_rows(run->b->in.n, run->all->n, member);
}

/* Where that replica's rows of the whole batch's array begin. */
static void *row_of(const batch_run *run, int member, const void *array, size_t row_bytes)
{
    size_t rows_before = (size_t)member * (size_t)chunk_size(run->b->in.n, run->all->n);
    return (unsigned char *)array + rows_before * row_bytes;
}

static status send_rows(const batch_run *run, int member, const void *array, size_t row_bytes)
{
    return process_group_send(run->group, row_of(run, member, array, row_bytes),
                              rows_of(run, member) * row_bytes / sizeof(float), DTYPE_F32, member,
                              run->rank->dev->stream);
}

/* Of the time since start_ns, what passed before replicas `first` to `last` were ready for it, was
 * waiting. */
static void note_waiting(const batch_run *run, int first, int last, moment phase, int64_t start_ns)
{
    int64_t longest = 0, now_ns = clock_now_ns();
    for (int i = first; i <= last; i++) {
        int64_t ready_ns = atomic_load(&run->all->members[i].arrived_ns[phase]);
        int64_t ns = (ready_ns < now_ns ? ready_ns : now_ns) - start_ns;
        longest = ns > longest ? ns : longest;
    }
    timeline_waited(&run->rank->timeline, phase, longest);
}

static status send_parameters_and_inputs(const batch_run *run)
{
    rank_context *rank = run->rank;
    const batch *in = &run->b->in;
    run->all->next.n = in->n;
    TRY(timeline_enter(&rank->timeline, MOMENT_BROADCAST));
    int64_t start_ns = clock_now_ns();
    TRY(give_task(run->all, &run->all->next));
    run->all->next.begins_step = false;
    if (run->group == NULL)
        return STATUS_OK;
    TRY(process_group_broadcast(run->group, network_parameters(rank->net), network_count(rank->net),
                                DTYPE_F32, 0, rank->dev->stream));
    note_waiting(run, 1, run->members - 1, MOMENT_BROADCAST, start_ns);
    TRY(timeline_enter(&rank->timeline, MOMENT_SCATTER));
    for (int i = 1; i < run->members; i++) {
        TRY(send_rows(run, i, in->x, DATASET_PIXELS * device_element_bytes(rank->dev)));
        TRY(send_rows(run, i, in->samples, sizeof *in->samples));
    }
    return STATUS_OK;
}

static status gather_logits(const batch_run *run)
{
    device *dev = run->rank->dev;
    float *logits = run->all->logits;
    size_t row_bytes = sizeof *logits * NETWORK_CLASSES;
    TRY(timeline_enter(&run->rank->timeline, MOMENT_GATHER));
    TRY(dev->ops->copy(dev, logits, network_logits(run->rank->net), rows_of(run, 0) * row_bytes));
    for (int i = 1; i < run->members; i++) {
        int64_t start_ns = clock_now_ns();
        TRY(process_group_recv(run->group, row_of(run, i, logits, row_bytes),
                               rows_of(run, i) * NETWORK_CLASSES, DTYPE_F32, i, dev->stream));
        note_waiting(run, i, i, MOMENT_GATHER, start_ns);
    }
    return STATUS_OK;
}

static status scatter_dlogits(const batch_run *run)
{
    device *dev = run->rank->dev;
    const unsigned char *dlogits = run->all->dlogits;
    size_t row_bytes = network_dlogits_row_bytes(run->rank->net);
    TRY(timeline_enter(&run->rank->timeline, MOMENT_GATHER));
    TRY(dev->ops->copy(dev, network_dlogits(run->rank->net), dlogits, rows_of(run, 0) * row_bytes));
    for (int i = 1; i < run->members; i++)
        TRY(send_rows(run, i, dlogits, row_bytes));
    return STATUS_OK;
}

/* The batch's gradients, added up over the replicas, into the master's. */
static status forward_backward(rank_context *rank, void *self, const step_batch *b)
{
    replicas *all = self;
    int group = group_of(all, b->in.n);
    const batch_run run = {all, rank, b, all->members[0].groups[group], all->in_use[group]};
    batch own = b->in;
    own.n = (int)rows_of(&run, 0);
    TRY(send_parameters_and_inputs(&run));
    TRY(timeline_enter(&rank->timeline, MOMENT_FORWARD));
    TRY(network_forward(rank->net, &own, NETWORK_TRAIN));
    TRY(gather_logits(&run));
    TRY(timeline_enter(&rank->timeline, MOMENT_FORWARD));
    TRY(network_loss(rank->net, all->logits, &b->in, all->dlogits));
    TRY(scatter_dlogits(&run));
    TRY(timeline_enter(&rank->timeline, MOMENT_BACKWARD));
    TRY(network_backward_from(rank->net, !b->first, NULL, NULL));
    TRY(timeline_enter(&rank->timeline, MOMENT_REDUCE));
    int64_t start_ns = clock_now_ns();
    if (run.group == NULL)
        return STATUS_OK;
    TRY(reduce_gradients(run.group, rank->net, rank->dev->stream));
    note_waiting(&run, 1, run.members - 1, MOMENT_REDUCE, start_ns);
    return STATUS_OK;
}

const strategy_ops strategy_dp = {
    .facts = {.name = "dp",
              .title = "mode dp, replicas",
              .unit = "replica",
              .is_one_process = true,
              .has_replicas = true,
              .is_central = true,
              .has_peer = true,
              .advice = "take it only if all devices must belong to one process: ddp has no master "
                        "through which all goes"},
    .check = check,
    .self_bytes = sizeof(replicas),
    .open = open_replicas,
    .close = close_replicas,
    .plan_step = plan_step,
    .forward_backward = forward_backward,
    .explain = explain,
    .backend = backend,
    .use = use,
};
