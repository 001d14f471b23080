/* A step of each size is run, then recorded, then replayed. */
#include "app/train/strategy.h"
#include "tests/support/suite.h"

enum { FULL = 64, LAST = 32, GRAPHS = 4 };

/* An accelerator that writes down what it is asked for. */
typedef struct diary {
    int runs, recorded, launches[GRAPHS], destroyed, discarded;
    bool recording, fails; /* enqueueing a step fails */
} diary;

static diary seen;
static int graphs[GRAPHS]; /* their addresses serve as device_graph */

static status capture_begin(device *dev)
{
    (void)dev;
    ck_assert(!seen.recording);
    seen.recording = true;
    return STATUS_OK;
}

static status capture_end(device *dev, device_graph **out)
{
    (void)dev;
    ck_assert(seen.recording);
    seen.recording = false;
    if (out == NULL)
        seen.discarded++;
    else
        *out = (device_graph *)&graphs[seen.recorded++];
    return STATUS_OK;
}

static status graph_launch(device *dev, device_graph *graph)
{
    (void)dev;
    seen.launches[(int *)(void *)graph - graphs]++;
    return STATUS_OK;
}

static void graph_destroy(device_graph *graph)
{
    ck_assert_ptr_nonnull(graph);
    seen.destroyed++;
}

static const accelerator_ops accelerator = {.capture_begin = capture_begin,
                                            .capture_end = capture_end,
                                            .graph_launch = graph_launch,
                                            .graph_destroy = graph_destroy};
static const device_ops ops = {.accelerator = &accelerator};
static device dev = {.ops = &ops};

static status enqueue(void *ctx, int step)
{
    (void)ctx, (void)step;
    if (seen.fails)
        return FAIL(STATUS_DEVICE, "the step fails");
    if (!seen.recording)
        seen.runs++;
    return STATUS_OK;
}

/* Three epochs of `full` full steps and a shorter one. */
static void train(step_graphs *steps, int full)
{
    for (int epoch = 0; epoch < 3; epoch++)
        for (int step = 0; step <= full; step++)
            ck_assert_int_eq(step_graphs_run(steps, step < full ? FULL : LAST, step, enqueue, NULL),
                             STATUS_OK);
}

static void setup(void)
{
    seen = (diary){0};
}

START_TEST(each_size_is_recorded_once)
{
    timeline moments = {.dev = &dev};
    step_graphs steps = {.timeline = &moments, .enabled = true};
    train(&steps, 5);
    ck_assert_int_eq(seen.runs, 2); /* the first of each size */
    ck_assert_int_eq(seen.recorded, 2);
    ck_assert_int_eq(seen.launches[0], 14);
    ck_assert_int_eq(seen.launches[1], 2);
    step_graphs_close(&steps);
    ck_assert_int_eq(seen.destroyed, 2);
}
END_TEST

START_TEST(disabled_runs_every_step)
{
    timeline moments = {.dev = &dev};
    step_graphs steps = {.timeline = &moments};
    train(&steps, 5);
    ck_assert_int_eq(seen.runs, 18);
    ck_assert_int_eq(seen.recorded, 0);
    step_graphs_close(&steps);
}
END_TEST

START_TEST(failed_recording_is_thrown_away)
{
    timeline moments = {.dev = &dev};
    step_graphs steps = {.timeline = &moments, .enabled = true};
    ck_assert_int_eq(step_graphs_run(&steps, FULL, 0, enqueue, NULL), STATUS_OK);
    seen.fails = true;
    ck_assert_int_eq(step_graphs_run(&steps, FULL, 1, enqueue, NULL), STATUS_DEVICE);
    ck_assert_int_eq(seen.discarded, 1);
    ck_assert_int_eq(seen.launches[0], 0);
    step_graphs_close(&steps);
    ck_assert_int_eq(seen.destroyed, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("step_graphs");
    TCase *core = suite_case(suite, "core", 10);
    tcase_add_checked_fixture(core, setup, NULL);
    tcase_add_test(core, each_size_is_recorded_once);
    tcase_add_test(core, disabled_runs_every_step);
    tcase_add_test(core, failed_recording_is_thrown_away);
    return suite_run(suite);
}
