/* Device memory on backends of the host's memory: the results, the memory that is used on the way,
 * the order, and ranks with and without a device in one job. The device is a fake one, which makes
 * its copies as late as it may. */
#include "base/clock.h"
#include "base/module.h"
#include "dist/ddp.h"
#include "dist/process_group/process_group_state.h"
#include "kernels/ops.h"
#include "tests/support/collectives.h"
#include "tests/support/fake_accelerator.h"
#include "tests/support/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WORLD = 3 };

static status open_on_even(int rank, device **out)
{
    return rank % 2 == 0 ? fake_accelerator_open(rank, out) : STATUS_OK;
}

static ranks_options options_for(int world_size)
{
    return (ranks_options){.world_size = world_size,
                           .shared_bytes = COLLECTIVES_SHARED_BYTES,
                           .open_device = fake_accelerator_open,
                           .close_device = fake_accelerator_close};
}

START_TEST(all_reduce_is_exact)
{
    ranks_options options = options_for(1 + _i / 2);
    memory_kind kind = _i % 2 == 0 ? MEMORY_DEVICE : MEMORY_DEVICE_OUT_OF_PLACE;
    ck_assert_int_eq(run_ranks_with(&options, collectives_all_reduce, &kind), STATUS_OK);
}
END_TEST

START_TEST(broadcast_is_exact)
{
    ranks_options options = options_for(_i);
    memory_kind kind = MEMORY_DEVICE;
    options.shared_bytes = _i % 2 == 0 ? COLLECTIVES_SHARED_BYTES : 0;
    ck_assert_int_eq(run_ranks_with(&options, collectives_broadcast, &kind), STATUS_OK);
}
END_TEST

START_TEST(many_works_under_way)
{
    ranks_options options = options_for(_i);
    ck_assert_int_eq(run_ranks_with(&options, collectives_outstanding, NULL), STATUS_OK);
}
END_TEST

START_TEST(bits_are_the_same_everywhere)
{
    ranks_options options = options_for(_i);
    ck_assert_int_eq(run_ranks_with(&options, collectives_bits_on_device, NULL), STATUS_OK);
}
END_TEST

START_TEST(ranks_with_and_without_a_device)
{
    ranks_options options = options_for(3);
    memory_kind kind = MEMORY_DEVICE;
    options.open_device = open_on_even;
    ck_assert_int_eq(run_ranks_with(&options, collectives_all_reduce, &kind), STATUS_OK);
    ck_assert_int_eq(run_ranks_with(&options, collectives_broadcast, &kind), STATUS_OK);
}
END_TEST

static bool gloo_is_usable(void)
{
    const module *gloo = NULL;
#ifdef __SANITIZE_THREAD__
    return gloo != NULL; /* it is opaque to the sanitizer */
#endif
    return module_open("gloo", &gloo) == STATUS_OK;
}

START_TEST(gloo_stages_too)
{
    if (!gloo_is_usable())
        return;
    ranks_options options = options_for(3);
    memory_kind kind = MEMORY_DEVICE;
    options.backend = "gloo";
    options.open_device = _i == 0 ? fake_accelerator_open : open_on_even;
    ck_assert_int_eq(run_ranks_with(&options, collectives_all_reduce, &kind), STATUS_OK);
    ck_assert_int_eq(run_ranks_with(&options, collectives_outstanding, &kind), STATUS_OK);
}
END_TEST

static status expect_floats(device *dev, const float *data, size_t count, float want)
{
    float got[64];
    TRY(dev->ops->download(dev, got, data, count * sizeof got[0]));
    for (size_t i = 0; i < count; i++)
        if (got[i] < want || got[i] > want)
            return FAIL(STATUS_INVALID, "[%zu] is %g, want %g", i, (double)got[i], (double)want);
    return STATUS_OK;
}

/* Device, host, device: what is launched after a held work is held too, so that a rank whose host
 * memory is ready at once keeps the order. */
static status mixed_order(process_group *group, int rank, int world_size, void *arg)
{
    (void)arg;
    device *dev = ranks_device();
    float host[3] = {(float)rank, 1, 2}, *there = NULL;
    work *works[4];
    TRY(dev->ops->alloc(dev, 2 * sizeof *there, (void **)&there));
    for (int step = 0; step < 3; step++) {
        void *data[] = {&there[0], &host[1], &there[1], &host[2]};
        host[1] = host[2] = 1;
        TRY(fake_accelerator_fill(dev, there, 2, (float)(rank + step)));
        for (int i = 0; i < 4; i++)
            TRY(process_group_launch(
                group,
                &(collective){
                    .kind = COLLECTIVE_ALL_REDUCE, .in = data[i], .out = data[i], .count = 1},
                i % 2 == 0 ? dev->stream : NULL, &works[i]));
        for (int i = 0; i < 4; i++)
            TRY(process_group_wait(group, works[i], NULL));
        float want = (float)(world_size * (world_size - 1) / 2 + world_size * step);
        TRY(expect_floats(dev, there, 2, want));
        if (host[1] < (float)world_size || host[2] < (float)world_size)
            return FAIL(STATUS_INVALID, "a sum on the host is wrong");
    }
    dev->ops->free(dev, there);
    return STATUS_OK;
}

START_TEST(works_keep_their_order)
{
    ranks_options options = options_for(_i);
    ck_assert_int_eq(run_ranks_with(&options, mixed_order, NULL), STATUS_OK);
}
END_TEST

/* Buckets that fill what the group has exactly go there, and nothing else is pinned; more than that
 * goes elsewhere, once for all steps. */
static status uses_the_groups_memory(process_group *group, int rank, int world_size, void *arg)
{
    enum { COUNT = 3003, FIRST = 1501, STEPS = 5 };
    const bool *fits = arg;
    (void)rank;
    (void)world_size;
    device *dev = ranks_device();
    float *data = NULL;
    work *works[2];
    void *more = NULL;
    TRY(dev->ops->alloc(dev, COUNT * sizeof *data, (void **)&data));
    TRY(process_group_broadcast(group, data, COUNT, DTYPE_F32, 0, dev->stream));
    for (int step = 0; step < STEPS; step++) {
        TRY(process_group_launch(
            group,
            &(collective){.kind = COLLECTIVE_ALL_REDUCE, .in = data, .out = data, .count = FIRST},
            dev->stream, &works[0]));
        TRY(process_group_launch(group,
                                 &(collective){.kind = COLLECTIVE_ALL_REDUCE,
                                               .in = data + FIRST,
                                               .out = data + FIRST,
                                               .count = COUNT - FIRST},
                                 dev->stream, &works[1]));
        TRY(process_group_wait(group, works[0], NULL));
        TRY(process_group_wait(group, works[1], NULL));
    }
    if (fake_accelerator_pinned(dev) != 1 || fake_accelerator_strays(dev) != 0)
        return FAIL(STATUS_INVALID, "%d regions pinned, %d copies beside them",
                    fake_accelerator_pinned(dev), fake_accelerator_strays(dev));
    if ((process_group_alloc(group, 8, &more) == STATUS_OK) == *fits)
        return FAIL(STATUS_INVALID, "the group's memory was%s used", *fits ? " not" : "");
    dev->ops->free(dev, data);
    return STATUS_OK;
}

START_TEST(the_groups_own_memory_is_used)
{
    bool fits = _i == 1;
    ranks_options options = options_for(2);
    options.shared_bytes = fits ? 3003 * sizeof(float) : 16;
    ck_assert_int_eq(run_ranks_with(&options, uses_the_groups_memory, &fits), STATUS_OK);
}
END_TEST

/* The wire is free for the first bucket once its data is out, whatever is enqueued after it. */
static status delayed(process_group *group, int rank, int world_size, void *arg)
{
    (void)rank;
    (void)world_size;
    (void)arg;
    device *dev = ranks_device();
    float *data = NULL;
    work *works[2];
    int64_t elapsed_ns[2], start_ns = clock_now_ns();
    TRY(dev->ops->alloc(dev, 2 * sizeof *data, (void **)&data));
    for (int i = 0; i < 2; i++) {
        TRY(fake_accelerator_fill(dev, data + i, 1, (float)(i + 1)));
        TRY(process_group_launch(
            group,
            &(collective){
                .kind = COLLECTIVE_ALL_REDUCE, .in = data + i, .out = data + i, .count = 1},
            dev->stream, &works[i]));
    }
    for (int i = 0; i < 2; i++)
        TRY(process_group_wait(group, works[i], &elapsed_ns[i]));
    int64_t took_ns = clock_now_ns() - start_ns;
    if (elapsed_ns[0] < 5000000 || elapsed_ns[1] < 5000000 || took_ns < 10000000)
        return FAIL(STATUS_INVALID, "done after %lld and %lld ns", (long long)elapsed_ns[0],
                    (long long)elapsed_ns[1]);
    TRY(expect_floats(dev, data, 1, 2));
    TRY(expect_floats(dev, data + 1, 1, 4));
    dev->ops->free(dev, data);
    return STATUS_OK;
}

START_TEST(an_injected_delay_counts_from_the_copy)
{
    ranks_options options = options_for(2);
    options.inject_delay_ms = 5;
    ck_assert_int_eq(run_ranks_with(&options, delayed, NULL), STATUS_OK);
}
END_TEST

/* Two ranks with gradients of 1 and 2, in slices: means of 1.5. */
static status means(process_group *group, int rank, int world_size, void *arg)
{
    enum { COUNT = 60, STEPS = 3 };
    static const size_t offsets[] = {0, 20, 40};
    ddp_options buckets = {64, 64, *(const bool *)arg, NULL};
    (void)world_size;
    device *dev = ranks_device();
    float *gradients = NULL;
    ddp *reducer = NULL;
    TRY(dev->ops->alloc(dev, COUNT * sizeof *gradients, (void **)&gradients));
    TRY(ddp_create(group, gradients, &(ddp_parameters){COUNT, offsets, 3}, &buckets, &reducer));
    status st = STATUS_OK;
    for (int step = 0; step < STEPS && st == STATUS_OK; step++) {
        for (size_t i = 3; i-- > 0 && st == STATUS_OK;) {
            st = fake_accelerator_fill(dev, gradients + offsets[i], 20, (float)(rank + 1 + step));
            if (st == STATUS_OK)
                st = ddp_on_grad_ready(reducer, offsets[i], 20, dev->stream);
        }
        if (st == STATUS_OK)
            st = ddp_wait(reducer);
        if (st == STATUS_OK)
            st = expect_floats(dev, gradients, COUNT, 1.5f + (float)step);
    }
    ddp_destroy(reducer);
    dev->ops->free(dev, gradients);
    return st;
}

START_TEST(gradients_become_means)
{
    ranks_options options = options_for(2);
    bool overlap = _i == 1;
    ck_assert_int_eq(run_ranks_with(&options, means, &overlap), STATUS_OK);
}
END_TEST

static status scaled_alone(process_group *group, int rank, int world_size, void *arg)
{
    (void)rank;
    (void)world_size;
    (void)arg;
    device *dev = ranks_device();
    float *data = NULL;
    work *w = NULL;
    TRY(dev->ops->alloc(dev, 8 * sizeof *data, (void **)&data));
    TRY(fake_accelerator_fill(dev, data, 4, 6));
    TRY(process_group_launch(group,
                             &(collective){.kind = COLLECTIVE_ALL_REDUCE,
                                           .in = data,
                                           .out = data + 4,
                                           .count = 4,
                                           .prescale = 0.5f},
                             dev->stream, &w));
    TRY(process_group_wait(group, w, NULL));
    TRY(expect_floats(dev, data, 4, 6));
    TRY(expect_floats(dev, data + 4, 4, 3));
    TRY(process_group_all_gather(group, data, data + 4, 4, DTYPE_F32, dev->stream));
    TRY(expect_floats(dev, data + 4, 4, 6));
    if (!process_group_can_be_captured(group) || process_group_check(group) != STATUS_OK)
        return FAIL(STATUS_INVALID, "a world of one cannot be captured");
    if (process_group_all_reduce(group, data, 4, DTYPE_F32, REDUCE_SUM, (device_stream *)data) !=
        STATUS_INVALID)
        return FAIL(STATUS_IO, "another stream was taken");
    dev->ops->free(dev, data);
    return STATUS_OK;
}

START_TEST(one_rank_copies_and_scales)
{
    ranks_options options = options_for(1);
    ck_assert_int_eq(run_ranks_with(&options, scaled_alone, NULL), STATUS_OK);
}
END_TEST

/* The group ends while the device has yet to copy. */
static status dropped(process_group *group, int rank, int world_size, void *arg)
{
    static _Thread_local float data[100];
    (void)rank;
    (void)world_size;
    (void)arg;
    work *w = NULL;
    TRY(fake_accelerator_fill(ranks_device(), data, 100, 1));
    return process_group_launch(
        group, &(collective){.kind = COLLECTIVE_ALL_REDUCE, .in = data, .out = data, .count = 100},
        ranks_device()->stream, &w);
}

START_TEST(works_may_be_dropped)
{
    ranks_options options = options_for(2);
    ck_assert_int_eq(run_ranks_with(&options, dropped, NULL), STATUS_OK);
}
END_TEST

enum { LARGE = 300000 };

/* Two ranks' messages of more than any backend keeps, and a sum. What each launches, in its order:
 * s and r: send and receive on device memory; S and R: on the host; +: the sum, on the device. */
static const char *const ORDERS[][2] = {
    {"sr", "sr"}, {"sr", "rs"}, {"Rs", "Rs"}, {"+s", "r+"}, {"r+", "+s"}, {"s+r", "+sr"},
};

static collective of_letter(char letter, int peer, float *data)
{
    bool is_send = letter == 's' || letter == 'S', is_sum = letter == '+';
    return (collective){.kind = is_sum    ? COLLECTIVE_ALL_REDUCE
                                : is_send ? COLLECTIVE_SEND
                                          : COLLECTIVE_RECV,
                        .in = data,
                        .out = data,
                        .count = is_sum ? 4 : LARGE,
                        .root = is_sum ? 0 : peer};
}

/* Sends 1, 2, 3 ... times the rank's number plus one; the sum is of ones. */
static status exchange(process_group *group, device *dev, const char *order, float *const *there,
                       float *host)
{
    work *works[3];
    int n = (int)strlen(order), rank = process_group_rank(group);
    for (int i = 0; i < n; i++) {
        bool on_host = order[i] == 'S' || order[i] == 'R';
        collective c = of_letter(order[i], 1 - rank, on_host ? host + LARGE : there[i]);
        for (int k = 0; k < LARGE; k++)
            host[k] = order[i] == '+' ? 1 : (float)((k + 1) * (rank + 1));
        TRY(dev->ops->upload(dev, there[i], host, LARGE * sizeof *host));
        TRY(process_group_launch(group, &c, on_host ? NULL : dev->stream, &works[i]));
    }
    for (int i = 0; i < n; i++)
        TRY(process_group_wait(group, works[i], NULL));
    for (int i = 0; i < n; i++) {
        bool is_sum = order[i] == '+';
        float want = is_sum ? 2 : (float)(LARGE * (2 - rank));
        if (order[i] == 's')
            continue;
        if (order[i] != 'R')
            TRY(dev->ops->download(dev, host + LARGE, there[i], LARGE * sizeof *host));
        float got = host[LARGE + (is_sum ? 3 : LARGE - 1)];
        if (got < want || got > want)
            return FAIL(STATUS_INVALID, "%c of %s: %g, want %g", order[i], order, (double)got,
                        (double)want);
    }
    return STATUS_OK;
}

static status exchange_large(process_group *group, int rank, int world_size, void *arg)
{
    device *dev = ranks_device();
    const char *const *orders = arg;
    float *there[3] = {NULL}, *host = malloc(2 * LARGE * sizeof *host);
    status st = host != NULL ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "test buffers");
    (void)world_size;
    for (int i = 0; i < 3 && st == STATUS_OK; i++)
        st = dev->ops->alloc(dev, LARGE * sizeof *host, (void **)&there[i]);
    if (st == STATUS_OK)
        st = exchange(group, dev, orders[rank], there, host);
    for (int i = 0; i < 3; i++)
        dev->ops->free(dev, there[i]);
    free(host);
    return st;
}

START_TEST(large_messages_do_not_wait_for_themselves)
{
    enum { N = sizeof ORDERS / sizeof ORDERS[0] };
    const char *orders[2] = {ORDERS[_i % N][0], ORDERS[_i % N][1]};
    ranks_options options = options_for(2);
    options.timeout_ms = 2000;
    options.backend = _i < N ? "shm" : "gloo";
    if (_i < N || gloo_is_usable())
        ck_assert_int_eq(run_ranks_with(&options, exchange_large, orders), STATUS_OK);
}
END_TEST

/* A kind that training does not need, on the device's memory or the host's. */
static status gathers(process_group *group, int rank, int world_size, void *arg)
{
    enum { COUNT = 4, MOST = 4 * COUNT };
    device *dev = ranks_device();
    float host[MOST] = {0}, *data = NULL;
    bool on_device = *(const bool *)arg;
    TRY(dev->ops->alloc(dev, sizeof host, (void **)&data));
    float *all = on_device ? data : host, *own = all + rank * COUNT;
    for (int i = 0; i < COUNT; i++)
        host[rank * COUNT + i] = (float)(rank * 10 + i);
    status st = dev->ops->upload(dev, data, host, sizeof host);
    if (st == STATUS_OK)
        st = process_group_all_gather(group, own, all, COUNT, DTYPE_F32,
                                      on_device ? dev->stream : NULL);
    if (st == STATUS_OK && on_device)
        st = dev->ops->download(dev, host, data, sizeof host);
    dev->ops->free(dev, data);
    for (int i = 0; i < world_size * COUNT && st == STATUS_OK; i++) {
        float want = (float)(i / COUNT * 10 + i % COUNT);
        if (host[i] < want || host[i] > want)
            st = FAIL(STATUS_IO, "[%d] is %g, want %g", i, (double)host[i], (double)want);
    }
    if (st == STATUS_OK && process_group_can_be_captured(group))
        st = FAIL(STATUS_IO, "it can be captured");
    return st;
}

START_TEST(other_kinds_are_staged)
{
    ranks_options options = options_for(2);
    bool on_device = _i == 1;
    ck_assert_int_eq(run_ranks_with(&options, gathers, &on_device), STATUS_OK);
}
END_TEST

/* A staging_memory_fn: what is asked for, and how often. */
static status lend(void *times, size_t size_bytes, void **out, size_t *got_bytes)
{
    static _Alignas(64) unsigned char memory[2][64];
    *got_bytes = size_bytes;
    *out = memory[(*(int *)times)++];
    return STATUS_OK;
}

static status fail_to_copy(device *dev, void *pinned, const void *src, size_t size_bytes,
                           device_event *done)
{
    (void)dev, (void)pinned, (void)src, (void)size_bytes, (void)done;
    return FAIL(STATUS_IO, "a copy");
}

START_TEST(what_a_failed_copy_took_is_free_again)
{
    float data[16] = {0};
    const collective c = {.kind = COLLECTIVE_ALL_REDUCE, .in = data, .out = data, .count = 16};
    int lent = 0;
    device *dev = NULL;
    staging *s = NULL;
    staged *item = NULL;
    ck_assert_int_eq(fake_accelerator_open(0, &dev), STATUS_OK);
    const device_ops *good = dev->ops;
    accelerator_ops failing = *good->accelerator;
    device_ops bad = *good;
    failing.copy_out = fail_to_copy;
    bad.accelerator = &failing;
    ck_assert_int_eq(staging_create(dev, lend, &lent, &s), STATUS_OK);
    dev->ops = &bad;
    ck_assert_int_eq(staging_copy_out(s, &c, sizeof data, sizeof data, &item), STATUS_IO);
    dev->ops = good;
    ck_assert_int_eq(staging_copy_out(s, &c, sizeof data, sizeof data, &item), STATUS_OK);
    ck_assert_int_eq(lent, 1);
    ck_assert_int_eq(staging_wait(s, item), STATUS_OK);
    staging_release(s, item);
    staging_destroy(s);
    fake_accelerator_close(dev);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("staging");
    TCase *core = suite_case(suite, "core", 60);
    tcase_add_loop_test(core, all_reduce_is_exact, 0, 2 * MAX_WORLD);
    tcase_add_loop_test(core, broadcast_is_exact, 1, MAX_WORLD + 1);
    tcase_add_loop_test(core, many_works_under_way, 1, MAX_WORLD + 1);
    tcase_add_loop_test(core, bits_are_the_same_everywhere, 1, MAX_WORLD + 1);
    tcase_add_test(core, ranks_with_and_without_a_device);
    tcase_add_loop_test(core, gloo_stages_too, 0, 2);
    tcase_add_loop_test(core, works_keep_their_order, 1, MAX_WORLD + 1);
    tcase_add_loop_test(core, large_messages_do_not_wait_for_themselves, 0, 12);
    tcase_add_loop_test(core, the_groups_own_memory_is_used, 0, 2);
    tcase_add_test(core, an_injected_delay_counts_from_the_copy);
    tcase_add_loop_test(core, gradients_become_means, 0, 2);
    tcase_add_test(core, one_rank_copies_and_scales);
    tcase_add_test(core, works_may_be_dropped);
    tcase_add_loop_test(core, other_kinds_are_staged, 0, 2);
    tcase_add_test(core, what_a_failed_copy_took_is_free_again);
    return suite_run(suite);
}
