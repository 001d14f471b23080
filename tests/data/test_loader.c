/* The loader's batches: the sampler's order, cut into batches and steps, in the device's memory. */
#include "data/loader.h"

#include "kernels/ops.h"
#include "tests/support/facts.h"
#include "tests/support/suite.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 103, MAX_ALLOCS = 16 };

/* A device whose memory is a list of malloc blocks of known size; after `allocs_left` allocations,
 * or `calls_left` uploads and gathers, it fails. */
typedef struct fake {
    struct {
        void *memory;
        size_t size_bytes;
    } blocks[MAX_ALLOCS];
    int live, allocs_left, calls_left;
} fake;

static size_t block_bytes(const fake *f, const void *memory)
{
    for (int i = 0; i < MAX_ALLOCS; i++)
        if (f->blocks[i].memory == memory)
            return f->blocks[i].size_bytes;
    return 0;
}

static status fake_alloc(device *dev, size_t size_bytes, void **out)
{
    fake *f = dev->state;
    int place = 0;
    if (f->allocs_left-- <= 0)
        return FAIL(STATUS_NO_MEMORY, "fake: %zu bytes", size_bytes);
    while (f->blocks[place].memory != NULL)
        place++;
    f->blocks[place].memory = calloc(1, size_bytes ? size_bytes : 1);
    f->blocks[place].size_bytes = size_bytes;
    f->live++;
    *out = f->blocks[place].memory;
    return STATUS_OK;
}

static void fake_free(device *dev, void *memory)
{
    fake *f = dev->state;
    for (int i = 0; memory != NULL && i < MAX_ALLOCS; i++) {
        if (f->blocks[i].memory != memory)
            continue;
        f->blocks[i].memory = NULL;
        f->live--;
    }
    free(memory);
}

static status fake_upload(device *dev, void *dst, const void *host, size_t size_bytes)
{
    fake *f = dev->state;
    if (f->calls_left-- <= 0)
        return FAIL(STATUS_DEVICE, "fake: upload");
    if (block_bytes(f, dst) < size_bytes)
        return FAIL(STATUS_DEVICE, "fake: upload of %zu to %zu", size_bytes, block_bytes(f, dst));
    memcpy(dst, host, size_bytes);
    return STATUS_OK;
}

static status fake_gather(device *dev, const gather_source *source, const step_state *of_step,
                          uint32_t offset, int n, const gather_output *out)
{
    float *x = out->x;
    fake *f = dev->state;
    size_t count = (size_t)n;
    const uint32_t *indices = source->order + of_step->plan.first + offset;
    if (f->calls_left-- <= 0)
        return FAIL(STATUS_DEVICE, "fake: gather");
    if (source->pixels != DATASET_PIXELS ||
        block_bytes(f, x) < count * DATASET_PIXELS * sizeof *x ||
        block_bytes(f, out->labels) < count ||
        block_bytes(f, out->samples) < count * sizeof *out->samples)
        return FAIL(STATUS_DEVICE, "fake: gather of %d outside the device's memory", n);
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < DATASET_PIXELS; j++)
            x[i * DATASET_PIXELS + j] = source->images[indices[i] * (size_t)DATASET_PIXELS + j];
        out->labels[i] = source->labels[indices[i]];
        out->samples[i] = indices[i];
    }
    return STATUS_OK;
}

static const device_ops FAKE_OPS = {.name = "fake",
                                    .alloc = fake_alloc,
                                    .free = fake_free,
                                    .upload = fake_upload,
                                    .gather = fake_gather};

/* The same, with memory of its own: copies from pinned memory are made at once. */
static const accelerator_ops OWN_MEMORY = {
    .alloc_pinned = fake_alloc, .free_pinned = fake_free, .copy_in = fake_upload};
static device_ops accelerator_table;

static fake memory;
static device dev = {.ops = &FAKE_OPS, .state = &memory, .threads = 1};
static uint8_t images[SAMPLES * DATASET_PIXELS], labels[SAMPLES];
static step_state state; /* "device memory" */
static const dataset SET = {.count = SAMPLES, .images = images, .labels = labels};

static void setup(void)
{
    memory = (fake){.allocs_left = MAX_ALLOCS, .calls_left = INT_MAX};
    for (int i = 0; i < SAMPLES; i++) {
        memset(images + i * DATASET_PIXELS, i, DATASET_PIXELS);
        images[i * DATASET_PIXELS] = (uint8_t)(255 - i);
        labels[i] = (uint8_t)(i % 10);
    }
}

static loader_options make_options(int batch_size, int accum, int rank, int world_size)
{
    return (loader_options){.batch_size = batch_size,
                            .accum = accum,
                            .sampler = {.samples = SAMPLES,
                                        .rank = rank,
                                        .world_size = world_size,
                                        .seed = 3,
                                        .shuffle = true},
                            .state = &state};
}

static loader *create(const loader_options *options)
{
    loader *load = NULL;
    status st = loader_create(&dev, &SET, options, &load);
    ck_assert_msg(st == STATUS_OK, "%s", status_text());
    return load;
}

/* What a training loop does at the start of a step. */
static void begin_step(loader *load, int step)
{
    step_plan plan = {0};
    loader_plan_step(load, step, &plan);
    step_begin(&plan, &state, NULL);
}

static void expect_ok(status st)
{
    ck_assert_msg(st == STATUS_OK, "%s", status_text());
}

/* `b` holds the samples that `order` names. */
static void expect_batch(const batch *b, const uint32_t *order, int epoch)
{
    ck_assert(b->state == &state);
    ck_assert_uint_eq(state.plan.epoch, (uint32_t)epoch);
    for (int i = 0; i < b->n; i++) {
        ck_assert_uint_eq(b->samples[i], order[i]);
        ck_assert_uint_eq(b->labels[i], order[i] % 10);
        const float *x = b->x + (size_t)i * DATASET_PIXELS;
        ck_assert(x[0] == (float)(255 - order[i]));
        ck_assert(x[1] == (float)order[i] && x[DATASET_PIXELS - 1] == (float)order[i]);
    }
}

/* One epoch: every batch's content, and each step's share of the samples. */
static void walk_epoch(loader *load, const loader_options *options, int epoch)
{
    uint32_t order[SAMPLES];
    sampler_plan plan;
    expect_ok(sampler_check(&options->sampler, &plan));
    uint32_t per_rank = plan.per_rank, seen = 0;
    expect_ok(sampler_indices(&options->sampler, epoch, order));
    expect_ok(loader_start_epoch(load, epoch));
    for (int step = 0; step < loader_epoch_steps(load, epoch); step++) {
        uint32_t step_samples = 0;
        begin_step(load, step);
        for (int micro = 0; micro < loader_micro_steps(load, step); micro++) {
            batch b;
            expect_ok(loader_next(load, &b));
            bool last = seen + (uint32_t)b.n == per_rank;
            ck_assert(b.n == options->batch_size || (last && b.n < options->batch_size));
            expect_batch(&b, order + seen, epoch);
            seen += (uint32_t)b.n;
            step_samples += (uint32_t)b.n;
        }
        ck_assert_uint_gt(step_samples, 0);
        ck_assert(state.plan.grad_scale == 1.0f / (float)step_samples);
        ck_assert_int_eq(loader_step_samples(load, step), (int)step_samples);
        batch untouched = {.n = -1};
        ck_assert_int_eq(loader_next(load, &untouched), STATUS_INVALID);
        ck_assert_int_eq(untouched.n, -1);
    }
    ck_assert_uint_eq(seen, per_rank);
}

static const struct {
    int batch_size, accum, world_size;
} SHAPES[] = {{1, 1, 1},   {16, 1, 1},   {16, 4, 1},      {103, 1, 1},    {104, 3, 1}, {35, 1, 3},
              {7, 2, 3},   {7, 100, 2},  {1, 1, 103},     {4, 3, 200},    {52, 1, 2},  {51, 2, 2},
              {64, 64, 5}, {1000, 1, 1}, {INT_MAX, 1, 1}, {1, INT_MAX, 2}};

START_TEST(epoch_is_the_samplers_order)
{
    for (int rank = 0; rank < SHAPES[_i].world_size; rank += 1 + SHAPES[_i].world_size / 4) {
        loader_options options =
            make_options(SHAPES[_i].batch_size, SHAPES[_i].accum, rank, SHAPES[_i].world_size);
        loader *load = create(&options);
        uint32_t world_size = (uint32_t)SHAPES[_i].world_size;
        ck_assert_uint_eq(loader_samples(load), (SAMPLES + world_size - 1) / world_size);
        for (int epoch = 0; epoch < 3; epoch++)
            walk_epoch(load, &options, epoch);
        loader_destroy(load);
        ck_assert_int_eq(memory.live, 0);
        setup();
    }
}
END_TEST

static const uint32_t USED[] = {1, 60, 64, 102, SAMPLES};
enum { N_USED = sizeof USED / sizeof USED[0] };

/* An epoch that others have begun has what they have left; those around it are whole. */
START_TEST(an_epoch_may_be_distributed_in_part)
{
    uint32_t used = USED[_i / 2];
    accelerator_table = FAKE_OPS;
    accelerator_table.accelerator = &OWN_MEMORY;
    if (_i % 2 == 1)
        dev.ops = &accelerator_table;
    loader_options options = make_options(10, 2, 1, 3), part = options;
    part.sampler.first = used;
    loader *load = create(&options);
    walk_epoch(load, &options, 1);
    expect_ok(loader_leave_out(load, 2, used));
    ck_assert_int_eq(loader_steps(load), 2);
    walk_epoch(load, &part, 2);
    walk_epoch(load, &options, 3);
    ck_assert_int_eq(loader_leave_out(load, 4, SAMPLES + 1), STATUS_INVALID);
    loader_destroy(load);
}
END_TEST

/* Of all ranks and steps together: each sample that is left of the epoch, once. */
START_TEST(indices_of_steps_are_without_padding)
{
    static const int world_sizes[] = {1, 2, 3, 5, 8, 200};
    uint32_t used = USED[_i];
    for (size_t w = 0; w < sizeof world_sizes / sizeof world_sizes[0]; w++) {
        int times[SAMPLES] = {0}, total = 0;
        for (int rank = 0; rank < world_sizes[w]; rank++) {
            loader_options options = make_options(4, 2, rank, world_sizes[w]);
            loader *load = create(&options);
            expect_ok(loader_leave_out(load, 1, used));
            expect_ok(loader_start_epoch(load, 1));
            for (int step = 0; step < loader_epoch_steps(load, 1); step++) {
                const uint32_t *indices;
                int n = loader_step_indices(load, step, &indices);
                ck_assert_int_le(n, loader_step_samples(load, step));
                for (int i = 0; i < n; i++)
                    ck_assert_int_eq(times[indices[i]]++, 0);
                total += n;
            }
            loader_destroy(load);
            setup();
        }
        ck_assert_int_eq(total, SAMPLES - (int)used);
    }
}
END_TEST

/* 103 samples, batches of 10, 4 per step: 11 batches, 3 steps of 40, 40 and 23 samples. */
START_TEST(steps_are_counted)
{
    loader_options options = make_options(10, 4, 0, 1);
    loader *load = create(&options);
    ck_assert_int_eq(loader_steps(load), 3);
    ck_assert_int_eq(loader_micro_steps(load, 0), 4);
    ck_assert_int_eq(loader_micro_steps(load, 1), 4);
    ck_assert_int_eq(loader_micro_steps(load, 2), 3);
    loader_destroy(load);
}
END_TEST

/* A step's batches are the same whatever came before it: a resumed epoch continues exactly. */
START_TEST(steps_stand_alone)
{
    loader_options options = make_options(10, 4, 1, 2);
    loader *whole = create(&options), *resumed = create(&options);
    int steps = loader_steps(whole);
    ck_assert_int_eq(steps, 2);
    expect_ok(loader_start_epoch(whole, 5));
    expect_ok(loader_start_epoch(resumed, 5));
    for (int step = 0; step < steps; step++)
        for (int micro = 0; micro < loader_micro_steps(whole, step); micro++) {
            batch a, b;
            if (micro == 0)
                begin_step(whole, step);
            expect_ok(loader_next(whole, &a));
            begin_step(resumed, step);
            for (int skipped = 0; skipped <= micro; skipped++)
                expect_ok(loader_next(resumed, &b));
            ck_assert_int_eq(a.n, b.n);
            expect_batch(&b, a.samples, 5);
        }
    loader_destroy(resumed);
    loader_destroy(whole);
}
END_TEST

/* An accelerator's gather reads copies in its own memory, also of the epoch's order. */
START_TEST(accelerator_gets_copies)
{
    accelerator_table = FAKE_OPS;
    accelerator_table.accelerator = &OWN_MEMORY;
    dev.ops = &accelerator_table;
    loader_options options = make_options(16, 2, 0, 3);
    loader *load = create(&options);
    ck_assert_int_eq(memory.live, 7);
    memset(images, 0xee, sizeof images); /* nobody looks here any more */
    memset(labels, 0xee, sizeof labels);
    for (int epoch = 0; epoch < 2; epoch++)
        walk_epoch(load, &options, epoch);
    loader_destroy(load);
    ck_assert_int_eq(memory.live, 0);
    for (int allowed = 0; allowed < 7; allowed++) {
        setup();
        memory.allocs_left = allowed;
        ck_assert_int_eq(loader_create(&dev, &SET, &options, &load), STATUS_NO_MEMORY);
        ck_assert_int_eq(memory.live, 0);
    }
    setup();
    memory.calls_left = 2; /* images and labels */
    load = create(&options);
    ck_assert_int_eq(loader_start_epoch(load, 0), STATUS_DEVICE);
    loader_destroy(load);
}
END_TEST

/* Drawn ahead, in time, twice, or in vain: an epoch has its own order. */
START_TEST(an_order_may_be_drawn_ahead)
{
    accelerator_table = FAKE_OPS;
    accelerator_table.accelerator = &OWN_MEMORY;
    if (_i == 1)
        dev.ops = &accelerator_table;
    loader_options options = make_options(16, 1, 1, 2);
    loader *load = create(&options);
    walk_epoch(load, &options, 0);
    ck_assert(!loader_repeats_order(load)); /* there was none before */
    expect_ok(loader_draw_epoch(load, 1));
    expect_ok(loader_draw_epoch(load, 1));
    walk_epoch(load, &options, 1);
    ck_assert(!loader_repeats_order(load));
    expect_ok(loader_draw_epoch(load, 2));
    walk_epoch(load, &options, 3); /* as a resumed run might */
    ck_assert(!loader_repeats_order(load));
    walk_epoch(load, &options, 2);
    expect_ok(loader_draw_epoch(load, 2)); /* its own, once more */
    walk_epoch(load, &options, 2);
    ck_assert(loader_repeats_order(load));
    walk_epoch(load, &options, 3);
    ck_assert(!loader_repeats_order(load));
    ck_assert_int_eq(loader_draw_epoch(load, -1), STATUS_INVALID);
    loader_destroy(load);
    ck_assert_int_eq(memory.live, 0);
    dev.ops = &FAKE_OPS;
}
END_TEST

/* While the steps of an epoch are still to come, or under way, the next order changes nothing. */
START_TEST(drawing_ahead_leaves_the_epoch_alone)
{
    uint32_t order[SAMPLES];
    batch b;
    loader_options options = make_options(16, 1, 0, 1);
    loader *load = create(&options);
    expect_ok(sampler_indices(&options.sampler, 4, order));
    expect_ok(loader_start_epoch(load, 4));
    for (int step = 0; step < loader_steps(load); step++) {
        expect_ok(loader_draw_epoch(load, 5 + step));
        begin_step(load, step);
        expect_ok(loader_next(load, &b));
        expect_batch(&b, order + 16 * step, 4);
    }
    loader_destroy(load);
}
END_TEST

START_TEST(bad_options_are_refused)
{
    loader *load = NULL;
    loader_options good = make_options(8, 1, 0, 1), bad = good;
    bad.batch_size = 0;
    ck_assert_int_eq(loader_create(&dev, &SET, &bad, &load), STATUS_INVALID);
    bad = good;
    bad.accum = 0;
    ck_assert_int_eq(loader_create(&dev, &SET, &bad, &load), STATUS_INVALID);
    bad = good;
    bad.sampler.samples = SAMPLES + 1;
    ck_assert_int_eq(loader_create(&dev, &SET, &bad, &load), STATUS_INVALID);
    ASSERT_FACTS(status_text(), "104");
    bad = good;
    bad.sampler.rank = 1;
    ck_assert_int_eq(loader_create(&dev, &SET, &bad, &load), STATUS_INVALID);
    ck_assert_ptr_null(load);
    ck_assert_int_eq(memory.live, 0);

    batch b;
    load = create(&good);
    ck_assert_int_eq(loader_next(load, &b), STATUS_INVALID);
    ASSERT_FACTS(status_text(), "epoch");
    ck_assert_int_eq(loader_start_epoch(load, -1), STATUS_INVALID);
    loader_destroy(load);
    loader_destroy(NULL);
}
END_TEST

/* Whatever call of the device fails, its status comes back and nothing stays allocated. */
START_TEST(device_failures_are_passed_on)
{
    loader_options options = make_options(8, 1, 0, 1);
    for (int allowed = 0; allowed < 3; allowed++) {
        loader *load = NULL;
        setup();
        memory.allocs_left = allowed;
        ck_assert_int_eq(loader_create(&dev, &SET, &options, &load), STATUS_NO_MEMORY);
        ck_assert_ptr_null(load);
        ck_assert_int_eq(memory.live, 0);
    }
    batch b = {.n = -1};
    setup();
    memory.calls_left = 0;
    loader *load = create(&options);
    expect_ok(loader_start_epoch(load, 0));
    begin_step(load, 0);
    ck_assert_int_eq(loader_next(load, &b), STATUS_DEVICE);
    ck_assert_int_eq(b.n, -1);
    loader_destroy(load);
    ck_assert_int_eq(memory.live, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("loader");
    TCase *core = suite_case(suite, "core", 10);
    tcase_add_checked_fixture(core, setup, NULL);
    tcase_add_loop_test(core, epoch_is_the_samplers_order, 0, sizeof SHAPES / sizeof SHAPES[0]);
    tcase_add_loop_test(core, an_epoch_may_be_distributed_in_part, 0, 2 * N_USED);
    tcase_add_loop_test(core, indices_of_steps_are_without_padding, 0, N_USED);
    tcase_add_test(core, steps_are_counted);
    tcase_add_test(core, steps_stand_alone);
    tcase_add_test(core, accelerator_gets_copies);
    tcase_add_loop_test(core, an_order_may_be_drawn_ahead, 0, 2);
    tcase_add_test(core, drawing_ahead_leaves_the_epoch_alone);
    tcase_add_test(core, bad_options_are_refused);
    tcase_add_test(core, device_failures_are_passed_on);
    return suite_run(suite);
}
