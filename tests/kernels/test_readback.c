/* What is read back is what stood there when it was asked for, however late it comes. */
#include "kernels/device_kind.h"
#include "kernels/ops.h"
#include "kernels/readback.h"
#include "tests/support/fake_accelerator.h"
#include "tests/support/suite.h"

enum { COUNT = 3 };

static void expect_ok(status st)
{
    ck_assert_msg(st == STATUS_OK, "%s", status_text());
}

static float first_seen(const readback *r)
{
    return *(const float *)r->seen;
}

START_TEST(an_accelerator_may_go_on)
{
    device *dev = NULL;
    readback r;
    void *data = NULL;
    expect_ok(fake_accelerator_open(0, &dev));
    expect_ok(dev->ops->alloc(dev, COUNT * sizeof(float), &data));
    expect_ok(readback_open(dev, COUNT * sizeof(float), &r));
    for (int turn = 1; turn <= 3; turn++) {
        expect_ok(fake_accelerator_fill(dev, data, COUNT, (float)turn));
        expect_ok(readback_start(&r, data));
        expect_ok(fake_accelerator_fill(dev, data, COUNT, -1));
        ck_assert(first_seen(&r) == (float)(turn - 1)); /* it has not come yet */
        expect_ok(readback_wait(&r));
        ck_assert(first_seen(&r) == (float)turn && !r.under_way);
    }
    expect_ok(readback_start(&r, data));
    readback_close(&r); /* with a copy on its way */
    readback_close(&r);
    dev->ops->free(dev, data);
    ck_assert_int_eq(fake_accelerator_strays(dev), 0);
    fake_accelerator_close(dev);
}
END_TEST

START_TEST(host_memory_is_there_at_once)
{
    static const device_options options = {.name = "reference", .threads = 1};
    device *dev = NULL;
    readback r;
    float data = 5;
    expect_ok(device_create(&options, &dev));
    expect_ok(readback_open(dev, sizeof data, &r));
    expect_ok(readback_start(&r, &data));
    data = 6;
    expect_ok(readback_wait(&r));
    ck_assert(first_seen(&r) == 5.0f);
    readback_close(&r);
    device_destroy(dev);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("readback");
    TCase *core = suite_case(suite, "core", 10);
    tcase_add_test(core, an_accelerator_may_go_on);
    tcase_add_test(core, host_memory_is_there_at_once);
    return suite_run(suite);
}
