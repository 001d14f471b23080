/* The cuda device's convolutions if something fails: no leak, and a message that says what. */
#include "tests/kernels/conv_bench.h"
#include "tests/support/facts.h"

static const conv2d_shape INNER = {8, 9, 7, 24, 3, .plain_input = false, .relu = false};
static const char AUTOTUNE[] = "MNIST_DDP_CUDA_AUTOTUNE";

/* Either the failure is told, with the call and the convolution, or another engine was found and
 * the result is right. */
static void fail_at(const char *call, int nth, int code)
{
    const conv2d_shape *s = &INNER;
    char injection[128];
    snprintf(injection, sizeof injection, "%s:%d:%d", call, nth, code);
    setenv("MNIST_DDP_EMULATED_FAIL", injection, 1);
    device *cuda = open_device("cuda", PRECISION_F32);
    data d = make_data(s, 2);
    conv2d *plan = NULL;
    status st = cuda->ops->conv2d_create(cuda, s, 2, &plan);
    if (st == STATUS_OK) {
        cuda->ops->conv2d_destroy(plan);
        bench b = bench_open(cuda, s, &d);
        st = enqueue(&b, 2, false);
        if (st == STATUS_OK) {
            collect(&b, &d);
            device *reference = open_device("reference", PRECISION_F32);
            data want = run_on(reference, s, 2);
            expect_equal(s, PRECISION_F32, &d, &want);
            free_data(&want);
            device_destroy(reference);
        } else {
            ASSERT_FACTS(status_text(), "8->24", "3x3", "9x7");
        }
        bench_close(&b);
    }
    if (st != STATUS_OK)
        ck_assert_msg(facts_in_a_line(status_text(), call, NULL), "%s: %s", injection,
                      status_text());
    free_data(&d);
    device_destroy(cuda);
}

/* Which calls: each kind, early and late. The emulated device's test of leaks ends the process. */
static const struct {
    const char *call;
    int nth, code;
} FAILURES[] = {
    {"cudnnCreate", 1, 1001},
    {"cudnnSetStream", 1, 5000},
    {"cudnnBackendCreateDescriptor", 1, 4003},
    {"cudnnBackendCreateDescriptor", 11, 4003},
    {"cudnnBackendCreateDescriptor", 13, 4003},
    {"cudnnBackendCreateDescriptor", 20, 4003},
    {"cudnnBackendSetAttribute", 1, 2000},
    {"cudnnBackendSetAttribute", 35, 2000},
    {"cudnnBackendSetAttribute", 50, 2000},
    {"cudnnBackendFinalize", 1, 3000},
    {"cudnnBackendFinalize", 9, 3000},
    {"cudnnBackendFinalize", 10, 3000},
    {"cudnnBackendFinalize", 11, 3000},
    {"cudnnBackendFinalize", 14, 3000},
    {"cudnnBackendGetAttribute", 1, 4000},
    {"cudnnBackendGetAttribute", 2, 4000},
    {"cudnnBackendGetAttribute", 4, 4000},
    {"cudnnBackendGetAttribute", 12, 4000},
    {"cudnnBackendExecute", 1, 5000},
    {"cudnnBackendExecute", 2, 5000},
    {"cudnnBackendExecute", 3, 5003},
};
enum { N_FAILURES = sizeof FAILURES / sizeof FAILURES[0] };

START_TEST(failures_are_clean)
{
    setenv("MNIST_DDP_EMULATED_STRICT", "1", 1);
    fail_at(FAILURES[_i].call, FAILURES[_i].nth, FAILURES[_i].code);
}
END_TEST

START_TEST(odd_shapes_are_refused)
{
    static const struct {
        conv2d_shape shape;
        const char *text;
    } odd[] = {
        {{3, 28, 28, 32, 3, .plain_input = true, .relu = true}, "channel"},
        {{1, 28, 28, 24, 3, .plain_input = true, .relu = true}, "8, 16, 32 or 64 output channels"},
        {{1, 99, 28, 32, 3, .plain_input = true, .relu = true}, "pixels"},
        {{1, 28, 28, 32, 3, .plain_input = true, .relu = false}, "with a relu"},
        {{1, 28, 28, 32, 5, .plain_input = true, .relu = false}, "2, 4, 8 or 16 output channels"},
        {{12, 9, 9, 8, 3, .plain_input = false, .relu = false}, "multiples of 8 channels"},
        {{8, 2, 9, 8, 3, .plain_input = false, .relu = false}, "kernel"},
        {{8, 9, 9, 8, 3, .plain_input = false, .relu = true}, "relu"},
    };
    device *cuda = open_device("cuda", PRECISION_F32);
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        conv2d *plan = NULL;
        ck_assert_int_eq(cuda->ops->conv2d_create(cuda, &odd[i].shape, 1, &plan), STATUS_INVALID);
        ASSERT_FACTS(status_text(), odd[i].text);
    }
    conv2d *plan = NULL;
    setenv(AUTOTUNE, "many", 1);
    ck_assert_int_eq(cuda->ops->conv2d_create(cuda, &INNER, 1, &plan), STATUS_INVALID);
    ASSERT_FACTS(status_text(), AUTOTUNE);
    device_destroy(cuda);
}
END_TEST

int main(void)
{
    if (!cuda_choose())
        return TEST_SKIPPED;
    unsetenv(AUTOTUNE);
    Suite *suite = suite_create("cuda_conv_faults");
    TCase *core = suite_case(suite, "core", 60);
    tcase_add_test(core, odd_shapes_are_refused);
    suite_add_all(core, failures_are_clean, N_FAILURES,
                  cuda_is_real() ? "a GPU cannot be told to fail" : cuda_wants_forks());
    return suite_run(suite);
}
