/* Ranks with GPUs that die, stop, leave or are late, eagerly and in a graph: the others say so in
 * time, and name them. */
#include "base/clock.h"
#include "kernels/ops.h"
#include "tests/dist/nccl_ranks.h"
#include "tests/support/aborts.h"
#include "tests/support/deaths.h"
#include "tests/support/facts.h"

#include <signal.h>

static const rank_fn DEATHS[] = {deaths_in_all_reduce, deaths_on_device, deaths_in_graph};
enum { N_DEATHS = 3 };

/* Every rank but d.rank fails with `want` in less than `most_s`, with all facts in its message. */
static void run_death(rank_fn fn, death d, ranks_options options, status want, double most_s,
                      const char *const facts[4])
{
    rank_result results[NCCL_MAX_WORLD];
    d.before = true;
    ck_assert_int_eq(run_rank_processes(&options, fn, &d, results), STATUS_OK);
    for (int rank = 0; rank < options.world_size; rank++) {
        const rank_result *result = &results[rank];
        if (rank == d.rank)
            continue;
        ck_assert_msg(result->reported && result->st == want, "rank %d: %s: %s", rank,
                      status_name(result->st), result->message);
        ASSERT_FACTS_LISTED(result->message, facts);
        ck_assert_msg(result->seconds < most_s, "rank %d took %g s: %s", rank, result->seconds,
                      result->message);
    }
}

START_TEST(a_killed_rank_is_named)
{
    char who[32];
    death d = {.rank = _i % 3, .signal = SIGKILL};
    snprintf(who, sizeof who, "rank %d", d.rank);
    const char *facts[4] = {who, "pid", "all_reduce"};
    run_death(DEATHS[_i / 3], d, nccl_options(3, "nccl"), STATUS_PEER, 2, facts);
}
END_TEST

/* Rank 1 is through and gone long before rank 0 has what rank 2 sends. */
static status one_leaves_early(process_group *group, int rank, int world_size, void *arg)
{
    (void)world_size;
    (void)arg;
    float data[10] = {(float)rank};
    TRY(process_group_barrier(group));
    if (rank == 2)
        clock_sleep_ms(1500);
    if (rank == 2)
        return process_group_send(group, data, 10, DTYPE_F32, 0, NULL);
    return rank == 0 ? process_group_recv(group, data, 10, DTYPE_F32, 2, NULL) : STATUS_OK;
}

START_TEST(who_leaves_early_disturbs_nobody)
{
    nccl_run(3, one_leaves_early, NULL);
}
END_TEST

enum { BATCH_COUNT = 5000 };

/* Sends to and receives from the ranks of `peers`, by their bits; the device is done with it. */
static status exchange_with(process_group *group, unsigned peers, float *data)
{
    device *dev = ranks_device();
    collective list[2 * NCCL_MAX_WORLD] = {0};
    work *works[2 * NCCL_MAX_WORLD];
    int n = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int peer = 0; peer < process_group_world_size(group); peer++) {
            float *row = data + (2 * peer + pass) * BATCH_COUNT;
            if ((peers >> peer & 1) != 0)
                list[n++] = (collective){.kind = pass == 0 ? COLLECTIVE_SEND : COLLECTIVE_RECV,
                                         .in = row,
                                         .out = row,
                                         .count = BATCH_COUNT,
                                         .root = peer};
        }
    TRY(process_group_batch_isend_irecv(group, list, n, dev->stream, works));
    for (int i = 0; i < n; i++)
        TRY(process_group_wait(group, works[i], NULL));
    return dev->ops->synchronize(dev);
}

typedef status exchange_fn(process_group *group, int rank, const death *how, float *data);

static status with_data(process_group *group, int rank, exchange_fn *fn, const death *how)
{
    device *dev = ranks_device();
    float *data = NULL;
    TRY(dev->ops->alloc(dev, 2 * NCCL_MAX_WORLD * BATCH_COUNT * sizeof *data, (void **)&data));
    status st = fn(group, rank, how, data);
    dev->ops->free(dev, data);
    return st;
}

/* All with all, twice; one rank is missing from the second. */
static status one_is_missing(process_group *group, int rank, const death *how, float *data)
{
    unsigned others = (1u << process_group_world_size(group)) - 1 - (1u << rank);
    TRY(exchange_with(group, others, data));
    if (rank == how->rank && how->signal == 0)
        return STATUS_OK;
    if (rank == how->rank)
        raise(how->signal);
    return exchange_with(group, others, data);
}

static status deaths_in_batch(process_group *group, int rank, int world_size, void *arg)
{
    (void)world_size;
    return with_data(group, rank, one_is_missing, arg);
}

/* Rank 0 hears from rank 1, which is done and gone, long before it hears from rank 2. Rank 3 has
 * nothing to do with it, and is gone too. */
static status some_leave(process_group *group, int rank, const death *how, float *data)
{
    static const unsigned peers[] = {6, 1, 1, 0};
    (void)how;
    TRY(process_group_barrier(group));
    if (rank == 2)
        clock_sleep_ms(2500);
    return rank == 3 ? STATUS_OK : exchange_with(group, peers[rank], data);
}

static status some_leave_early(process_group *group, int rank, int world_size, void *arg)
{
    (void)world_size;
    return with_data(group, rank, some_leave, arg);
}

START_TEST(who_has_left_a_batch_disturbs_nobody)
{
    nccl_run(4, some_leave_early, NULL);
}
END_TEST

static void linger(device *dev)
{
    clock_sleep_ms(3000);
    device_destroy(dev);
}

/* Its process lives on. */
START_TEST(a_group_that_is_closed_is_told)
{
    ranks_options options = nccl_options(2, "nccl");
    const char *facts[4] = {"rank 1", "closed", "all_reduce"};
    options.close_device = linger;
    run_death(deaths_on_device, (death){.rank = 1}, options, STATUS_PEER, 2.8, facts);
}
END_TEST

START_TEST(a_stopped_rank_is_a_timeout)
{
    char who[32];
    ranks_options options = nccl_options(2, "nccl");
    death d = {.rank = _i % 2, .signal = SIGSTOP};
    options.timeout_ms = 700;
    snprintf(who, sizeof who, "rank %d", d.rank);
    const char *facts[4] = {who, "stopped", "5000 elements"};
    run_death(DEATHS[_i / 2], d, options, STATUS_TIMEOUT, 3, facts);
}
END_TEST

/* The group's first all_reduce of this size, before which a rank may be slow: on every backend. */
static status do_first(process_group *group, int rank, const death *how, bool recorded)
{
    device *dev = ranks_device();
    float *data = NULL;
    TRY(dev->ops->alloc(dev, 5000 * sizeof *data, (void **)&data));
    if (rank == how->rank)
        clock_sleep_ms(how->sleep_ms);
    if (rank == how->rank && how->signal != 0)
        raise(how->signal);
    status st = recorded ? dev->ops->accelerator->capture_begin(dev) : STATUS_OK;
    if (st == STATUS_OK)
        st = process_group_all_reduce(group, data, 5000, DTYPE_F32, REDUCE_SUM, dev->stream);
    if (recorded)
        (void)dev->ops->accelerator->capture_end(dev, NULL);
    else if (st == STATUS_OK)
        st = dev->ops->synchronize(dev);
    dev->ops->free(dev, data);
    return st;
}

static status first_all_reduce(process_group *group, int rank, int world_size, void *arg)
{
    (void)world_size;
    return do_first(group, rank, arg, false);
}

/* The device has not come to it: only the host knows of it. */
static status first_in_graph(process_group *group, int rank, int world_size, void *arg)
{
    (void)world_size;
    return do_first(group, rank, arg, true);
}

static const char *const BACKENDS[] = {"nccl", "shm", "gloo"};

START_TEST(the_first_of_its_kind_has_longer)
{
    ranks_options options = nccl_options(2, BACKENDS[_i]);
    death d = {.rank = 1, .sleep_ms = 1200};
    options.timeout_ms = 400;
    if (_i > 0)
        options.open_device = nccl_open_first;
    nccl_run_with(&options, first_all_reduce, &d);
}
END_TEST

/* How a rank ends, leaves (neither signal nor sleep) or is late, and what the others say. In the
 * first of its kind, too, who is dead or stopped is told as soon as ever; an eager group waits for
 * the others in that call, where it enqueues. */
static const struct {
    rank_fn fn;
    bool eager;
    int world, rank, signal, sleep_ms, timeout_ms;
    double most_s;
    const char *facts[4];
} ENDS[] = {
    {deaths_on_device, false, 3, 0, 0, 0, 0, 3, {"rank 0", "closed", "all_reduce"}},
    {deaths_on_device, false, 3, 1, 0, 0, 0, 3, {"rank 1", "closed", "all_reduce"}},
    {deaths_on_device, false, 3, 2, 0, 0, 0, 3, {"rank 2", "closed", "all_reduce"}},
    {deaths_on_device, false, 3, 1, 0, 2500, 1000, 2.5, {"rank 1", "all_reduce", "5000 elements"}},
    {deaths_in_batch, false, 3, 0, SIGKILL, 0, 0, 2, {"rank 0", "pid", "batch"}},
    {deaths_in_batch, false, 3, 1, SIGKILL, 0, 0, 2, {"rank 1", "pid", "batch"}},
    {deaths_in_batch, false, 3, 2, SIGKILL, 0, 0, 2, {"rank 2", "pid", "batch"}},
    {deaths_in_batch, false, 3, 1, SIGSTOP, 0, 700, 3, {"rank 1", "stopped", "sends and receives"}},
    {deaths_in_batch, false, 2, 1, 0, 0, 0, 3, {"rank 1", "closed", "batch"}},
    {first_all_reduce, false, 2, 1, SIGKILL, 0, 20000, 2.5, {"rank 1 (pid ", "is gone"}},
    {first_all_reduce, false, 2, 1, SIGSTOP, 0, 700, 2.5, {"rank 1 (pid ", "is stopped"}},
    {first_all_reduce, true, 2, 1, SIGKILL, 0, 20000, 4, {"rank 1 (pid ", "is gone"}},
    {first_in_graph, true, 2, 1, SIGKILL, 0, 20000, 4, {"rank 1 (pid ", "is gone"}},
    {first_all_reduce, true, 2, 1, SIGSTOP, 0, 700, 4, {"rank 1 (pid ", "is stopped"}},
    {first_all_reduce, true, 2, 1, 0, 2800, 200, 4, {"rank 1 has not come", "all_reduce number"}},
    {first_in_graph, true, 2, 1, 0, 4500, 200, 4, {"a call of NCCL"}},
};
enum { N_ENDS = sizeof ENDS / sizeof ENDS[0] };

START_TEST(who_ends_is_named)
{
    death d = {.rank = ENDS[_i].rank, .signal = ENDS[_i].signal, .sleep_ms = ENDS[_i].sleep_ms};
    ranks_options options = nccl_options(ENDS[_i].world, "nccl");
    bool is_late = d.signal == SIGSTOP || d.sleep_ms > 0;
    options.eager = ENDS[_i].eager;
    options.timeout_ms = ENDS[_i].timeout_ms;
    run_death(ENDS[_i].fn, d, options, is_late ? STATUS_TIMEOUT : STATUS_PEER, ENDS[_i].most_s,
              ENDS[_i].facts);
}
END_TEST

/* A collective that nobody is missing from, and that still does not end. */
START_TEST(a_hanging_collective_is_a_timeout)
{
    ranks_options options = nccl_options(2, "nccl");
    const char *facts[4] = {"all_reduce number 4 (5000 elements) has been running for"};
    setenv("MNIST_DDP_EMULATED_NCCL", "hang:4", 1);
    options.timeout_ms = 700;
    run_death(deaths_on_device, (death){.rank = -1}, options, STATUS_TIMEOUT, 3, facts);
    unsetenv("MNIST_DDP_EMULATED_NCCL");
}
END_TEST

START_TEST(nccls_own_word_is_passed_on)
{
    const char *facts[4] = {"rank 1"};
    setenv("MNIST_DDP_EMULATED_NCCL", "remote_error", 1);
    run_death(deaths_on_device, (death){.rank = 1, .signal = SIGKILL}, nccl_options(3, "nccl"),
              STATUS_PEER, 2, facts);
    unsetenv("MNIST_DDP_EMULATED_NCCL");
}
END_TEST

START_TEST(a_death_shows_through_staging)
{
    char who[32];
    ranks_options options = nccl_options(2, BACKENDS[1 + _i % 2]);
    death d = {.rank = _i / 2, .signal = SIGKILL};
    snprintf(who, sizeof who, "rank %d", d.rank);
    const char *facts[4] = {who};
    options.open_device = nccl_open_first;
    run_death(deaths_on_device, d, options, STATUS_PEER, 2, facts);
}
END_TEST

START_TEST(an_abort_ends_waits)
{
    nccl_run(2 + _i, aborts_end_waits, NULL);
}
END_TEST

START_TEST(an_abort_is_told)
{
    nccl_run(2, aborts_are_told, NULL);
}
END_TEST

int main(void)
{
    if (!nccl_choose())
        return TEST_SKIPPED;
    Suite *suite = suite_create("nccl_deaths");
    TCase *deaths = suite_case(suite, "deaths", 80);
    const char *real = cuda_is_real() ? "only the emulated NCCL does so when asked" : NULL;
    suite_add_all(deaths, a_killed_rank_is_named, 3 * N_DEATHS, nccl_lacks_gpus(3));
    suite_add(deaths, who_leaves_early_disturbs_nobody, 0, nccl_lacks_gpus(3));
    suite_add(deaths, who_has_left_a_batch_disturbs_nobody, 0, nccl_lacks_gpus(4));
    suite_add(deaths, a_group_that_is_closed_is_told, 0, nccl_lacks_gpus(2));
    suite_add_all(deaths, a_stopped_rank_is_a_timeout, 2 * N_DEATHS, nccl_lacks_gpus(2));
    suite_add(deaths, the_first_of_its_kind_has_longer, 0, nccl_lacks_gpus(2));
    for (int i = 1; i < 3; i++)
        suite_add(deaths, the_first_of_its_kind_has_longer, i, ranks_lack_backend(BACKENDS[i]));
    for (int i = 0; i < N_ENDS; i++)
        suite_add(deaths, who_ends_is_named, i, nccl_lacks_gpus(ENDS[i].world));
    suite_add(deaths, a_hanging_collective_is_a_timeout, 0, real);
    suite_add(deaths, nccls_own_word_is_passed_on, 0, real);
    suite_add_all(deaths, an_abort_ends_waits, 2, nccl_lacks_gpus(3));
    suite_add(deaths, an_abort_is_told, 0, nccl_lacks_gpus(2));
    for (int i = 0; i < 4; i++)
        suite_add(deaths, a_death_shows_through_staging, i,
                  ranks_lack_backend(BACKENDS[1 + i % 2]));
    return suite_run(suite);
}
