/* The nccl backend: batches of sends and receives, in which everybody sends first; rows that change
 * places; and what is not to be had. */
#include "kernels/ops.h"
#include "tests/dist/nccl_ranks.h"
#include "tests/support/collective_data.h"
#include "tests/support/facts.h"

/* Larger than what NCCL sends before the receiver comes; and one behind it that must not overtake.
 */
enum { LONG = 300001, SHORT = 5, PAIR = LONG + SHORT, ROUNDS = 3 };

static float element(int from, int to, int round, int i)
{
    return (float)(from * 1000 + to * 100 + round * 10 + i % 7);
}

/* Row r of `in` goes to rank r in two messages, and row r of `out` comes from there. */
typedef struct exchange {
    process_group *group;
    int rank, world_size;
    device_stream *stream;
    float *in, *out; /* (world_size, PAIR), as the group gets them */
} exchange;

static int add_pair(collective *list, collective_kind kind, int peer, float *row)
{
    list[0] = (collective){.kind = kind, .in = row, .out = row, .count = LONG, .root = peer};
    list[1] = list[0];
    list[1].in = list[1].out = row + LONG;
    list[1].count = SHORT;
    return 2;
}

/* All sends first, up; then all receives, down. */
static status exchange_all(const exchange *e)
{
    collective list[4 * NCCL_MAX_WORLD] = {0};
    work *works[4 * NCCL_MAX_WORLD];
    int n = 0;
    for (int peer = 0; peer < e->world_size; peer++)
        if (peer != e->rank)
            n += add_pair(list + n, COLLECTIVE_SEND, peer, e->in + peer * PAIR);
    for (int peer = e->world_size - 1; peer >= 0; peer--)
        if (peer != e->rank)
            n += add_pair(list + n, COLLECTIVE_RECV, peer, e->out + peer * PAIR);
    TRY(process_group_batch_isend_irecv(e->group, list, n, e->stream, works));
    for (int i = 0; i < n; i++)
        TRY(process_group_wait(e->group, works[i], NULL));
    return STATUS_OK;
}

static void fill(const exchange *e, float *rows, int round)
{
    for (int peer = 0; peer < e->world_size; peer++)
        for (int i = 0; i < PAIR; i++)
            rows[peer * PAIR + i] = element(e->rank, peer, round, i);
}

static status expect(const exchange *e, const float *rows, int round)
{
    for (int peer = 0; peer < e->world_size; peer++)
        for (int i = 0; i < PAIR && peer != e->rank; i++) {
            float is = rows[peer * PAIR + i], want = element(peer, e->rank, round, i);
            if (is < want || is > want)
                return FAIL(STATUS_INVALID, "round %d, from rank %d: [%d] is %g, want %g", round,
                            peer, i, (double)is, (double)want);
        }
    return STATUS_OK;
}

static status open_exchange(process_group *group, memory_kind kind, collective_data *d,
                            exchange *out)
{
    int world_size = process_group_world_size(group);
    TRY(collective_data_open(group, kind, (size_t)world_size * PAIR * sizeof(float), d));
    *out = (exchange){group,      process_group_rank(group), world_size, d->stream, d->call_in,
                      d->call_out};
    return STATUS_OK;
}

/* Sums follow each batch before anybody waits for the device. */
static status use_batches(const exchange *e, collective_data *d)
{
    float ranks = 0;
    for (int round = 0; round < ROUNDS; round++) {
        fill(e, d->in, round);
        TRY(collective_data_send(d));
        TRY(exchange_all(e));
        ranks = 1;
        TRY(process_group_all_reduce(e->group, &ranks, 1, DTYPE_F32, REDUCE_SUM, NULL));
        TRY(collective_data_fetch(d));
        TRY(expect(e, d->out, round));
    }
    return ranks > (float)e->world_size || ranks < (float)e->world_size
               ? FAIL(STATUS_INVALID, "%g ranks", (double)ranks)
               : STATUS_OK;
}

static status batches(process_group *group, int rank, int world_size, void *arg)
{
    collective_data d;
    exchange e;
    (void)rank;
    (void)world_size;
    TRY(open_exchange(group, *(const memory_kind *)arg, &d, &e));
    status st = use_batches(&e, &d);
    collective_data_close(&d);
    return st;
}

START_TEST(none_of_a_batch_waits_for_another)
{
    memory_kind kind = _i % 2 == 0 ? MEMORY_DEVICE_OUT_OF_PLACE : MEMORY_OUT_OF_PLACE;
    nccl_run(NCCL_WORLDS[_i / 2], batches, &kind);
}
END_TEST

/* What is recorded is also replayed. */
static status replay_batch(const exchange *e, collective_data *d, device_graph **graph)
{
    device *dev = ranks_device();
    const accelerator_ops *ops = dev->ops->accelerator;
    TRY(exchange_all(e)); /* eagerly: NCCL connects the ranks */
    TRY(ops->capture_begin(dev));
    status st = exchange_all(e);
    status ended = ops->capture_end(dev, st == STATUS_OK ? graph : NULL);
    TRY(st);
    TRY(ended);
    for (int round = 0; round < ROUNDS; round++) {
        fill(e, d->in, round);
        TRY(collective_data_send(d));
        TRY(ops->graph_launch(dev, *graph));
        TRY(collective_data_fetch(d));
        TRY(expect(e, d->out, round));
    }
    return STATUS_OK;
}

static status batch_in_a_graph(process_group *group, int rank, int world_size, void *arg)
{
    collective_data d;
    exchange e;
    device_graph *graph = NULL;
    (void)rank;
    (void)world_size;
    (void)arg;
    TRY(open_exchange(group, MEMORY_DEVICE_OUT_OF_PLACE, &d, &e));
    status st = replay_batch(&e, &d, &graph);
    ranks_device()->ops->accelerator->graph_destroy(graph);
    collective_data_close(&d);
    return st;
}

START_TEST(a_batch_is_replayed)
{
    nccl_run(NCCL_WORLDS[_i], batch_in_a_graph, NULL);
}
END_TEST

/* An all_to_all in place. */
static status swap_rows(const exchange *e, collective_data *d, bool in_graph, device_graph **graph)
{
    device *dev = ranks_device();
    const accelerator_ops *ops = dev->ops->accelerator;
    collective c = {
        .kind = COLLECTIVE_ALL_TO_ALL, .in = e->out, .out = e->out, .count = PAIR, .prescale = 1};
    fill(e, d->out, 0);
    TRY(collective_data_send(d));
    if (in_graph)
        TRY(ops->capture_begin(dev));
    status st = process_group_run(e->group, &c, e->stream);
    status_kept why;
    status_keep(&why);
    status ended = in_graph ? ops->capture_end(dev, st == STATUS_OK ? graph : NULL) : STATUS_OK;
    if (st != STATUS_OK)
        status_restore(&why);
    TRY(st);
    TRY(ended);
    if (in_graph)
        TRY(ops->graph_launch(dev, *graph));
    TRY(collective_data_fetch(d));
    return expect(e, d->out, 0);
}

/* arg: whether it is done once before it is recorded. */
static status rows_in_place(process_group *group, int rank, int world_size, void *arg)
{
    collective_data d;
    exchange e;
    device_graph *graph = NULL;
    status st = STATUS_OK;
    (void)rank;
    (void)world_size;
    TRY(open_exchange(group, MEMORY_DEVICE, &d, &e));
    if (*(const bool *)arg)
        st = swap_rows(&e, &d, false, NULL);
    if (st == STATUS_OK)
        st = swap_rows(&e, &d, true, &graph);
    ranks_device()->ops->accelerator->graph_destroy(graph);
    collective_data_close(&d);
    return st;
}

START_TEST(rows_change_places)
{
    bool once_before = true;
    nccl_run(NCCL_WORLDS[_i], rows_in_place, &once_before);
}
END_TEST

/* Every rank fails alike, with all facts in one line. */
static void expect_refusal(rank_fn fn, void *arg, const char *const facts[4])
{
    ranks_options options = nccl_options(2, "nccl");
    rank_result results[2];
    ck_assert_int_eq(run_rank_processes(&options, fn, arg, results), STATUS_OK);
    for (int rank = 0; rank < 2; rank++) {
        ck_assert_msg(results[rank].reported && results[rank].st == STATUS_INVALID, "rank %d: %s",
                      rank, results[rank].message);
        ASSERT_FACTS_LISTED(results[rank].message, facts);
    }
}

START_TEST(a_recording_makes_no_room)
{
    bool once_before = false;
    const char *facts[4] = {"all_to_all", "once before it is recorded"};
    expect_refusal(rows_in_place, &once_before, facts);
}
END_TEST

static status with_a_tag(process_group *group, int rank, int world_size, void *arg)
{
    float number = 0;
    work *w = NULL;
    collective c = {.kind = rank == 0 ? COLLECTIVE_SEND : COLLECTIVE_RECV,
                    .in = &number,
                    .out = &number,
                    .count = 1,
                    .root = 1 - rank,
                    .tag = 7};
    (void)world_size;
    return *(const bool *)arg ? process_group_batch_isend_irecv(group, &c, 1, NULL, &w)
                              : process_group_run(group, &c, NULL);
}

START_TEST(tags_are_refused)
{
    bool in_batch = _i == 1;
    const char *facts[4] = {"backend nccl has no tags", "tag 7"};
    expect_refusal(with_a_tag, &in_batch, facts);
}
END_TEST

int main(void)
{
    if (!nccl_choose())
        return TEST_SKIPPED;
    Suite *suite = suite_create("nccl_messages");
    TCase *core = suite_case(suite, "core", 120);
    nccl_add_worlds(core, none_of_a_batch_waits_for_another, NCCL_N_SMALL_WORLDS, 2);
    nccl_add_worlds(core, a_batch_is_replayed, NCCL_N_SMALL_WORLDS, 1);
    nccl_add_worlds(core, rows_change_places, NCCL_N_SMALL_WORLDS, 1);
    suite_add(core, a_recording_makes_no_room, 0, nccl_lacks_gpus(2));
    suite_add_all(core, tags_are_refused, 2, nccl_lacks_gpus(2));
    return suite_run(suite);
}
