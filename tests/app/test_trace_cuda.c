/* --trace on the cuda device: what the host enqueues and what the device then does are apart. Runs
 * on the emulated device, or with MNIST_DDP_TEST_DEVICE=real on that of the machine. */
#include "tests/app/support/model_file.h"
#include "tests/app/support/trace_file.h"
#include "tests/app/support/training.h"
#include "tests/support/cuda.h"

enum { STEPS = 4 };

#define TRACED \
    TRAINING_SGD, "--model", "mlp", "--device", "cuda", "--epochs", "1", "--limit", "32", \
        "--json", "--quiet", "--no-save-model", "--run-dir", "run", "--trace", "trace.json", \
        "--backend", "auto"

/* How often each of a rank's threads, main and stream, has a span of this name. */
static void expect(const json_t *doc, int rank, const char *name, int host, int stream)
{
    int main_thread = trace_file_thread(doc, rank, "main");
    int stream_thread = trace_file_thread(doc, rank, "cuda stream of main");
    int on_host = 0, on_stream = 0;
    const json_t *event = NULL;
    size_t i = 0;
    ck_assert_int_gt(stream_thread, 0);
    json_array_foreach(json_object_get(doc, "traceEvents"), i,
                       event) if (trace_file_is(event, rank, -1, name))
    {
        on_host += trace_file_integer(event, "tid") == main_thread;
        on_stream += trace_file_integer(event, "tid") == stream_thread;
    }
    ck_assert_msg(on_host == host && on_stream == stream,
                  "rank %d, %s: %d times on the host, %d on the stream; want %d and %d", rank, name,
                  on_host, on_stream, host, stream);
}

START_TEST(layers_are_timed_on_the_stream)
{
    program p = program_mnist(TRACED, "--no-cuda-graph", "--nproc-per-node", _i == 0 ? "1" : "2",
                              "--batch-size", _i == 0 ? "8" : "4", NULL);
    ASSERT_EXIT(p, 0);
    json_t *doc = trace_file_read("trace.json");
    trace_file_check(doc);
    for (int rank = 0; rank <= _i; rank++) {
        static const char *const names[] = {"fc1 forward", "fc2 forward",  "fc3 forward",
                                            "loss",        "fc1 backward", "fc3 backward",
                                            "forward",     "backward",     "optimizer"};
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
            expect(doc, rank, names[i], STEPS, STEPS);
        expect(doc, rank, "step", STEPS, 0);
        expect(doc, rank, "graph", 0, 0);
    }
    json_decref(doc);
    program_close(&p);
}
END_TEST

/* The first step runs as it is, the second one is recorded and replayed, as all that follow. */
START_TEST(replayed_steps_are_one_span)
{
    program p = program_mnist(TRACED, "--cuda-graph", "--batch-size", "8", NULL);
    ASSERT_EXIT(p, 0);
    ASSERT_SAYS(p.out, "\"graph\":true");
    json_t *doc = trace_file_read("trace.json");
    trace_file_check(doc);
    expect(doc, 0, "step", STEPS, 0);
    expect(doc, 0, "graph", STEPS - 1, STEPS - 1);
    expect(doc, 0, "fc1 forward", 2, 1);
    json_decref(doc);
    program_close(&p);
}
END_TEST

/* A lane keeps so many spans inside one another: each step must end its own. */
START_TEST(many_replayed_steps_are_all_kept)
{
    enum { MANY = 32 };
    program p = program_mnist(TRACED, "--cuda-graph", "--batch-size", "1", NULL);
    ASSERT_EXIT(p, 0);
    json_t *doc = trace_file_read("trace.json");
    trace_file_check(doc);
    expect(doc, 0, "step", MANY, 0);
    expect(doc, 0, "graph", MANY - 1, MANY - 1);
    json_decref(doc);
    program_close(&p);
}
END_TEST

int main(void)
{
    if (!cuda_choose())
        return TEST_SKIPPED;
    test_folder_open();
    Suite *suite = suite_create("trace_cuda");
    TCase *runs = suite_case(suite, "runs", 240);
    tcase_add_checked_fixture(runs, test_folder_clean, NULL);
    tcase_add_loop_test(runs, layers_are_timed_on_the_stream, 0, 2);
    tcase_add_test(runs, replayed_steps_are_one_span);
    tcase_add_test(runs, many_replayed_steps_are_all_kept);
    return test_folder_close(suite_run(suite));
}
