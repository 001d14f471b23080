/* DataParallel: replicas are threads of this process, each with a device and a network of its own.
 * The rank's own thread is the master and replica 0: its network, with the rank's device, has the
 * parameters that count.
 *
 * A batch is cut as torch.chunk cuts it, so the last chunk may be smaller, and there may be fewer
 * chunks than replicas: the replicas that are left over then do nothing at all. Every transfer is a
 * copy from one replica's memory to another's, through a process group among the threads.
 */
#include "app/common/device_list.h"
#include "app/train/replica.h"
#include "app/train/strategy_ops.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/thread.h"
#include "dist/chunk.h"
#include "kernels/ops.h"

#include <stdlib.h>
#include <string.h>

enum { CPU_REPLICAS = 2 };

static status check(const options *opts, int world_size)
{
    const char *name = opts->backend;
    if (world_size > 1)
        return FAIL(STATUS_INVALID,
                    "--mode=dp is one process with a thread per replica, this job has %d ranks: "
                    "give --replicas=%d (CPU) or --devices=0,1 (GPUs) instead of what asks for "
                    "ranks (--nproc-per-node, --nnodes, --world-size; RANK and WORLD_SIZE)",
                    world_size, world_size);
    if (strcmp(name, "local") != 0 && strcmp(name, "auto") != 0 && strcmp(name, "nccl") != 0)
        return FAIL(STATUS_INVALID,
                    "--backend=%s: is for processes; the threads of --mode=dp take "
                    "--backend=local, or nccl for GPUs",
                    name);
    return STATUS_OK;
}

/* --replicas, else a replica per GPU, else 2 on the CPU. */
static status count_replicas(const options *opts, int *out)
{
    int gpus = 0;
    if (opts->replicas < 0)
        TRY(device_list_count(opts, &gpus));
    int n = opts->replicas > 0 ? (int)opts->replicas : gpus > 0 ? gpus : CPU_REPLICAS;
    if (n > REPLICAS_MAX)
        return FAIL(STATUS_INVALID, "%d replicas: at most %d", n, (int)REPLICAS_MAX);
    *out = n;
    return STATUS_OK;
}

/* For batches of `samples`. */
static void add_group(replicas *all, int samples)
{
    int n = chunk_count(samples, all->n);
    all->batches[all->batches[0] > 0 ? 1 : 0] = samples;
    for (int i = 0; i < all->n_groups; i++)
        if (all->groups[i].n == n)
            return;
    all->groups[all->n_groups++].n = n;
}

/* For full batches, and for the epoch's last one. */
static void add_groups(replicas *all, const rank_context *rank)
{
    uint32_t samples = loader_samples(rank->loader),
             batch_size = (uint32_t)rank->settings.batch_size;
    if (samples >= batch_size)
        add_group(all, (int)batch_size);
    if (samples % batch_size > 0)
        add_group(all, (int)(samples % batch_size));
}

static int group_of(const replicas *all, int n)
{
    int in_use = chunk_count(n, all->n);
    for (int i = 0; i < all->n_groups; i++)
        if (all->groups[i].n == in_use)
            return i;
    ASSERT(false);
    return 0;
}

/* nccl if every replica has a GPU of its own. */
static status choose_backend(replicas *all)
{
    const char *asked = all->rank->opts->backend;
    int gpus = 0;
    bool on_gpus = all->rank->dev->stream != NULL;
    if (on_gpus)
        TRY(device_list_count(all->rank->opts, &gpus));
    if (strcmp(asked, "nccl") == 0 && all->n > gpus)
        return FAIL(STATUS_INVALID,
                    "backend nccl needs one GPU per replica, %d replicas have %d: give "
                    "--replicas=%d or --backend=local",
                    all->n, gpus, gpus > 0 ? gpus : 1);
    bool nccl =
        strcmp(asked, "nccl") == 0 || (strcmp(asked, "auto") == 0 && on_gpus && all->n <= gpus);
    strcpy(all->backend, nccl ? "nccl" : "local");
    return STATUS_OK;
}

static status open_groups(replicas *all)
{
    TRY(choose_backend(all));
    if (all->n > 1 && strcmp(all->backend, "nccl") == 0)
        return store_server_create("127.0.0.1", 0, &all->server);
    for (int i = 0; i < all->n_groups; i++)
        TRY(local_hub_create(all->groups[i].n, &all->groups[i].hub));
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

/* After all have done the one before. */
static status give_task(replicas *all, const task *what)
{
    pthread_mutex_lock(&all->lock);
    status st = await_all(all);
    if (st == STATUS_OK) {
        all->current = *what;
        all->issued++;
        pthread_cond_broadcast(&all->changed);
    }
    pthread_mutex_unlock(&all->lock);
    return st;
}

static status await_task(replicas *all)
{
    pthread_mutex_lock(&all->lock);
    status st = await_all(all);
    pthread_mutex_unlock(&all->lock);
    return st;
}

static status start_threads(replicas *all)
{
    for (int i = 1; i < all->n; i++) {
        replica *member = &all->members[i];
        TRY(thread_start(replica_main, member, "a replica's", &member->thread));
        all->started++;
    }
    return STATUS_OK;
}

/* All replicas do it at once; the master, which is one of them, here. Of two failures, the one
 * counts that is not only about the other. */
static status do_with_all(replicas *all, task_kind kind, status (*fn)(replica *))
{
    task what = {.kind = kind};
    status_kept own;
    TRY(give_task(all, &what));
    status st = fn(&all->members[0]);
    status_keep(&own);
    status others = await_task(all);
    if (others != STATUS_OK && (st == STATUS_OK || others != STATUS_PEER))
        return others;
    status_restore(&own);
    return st;
}

static status open_members(replicas *all)
{
    task open = {.kind = TASK_OPEN};
    for (int i = 0; i < all->n; i++) {
        replica *r = &all->members[i];
        r->all = all;
        r->index = i;
        r->where.threads = all->rank->settings.threads;
        TRY(device_list_choose(all->rank->opts, i, &r->where));
    }
    all->members[0].dev = all->rank->dev;
    TRY(start_threads(all));
    TRY(give_task(all, &open));
    if (all->n > 1 && strcmp(all->backend, "nccl") == 0)
        TRY(do_with_all(all, TASK_LOAD, replica_load_kernels));
    return do_with_all(all, TASK_JOIN, replica_join);
}

static status open_gathered(replicas *all)
{
    device *dev = all->rank->dev;
    size_t bytes = sizeof(float) * (size_t)all->rank->settings.batch_size * NETWORK_CLASSES;
    TRY(dev->ops->alloc(dev, bytes, (void **)&all->logits));
    return dev->ops->alloc(dev, bytes, (void **)&all->dlogits);
}

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
    all->rank->stuck(all->rank, explain(all, st));
}

/* Also after a failure: replicas that wait for one another are called off. */
static void close_replicas(void *self)
{
    replicas *all = self;
    if (all == NULL)
        return;
    replica_leave(&all->members[0]); /* whoever waits for the master need not */
    pthread_mutex_lock(&all->lock);
    all->current = (task){.kind = TASK_END};
    all->issued++;
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->lock);
    for (int i = 1; i <= all->started; i++)
        pthread_join(all->members[i].thread, NULL);
    for (int i = 0; i < all->n_groups; i++)
        local_hub_destroy(all->groups[i].hub);
    store_server_destroy(all->server);
    device *dev = all->rank->dev;
    dev->ops->free(dev, all->logits);
    dev->ops->free(dev, all->dlogits);
    pthread_cond_destroy(&all->changed);
    pthread_mutex_destroy(&all->lock);
    free(all);
}

/* Starts the threads, and returns when all have what they need. */
static status open_replicas(rank_context *rank, void **self)
{
    const rank_settings *settings = &rank->settings;
    replicas *all = NULL;
    TRY(memory_alloc(sizeof *all, (void **)&all));
    pthread_cond_init(&all->changed, NULL);
    pthread_mutex_init(&all->lock, NULL);
    all->rank = rank;
    all->stuck = end_stuck;
    all->n = settings->replicas;
    all->chunk = chunk_size(settings->batch_size, all->n);
    all->timeout_ms = rank->opts->timeout * 1000;
    all->network = (network_options){
        .kind = settings->model, .max_batch = all->chunk, .seed = (uint64_t)rank->opts->seed};
    add_groups(all, rank);
    status st = open_groups(all);
    if (st == STATUS_OK)
        st = open_gathered(all);
    if (st == STATUS_OK)
        st = open_members(all);
    if (st != STATUS_OK) {
        close_replicas(all);
        return st;
    }
    all->ready = true;
    *self = all;
    return STATUS_OK;
}

static const char *backend(const rank_context *rank, void *self)
{
    const replicas *all = self;
    (void)rank;
    return all->n > 1 ? all->backend : "none";
}

static device_use use(const rank_context *rank, void *self, int index)
{
    const replicas *all = self;
    const replica *r = &all->members[index];
    device_use sum = {.memory_peak = r->dev->memory_peak};
    (void)rank;
    for (int group = 0; group < all->n_groups; group++) {
        uint64_t sent = 0, received = 0;
        if (r->groups[group] != NULL)
            process_group_traffic(r->groups[group], &sent, &received);
        sum.sent_bytes += (int64_t)sent;
        sum.received_bytes += (int64_t)received;
    }
    return sum;
}

static void begin_step(rank_context *rank, void *self, const step_plan *plan)
{
    replicas *all = self;
    (void)rank;
    all->plan = *plan;
    all->plan.loss_sum = NULL; /* memory of the master's device */
    all->begins_step = true;
}

/* One batch on its way. */
typedef struct batch_run {
    replicas *all;
    timeline *timeline;
    network *net; /* the master's */
    const step_batch *b;
    process_group *group; /* NULL: the master alone */
    int members;
    device *dev;
} batch_run;

static size_t row_of(const batch_run *run, int member)
{
    return (size_t)member * (size_t)chunk_size(run->b->in.n, run->all->n);
}

static size_t rows_of(const batch_run *run, int member)
{
    return (size_t)chunk_rows(run->b->in.n, run->all->n, member);
}

/* Of the time since start_ns, what passed before replica `member` was ready, was waiting. */
static int64_t waited_for(const batch_run *run, int member, replica_point point, int64_t start_ns)
{
    int64_t ready_ns = atomic_load(&run->all->members[member].arrived_ns[point]);
    int64_t now_ns = clock_now_ns();
    int64_t until_ns = ready_ns < now_ns ? ready_ns : now_ns;
    return until_ns > start_ns ? until_ns - start_ns : 0;
}

static void note_waiting_for_all(const batch_run *run, replica_point point, moment phase,
                                 int64_t start_ns)
{
    int64_t longest = 0;
    for (int i = 1; i < run->members; i++) {
        int64_t ns = waited_for(run, i, point, start_ns);
        longest = ns > longest ? ns : longest;
    }
    timeline_waited(run->timeline, phase, longest);
}

static status send_inputs(const batch_run *run)
{
    const batch *in = &run->b->in;
    const unsigned char *x = (const unsigned char *)in->x;
    size_t image_bytes = DATASET_PIXELS * device_element_bytes(run->dev);
    TRY(timeline_enter(run->timeline, MOMENT_SCATTER));
    for (int i = 1; i < run->members; i++) {
        size_t row = row_of(run, i), rows = rows_of(run, i);
        TRY(process_group_send(run->group, x + row * image_bytes,
                               rows * image_bytes / sizeof(float), DTYPE_F32, i, run->dev->stream));
        TRY(process_group_send(run->group, in->samples + row, rows, DTYPE_F32, i,
                               run->dev->stream));
    }
    return STATUS_OK;
}

static status send_parameters_and_inputs(const batch_run *run)
{
    task next = {.kind = TASK_WORK,
                 .begins_step = run->all->begins_step,
                 .plan = run->all->plan,
                 .n = run->b->in.n,
                 .group = group_of(run->all, run->b->in.n)};
    TRY(timeline_enter(run->timeline, MOMENT_BROADCAST));
    int64_t start_ns = clock_now_ns();
    TRY(give_task(run->all, &next));
    run->all->begins_step = false;
    if (run->group == NULL)
        return STATUS_OK;
    TRY(process_group_broadcast(run->group, network_parameters(run->net), network_count(run->net),
                                DTYPE_F32, 0, run->dev->stream));
    note_waiting_for_all(run, AT_PARAMETERS, MOMENT_BROADCAST, start_ns);
    return send_inputs(run);
}

static status gather_logits(const batch_run *run)
{
    float *logits = run->all->logits;
    TRY(timeline_enter(run->timeline, MOMENT_GATHER));
    TRY(run->dev->ops->copy(run->dev, logits, network_logits(run->net),
                            sizeof *logits * rows_of(run, 0) * NETWORK_CLASSES));
    for (int i = 1; i < run->members; i++) {
        int64_t start_ns = clock_now_ns();
        TRY(process_group_recv(run->group, logits + row_of(run, i) * NETWORK_CLASSES,
                               rows_of(run, i) * NETWORK_CLASSES, DTYPE_F32, i, run->dev->stream));
        timeline_waited(run->timeline, MOMENT_GATHER, waited_for(run, i, AT_LOGITS, start_ns));
    }
    return STATUS_OK;
}

static status scatter_dlogits(const batch_run *run)
{
    const unsigned char *dlogits = run->all->dlogits;
    size_t row_bytes = network_dlogits_row_bytes(run->net);
    TRY(timeline_enter(run->timeline, MOMENT_GATHER));
    TRY(run->dev->ops->copy(run->dev, network_dlogits(run->net), dlogits,
                            rows_of(run, 0) * row_bytes));
    for (int i = 1; i < run->members; i++)
        TRY(process_group_send(run->group, dlogits + row_of(run, i) * row_bytes,
                               rows_of(run, i) * row_bytes / sizeof(float), DTYPE_F32, i,
                               run->dev->stream));
    return STATUS_OK;
}

static status add_gradients(const batch_run *run)
{
    TRY(timeline_enter(run->timeline, MOMENT_REDUCE));
    int64_t start_ns = clock_now_ns();
    if (run->group == NULL)
        return STATUS_OK;
    float *gradients = network_gradients(run->net);
    TRY(process_group_reduce(
        run->group,
        &(reduction){gradients, gradients, network_count(run->net), DTYPE_F32, REDUCE_SUM, 1}, 0,
        run->dev->stream));
    note_waiting_for_all(run, AT_GRADIENTS, MOMENT_REDUCE, start_ns);
    return STATUS_OK;
}

static status run_batch(const batch_run *run)
{
    batch own = run->b->in;
    own.n = (int)rows_of(run, 0);
    TRY(send_parameters_and_inputs(run));
    TRY(timeline_enter(run->timeline, MOMENT_FORWARD));
    TRY(network_forward(run->net, &own, NETWORK_TRAIN));
    TRY(gather_logits(run));
    TRY(timeline_enter(run->timeline, MOMENT_FORWARD));
    TRY(network_loss(run->net, run->all->logits, &run->b->in, run->all->dlogits));
    TRY(scatter_dlogits(run));
    TRY(timeline_enter(run->timeline, MOMENT_BACKWARD));
    TRY(network_backward_from(run->net, !run->b->first, NULL, NULL));
    return add_gradients(run);
}

/* The batch's gradients, added up over the replicas, into the master's. */
static status forward_backward(rank_context *rank, void *self, const step_batch *b)
{
    replicas *all = self;
    int group = group_of(all, b->in.n);
    batch_run run = {.all = all,
                     .timeline = &rank->timeline,
                     .net = rank->net,
                     .b = b,
                     .group = all->members[0].groups[group],
                     .members = all->groups[group].n,
                     .dev = rank->dev};
    return run_batch(&run);
}

const strategy_ops strategy_dp = {
    .facts = {.name = "dp",
              .title = "mode dp, replicas",
              .unit = "replica",
              .group_backend = "auto", /* of one rank; --backend is the replicas' */
              .is_one_process = true,
              .is_central = true},
    .check = check,
    .replicas = count_replicas,
    .open = open_replicas,
    .close = close_replicas,
    .begin_step = begin_step,
    .forward_backward = forward_backward,
    .optimizer_step = strategy_ranks_optimizer_step,
    .explain = explain,
    .backend = backend,
    .use = use,
};
