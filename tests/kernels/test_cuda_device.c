/* The cuda device itself: memory, copies, waits, and what it says when something is wrong. */
#include "kernels/device_kind.h"
#include "tests/kernels/cuda_tensor.h"
#include "tests/support/facts.h"

static device *open_cuda(void)
{
    return open_device("cuda", PRECISION_F32);
}

START_TEST(memory_is_zeroed_and_copied)
{
    static const size_t sizes[] = {0, 1, 63, 4096, 1000003};
    device *dev = open_cuda();
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t size = sizes[i];
        unsigned char *out = NULL, *back = NULL;
        ok(memory_alloc(size + 1, (void **)&out));
        ok(memory_alloc(size + 1, (void **)&back));
        unsigned char *a = room(dev, size), *b = room(dev, size);
        ok(dev->ops->download(dev, back, a, size));
        expect_same(back, out, size);
        for (size_t j = 0; j < size; j++)
            out[j] = (unsigned char)(j * 13 + 1);
        ok(dev->ops->upload(dev, a, out, size));
        ok(dev->ops->copy(dev, b, a, size));
        ok(dev->ops->download(dev, back, b, size));
        expect_same(back, out, size);
        free_all(dev, (void *[]){a, b}, 2);
        free(out);
        free(back);
    }
    dev->ops->free(dev, NULL);
    ok(dev->ops->synchronize(dev));
    device_destroy(dev);
}
END_TEST

/* For an array of its size only, and as long as there is room for another. */
START_TEST(freed_memory_is_kept)
{
    enum { SIZE = 1000, MIB = 1 << 20 };
    setenv("MNIST_DDP_EMULATED_MEMORY_MIB", "200", 1); /* the device's own 32, and these */
    setenv("MNIST_DDP_EMULATED_FAIL", "cudaMalloc:8:2,cudaMalloc:10:2", 1); /* the last ones here */
    device *dev = open_cuda();
    const accelerator_ops *ops = dev->ops->accelerator;
    unsigned char ones[SIZE], zeros[SIZE] = {0}, back[SIZE];
    int64_t used = dev->memory_bytes;
    memset(ones, 1, SIZE);
    ops->keep_freed(dev);
    void *first = room(dev, SIZE), *large = room(dev, 100 * MIB), *pinned = NULL, *again = NULL;
    ok(dev->ops->upload(dev, first, ones, SIZE));
    ok(ops->alloc_pinned(dev, SIZE, &pinned));
    free_all(dev, (void *[]){first, large}, 2);
    ck_assert_int_eq(dev->memory_bytes, used);
    void *other = room(dev, SIZE - 1), *second = room(dev, SIZE);
    ck_assert_ptr_eq(second, first);
    ck_assert_ptr_ne(other, first);
    ok(dev->ops->download(dev, back, second, SIZE));
    expect_same(back, zeros, SIZE);
    ops->free_pinned(dev, pinned);
    ok(ops->alloc_pinned(dev, SIZE, &again));
    ck_assert_ptr_eq(again, pinned);
    large = room(dev, 110 * MIB); /* the others make room */
    ops->free_pinned(dev, again);
    free_all(dev, (void *[]){other, second, large}, 3);
    ops->keep_freed(dev);
    ck_assert_ptr_eq(first = room(dev, SIZE), second);
    dev->ops->free(dev, first);
    ops->keep_freed(dev); /* frees the others, so that nothing is left that could make room */
    first = room(dev, SIZE);
    if (!cuda_is_real()) {
        ck_assert_int_eq(dev->ops->alloc(dev, 1, &other), STATUS_NO_MEMORY);
        dev->ops->free(dev, room(dev, 150 * MIB)); /* memory is scarce: it is not kept */
        ck_assert_int_eq(dev->ops->alloc(dev, 1, &other), STATUS_NO_MEMORY);
    }
    dev->ops->free(dev, first);
    device_destroy(dev);
}
END_TEST

/* Zeroed memory that shares no page with another, as pin wants it. free() ends it. */
static void *whole_pages(size_t size_bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (size_bytes + page - 1) / page * page;
    void *memory = aligned_alloc(page, whole);
    ck_assert_ptr_nonnull(memory);
    return memset(memory, 0, whole);
}

START_TEST(pinned_copies_keep_their_order)
{
    enum { COUNT = 100000 };
    device *dev = open_cuda();
    const accelerator_ops *ops = dev->ops->accelerator;
    float *in = whole_pages(sizeof *in * COUNT), *out = whole_pages(sizeof *out * COUNT);
    float *x = room(dev, sizeof *x * COUNT);
    device_event *done = NULL;
    ok(ops->pin(dev, in, sizeof *in * COUNT));
    ok(ops->pin(dev, out, sizeof *out * COUNT));
    for (int i = 0; i < COUNT; i++)
        in[i] = (float)i;
    ok(ops->event_create(dev, &done));
    ok(ops->event_wait(dev, done)); /* nothing recorded: nothing to wait for */
    for (int turn = 0; turn < 3; turn++) {
        in[0] = (float)turn;
        ok(ops->copy_in(dev, x, in, sizeof *in * COUNT));
        ok(ops->copy_out(dev, out, x, sizeof *out * COUNT, done));
        ok(ops->event_wait(dev, done));
        expect_same(out, in, sizeof *in * COUNT);
    }
    ops->unpin(dev, in);
    ops->unpin(dev, out);
    ops->unpin(dev, NULL);
    ops->event_destroy(done);
    ops->event_destroy(NULL);
    dev->ops->free(dev, x);
    device_destroy(dev);
    free(in);
    free(out);
}
END_TEST

/* Asked while it waits, dev->interrupted ends the wait; the device is given up, and closes. */
static status stop_waiting(void *ctx)
{
    (void)ctx;
    return FAIL(STATUS_PEER, "rank 1 is gone");
}

START_TEST(waits_can_be_given_up)
{
    enum { SIZE = 32 << 20, BUSY = 300 };
    device *dev = open_cuda();
    status st = STATUS_OK;
    void *a = room(dev, SIZE), *b = room(dev, SIZE);
    ok(dev->ops->synchronize(dev));
    dev->interrupted = stop_waiting;
    for (int i = 0; i < BUSY; i++) /* milliseconds of work on the fastest memory */
        ok(dev->ops->copy(dev, b, a, SIZE));
    st = dev->ops->synchronize(dev);
    ck_assert_int_eq(st, STATUS_PEER);
    ASSERT_FACTS(status_text(), "rank 1 is gone");
    ck_assert_int_eq(dev->ops->synchronize(dev), STATUS_DEVICE);
    free_all(dev, (void *[]){a, b}, 2); /* without waiting, so they stay */
    device_destroy(dev);
    unsetenv("MNIST_DDP_EMULATED_STRICT");
}
END_TEST

START_TEST(indices_and_names_are_checked)
{
    device *dev = NULL, *first = open_cuda();
    int count = 0;
    char missing[32];
    ok(device_count(&count, NULL));
    ck_assert_int_ge(count, 1);
    device_options wanted = {.name = "cuda", .threads = 1, .index = count};
    ck_assert_int_eq(device_create(&wanted, &dev), STATUS_INVALID);
    snprintf(missing, sizeof missing, "GPU %d", count);
    ASSERT_FACTS(status_text(), missing, "0");
    wanted.index = -1;
    ck_assert_int_eq(device_create(&wanted, &dev), STATUS_INVALID);
    ck_assert_int_eq(strncmp(first->description, "cuda:0 ", 7), 0);
    ck_assert_uint_eq(strlen(first->id), strlen("GPU-01234567-89ab-cdef-0123-456789abcdef"));
    ck_assert_int_eq(strncmp(first->id, "GPU-", 4), 0);
    ck_assert_ptr_nonnull(strstr(first->description, first->id));
    ck_assert(cuda_is_real() == (first->emulation == NULL));
    device_destroy(first);
}
END_TEST

/* More than any GPU has: STATUS_NO_MEMORY, with what is free and what helps. */
START_TEST(out_of_memory_is_named)
{
    device *dev = open_cuda();
    void *memory = NULL;
    ck_assert_int_eq(dev->ops->alloc(dev, (size_t)1 << 46, &memory), STATUS_NO_MEMORY);
    ASSERT_FACTS(status_text(), "cudaMalloc", "GPU 0", "--batch-size");
    void *small = room(dev, 64); /* the device works on */
    dev->ops->free(dev, small);
    device_destroy(dev);
}
END_TEST

int main(void)
{
    if (!cuda_choose())
        return TEST_SKIPPED;
    setenv("MNIST_DDP_EMULATED_STRICT", "1", 1); /* a leak is a failure */
    Suite *suite = suite_create("cuda_device");
    TCase *core = suite_case(suite, "core", 60);
    tcase_add_test(core, memory_is_zeroed_and_copied);
    suite_add(core, freed_memory_is_kept, 0, cuda_wants_forks());
    tcase_add_test(core, pinned_copies_keep_their_order);
    tcase_add_test(core, waits_can_be_given_up);
    tcase_add_test(core, indices_and_names_are_checked);
    tcase_add_test(core, out_of_memory_is_named);
    return suite_run(suite);
}
