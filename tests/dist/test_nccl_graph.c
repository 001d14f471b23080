/* The nccl backend in CUDA graphs, as training replays it; and NCCL with one rank, for machines
 * with one GPU. */
#include "base/clock.h"
#include "dist/collective/process_group_ops.h"
#include "dist/store/store.h"
#include "kernels/ops.h"
#include "tests/dist/nccl_ranks.h"
#include "tests/support/collective_data.h"
#include "tests/support/facts.h"

/* A graph of two collectives, as a step has two buckets. */
typedef struct recording {
    process_group *group;
    device *dev;
    float *in, *data; /* (2, COUNT) */
    device_graph *graph;
} recording;

enum { COUNT = 1003, REPLAYS = 6 };

/* data = the mean over ranks of in. */
static status enqueue_means(const recording *r)
{
    float scale = 1.0f / (float)process_group_world_size(r->group);
    work *works[2];
    TRY(r->dev->ops->copy(r->dev, r->data, r->in, 2 * COUNT * sizeof *r->in));
    for (int i = 0; i < 2; i++) {
        float *bucket = r->data + i * COUNT;
        TRY(process_group_launch(r->group,
                                 &(collective){.kind = COLLECTIVE_ALL_REDUCE,
                                               .in = bucket,
                                               .out = bucket,
                                               .count = COUNT,
                                               .prescale = scale},
                                 r->dev->stream, &works[i]));
    }
    TRY(process_group_wait(r->group, works[0], NULL));
    return process_group_wait(r->group, works[1], NULL);
}

static status record(recording *r)
{
    const accelerator_ops *ops = r->dev->ops->accelerator;
    TRY(r->dev->ops->alloc(r->dev, 2 * COUNT * sizeof *r->in, (void **)&r->in));
    TRY(r->dev->ops->alloc(r->dev, 2 * COUNT * sizeof *r->in, (void **)&r->data));
    TRY(enqueue_means(r)); /* eagerly: NCCL connects the ranks */
    TRY(ops->capture_begin(r->dev));
    status st = enqueue_means(r);
    status ended = ops->capture_end(r->dev, st == STATUS_OK ? &r->graph : NULL);
    return st != STATUS_OK ? st : ended;
}

/* Every replay with other numbers, and eager collectives in between. */
static status replay(const recording *r, int rank, int world_size, int round)
{
    float values[2 * COUNT], total = (float)(rank + 1);
    for (int i = 0; i < 2 * COUNT; i++)
        values[i] = (float)((i % 50 + round) * world_size * (rank + 1));
    TRY(r->dev->ops->upload(r->dev, r->in, values, sizeof values));
    TRY(r->dev->ops->accelerator->graph_launch(r->dev, r->graph));
    if (round % 2 == 0)
        TRY(process_group_all_reduce(r->group, &total, 1, DTYPE_F32, REDUCE_SUM, NULL));
    if (round % 3 == 0)
        TRY(process_group_barrier(r->group));
    TRY(r->dev->ops->download(r->dev, values, r->data, sizeof values));
    float ranks = (float)(world_size * (world_size + 1) / 2);
    if (round % 2 == 0 && (total < ranks || total > ranks))
        return FAIL(STATUS_INVALID, "the eager sum is %g, want %g", (double)total, (double)ranks);
    for (int i = 0; i < 2 * COUNT; i++) {
        float want = (float)(i % 50 + round) * ranks;
        if (values[i] < want || values[i] > want)
            return FAIL(STATUS_INVALID, "replay %d: [%d] is %g, want %g", round, i,
                        (double)values[i], (double)want);
    }
    return STATUS_OK;
}

static status record_and_replay(process_group *group, int rank, int world_size, void *arg)
{
    (void)arg;
    recording r = {.group = group, .dev = ranks_device()};
    if (!process_group_can_be_captured(group))
        return FAIL(STATUS_INVALID, "nccl says it cannot be captured");
    status st = record(&r);
    for (int round = 0; round < REPLAYS && st == STATUS_OK; round++)
        st = replay(&r, rank, world_size, round);
    r.dev->ops->accelerator->graph_destroy(r.graph);
    r.dev->ops->free(r.dev, r.in);
    r.dev->ops->free(r.dev, r.data);
    return st;
}

START_TEST(graphs_are_replayed)
{
    nccl_run(NCCL_WORLDS[_i], record_and_replay, NULL);
}
END_TEST

/* Host memory waits, which a recording cannot; the recording ends as a failure. */
static status host_memory_in_a_recording(process_group *group, int rank, int world_size, void *arg)
{
    (void)rank;
    (void)world_size;
    (void)arg;
    device *dev = ranks_device();
    TRY(dev->ops->accelerator->capture_begin(dev));
    status st = process_group_barrier(group);
    bool said = facts_in_a_line(status_text(), "recorded", NULL);
    (void)dev->ops->accelerator->capture_end(dev, NULL);
    return st == STATUS_INVALID && said ? STATUS_OK
                                        : FAIL(STATUS_IO, "%s: %s", status_name(st), status_text());
}

START_TEST(host_memory_is_refused_in_a_recording)
{
    nccl_run(2, host_memory_in_a_recording, NULL);
}
END_TEST

/* Nothing but NCCL: the table on its own, with one rank, which a machine with one GPU can run. */
typedef struct alone {
    device *dev;
    void *self;
    unsigned char *in, *out;
    dtype type;
    size_t in_at, out_at, count; /* what of both a collective works on */
} alone;

static status enqueue_alone(alone *a, collective_kind kind, float prescale, uint64_t seq)
{
    const process_group_ops *ops = NULL;
    const module *cuda = NULL;
    int64_t done_ns = 0;
    void *w = NULL;
    TRY(module_open("cuda", &cuda));
    ops = cuda->process_group;
    collective c = {.kind = kind,
                    .type = a->type,
                    .in = a->in + a->in_at * dtype_size(a->type),
                    .out = a->out + a->out_at * dtype_size(a->type),
                    .count = a->count,
                    .prescale = prescale,
                    .seq = seq};
    TRY(ops->launch(a->self, &c, a->dev->stream, &w));
    return ops->wait(a->self, w, clock_deadline_ns(10000), &done_ns);
}

static status expect_alone(const alone *a, float factor, float offset)
{
    float values[COUNT];
    TRY(a->dev->ops->download(a->dev, values, a->out, sizeof values));
    for (int i = 0; i < COUNT; i++) {
        float want = factor * ((float)i + offset);
        if (values[i] < want || values[i] > want)
            return FAIL(STATUS_INVALID, "[%d] is %g, want %g", i, (double)values[i], (double)want);
    }
    return STATUS_OK;
}

static status fill_alone(const alone *a, float offset)
{
    float values[COUNT], none[COUNT] = {0};
    for (int i = 0; i < COUNT; i++)
        values[i] = (float)i + offset;
    TRY(a->dev->ops->upload(a->dev, a->out, none, sizeof none));
    return a->dev->ops->upload(a->dev, a->in, values, sizeof values);
}

/* Scaled in packs of 16 bytes, but for what lies beside them: wherever the arrays begin and end,
 * each element gets its product, and none besides. */
static status scale_anywhere(alone *a, dtype type)
{
    static const size_t counts[] = {1, 2, 3, 4, 7, 64, COUNT - 5};
    enum { N_COUNTS = sizeof counts / sizeof counts[0], PLACES = 5 };
    double from[COUNT], to[COUNT];
    a->type = type;
    for (int i = 0; i < N_COUNTS * PLACES * PLACES; i++) {
        a->count = counts[i % N_COUNTS];
        a->in_at = (size_t)(i / N_COUNTS % PLACES);
        a->out_at = (size_t)(i / N_COUNTS / PLACES);
        for (size_t k = 0; k < COUNT; k++) {
            collective_data_put(from, type, k, (int64_t)k % 50 * 2);
            collective_data_put(to, type, k, 77);
        }
        TRY(a->dev->ops->upload(a->dev, a->in, from, sizeof from));
        TRY(a->dev->ops->upload(a->dev, a->out, to, sizeof to));
        TRY(enqueue_alone(a, COLLECTIVE_ALL_REDUCE, 0.5f, (uint64_t)i + 1));
        TRY(a->dev->ops->download(a->dev, to, a->out, sizeof to));
        for (size_t k = 0; k < COUNT; k++) {
            bool inside = k >= a->out_at && k < a->out_at + a->count;
            int64_t want = inside ? (int64_t)(k - a->out_at + a->in_at) % 50 : 77;
            TRY(collective_data_expect(to, type, k, want, "scaled"));
        }
    }
    return STATUS_OK;
}

static status replay_alone(alone *a)
{
    const accelerator_ops *ops = a->dev->ops->accelerator;
    device_graph *graph = NULL;
    TRY(ops->capture_begin(a->dev));
    status st = enqueue_alone(a, COLLECTIVE_ALL_REDUCE, 0.5f, 9);
    status ended = ops->capture_end(a->dev, st == STATUS_OK ? &graph : NULL);
    if (st == STATUS_OK)
        st = ended;
    for (int round = 0; round < REPLAYS && st == STATUS_OK; round++) {
        st = fill_alone(a, (float)round);
        if (st == STATUS_OK)
            st = ops->graph_launch(a->dev, graph);
        if (st == STATUS_OK)
            st = expect_alone(a, 0.5f, (float)round);
    }
    ops->graph_destroy(graph);
    return st;
}

static status use_alone(alone *a)
{
    static const collective_kind kinds[] = {
        COLLECTIVE_ALL_REDUCE,     COLLECTIVE_BROADCAST, COLLECTIVE_REDUCE,  COLLECTIVE_ALL_GATHER,
        COLLECTIVE_REDUCE_SCATTER, COLLECTIVE_GATHER,    COLLECTIVE_SCATTER, COLLECTIVE_ALL_TO_ALL};
    size_t bytes = COUNT * sizeof(double);
    TRY(a->dev->ops->alloc(a->dev, bytes, (void **)&a->in));
    TRY(a->dev->ops->alloc(a->dev, bytes, (void **)&a->out));
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        float prescale = kinds[i] == COLLECTIVE_ALL_REDUCE ? 0.25f : 1;
        TRY(fill_alone(a, (float)i));
        TRY(enqueue_alone(a, kinds[i], prescale, i + 1));
        TRY(expect_alone(a, prescale, (float)i));
    }
    TRY(replay_alone(a));
    TRY(scale_anywhere(a, DTYPE_F64));
    TRY(scale_anywhere(a, DTYPE_BF16));
    TRY(scale_anywhere(a, DTYPE_F16));
    return scale_anywhere(a, DTYPE_F32);
}

static status nccl_alone(process_group *group, int rank, int world_size, void *arg)
{
    (void)group;
    const module *cuda = NULL;
    const bool *aborts = arg;
    uint32_t aborted = 0;
    store_server *server = NULL;
    alone a = {.dev = ranks_device(), .count = COUNT};
    TRY(module_open("cuda", &cuda));
    TRY(store_server_create("127.0.0.1", 0, &server));
    store_options where = {.host = "127.0.0.1",
                           .port = store_server_port(server),
                           .prefix = "alone/",
                           .timeout_ms = 5000,
                           .connect_timeout_ms = 5000,
                           .describe = ""};
    process_group_options options = {.backend = "nccl",
                                     .rank = rank,
                                     .world_size = world_size,
                                     .timeout_ms = 30000,
                                     .device = a.dev,
                                     .aborted = &aborted};
    group_setup setup = {.options = &options, .prefix = "pg/1/", .one_host = true};
    status st = store_create(&where, &options.store);
    if (st == STATUS_OK)
        st = cuda->process_group->create(&setup, &a.self);
    if (st == STATUS_OK && !*aborts)
        st = use_alone(&a);
    if (st == STATUS_OK)
        st = cuda->process_group->check(a.self);
    if (st == STATUS_OK && *aborts)
        cuda->process_group->abort(a.self, "a test");
    if (a.self != NULL)
        cuda->process_group->destroy(a.self);
    if (st == STATUS_OK && (aborted != 0) != *aborts)
        st = FAIL(STATUS_INVALID, "aborted is %u", aborted);
    a.dev->ops->free(a.dev, a.in);
    a.dev->ops->free(a.dev, a.out);
    store_destroy(options.store);
    store_server_destroy(server);
    return st;
}

START_TEST(nccl_of_one_rank)
{
    bool aborts = _i == 1;
    nccl_run(1, nccl_alone, &aborts);
}
END_TEST

int main(void)
{
    if (!nccl_choose())
        return TEST_SKIPPED;
    Suite *suite = suite_create("nccl_graph");
    TCase *core = suite_case(suite, "core", 120);
    tcase_add_loop_test(core, nccl_of_one_rank, 0, 2);
    nccl_add_worlds(core, graphs_are_replayed, NCCL_N_WORLDS, 1);
    suite_add(core, host_memory_is_refused_in_a_recording, 0, nccl_lacks_gpus(2));
    return suite_run(suite);
}
