/* Lines about steps come in order, each with its own loss, however late an accelerator tells it;
 * and it is not waited for while there is time. */
#include "app/train/run_records.h"

#include "kernels/device_kind.h"
#include "kernels/ops.h"
#include "tests/support/fake_accelerator.h"
#include "tests/support/suite.h"

#include <stdlib.h>
#include <string.h>

static void expect_ok(status st)
{
    ck_assert_msg(st == STATUS_OK, "%s", status_text());
}

/* What the report has printed so far. */
typedef struct page {
    options opts;
    rank_context rank;
    progress rep;
    result found;
    run_records records;
    char *text;
    size_t size_bytes;
} page;

static void open_page(page *p, device *dev)
{
    *p = (page){.opts = {.epochs = 2, .log_interval = 1}};
    p->rank.opts = &p->opts;
    p->rep = (progress){.rank = &p->rank, .style = PROGRESS_PLAIN, .prints = true};
    p->rep.out = open_memstream(&p->text, &p->size_bytes);
    ck_assert_ptr_nonnull(p->rep.out);
    fflush(p->rep.out);
    p->rank.dev = dev;
    p->records = (run_records){.progress = &p->rep, .result = &p->found};
    expect_ok(run_records_open(&p->rank, &p->records));
}

static void expect_text(page *p, const char *want)
{
    fflush(p->rep.out);
    ck_assert_str_eq(p->text, want);
}

static void close_page(page *p)
{
    fclose(p->rep.out);
    free(p->text);
}

static void add_step(page *p, device *dev, score *totals, int step)
{
    const score behind = {.last_loss = 0.5 * (step + 1)};
    const step_facts made = {.step = step, .steps = 9};
    expect_ok(dev->ops->copy(dev, totals, &behind, sizeof behind));
    expect_ok(run_records_publish_step(&p->records, &made, totals));
    if (dev->ops->accelerator != NULL)
        expect_ok(dev->ops->synchronize(dev)); /* `behind` is this function's */
}

#define FIRST "epoch 1/2 step 1/9 loss 0.5000\n"
#define SECOND "epoch 1/2 step 2/9 loss 1.0000\n"

START_TEST(an_accelerators_line_comes_one_line_late)
{
    page p;
    device *dev = NULL;
    void *totals = NULL;
    expect_ok(fake_accelerator_open(0, &dev));
    expect_ok(dev->ops->alloc(dev, sizeof(score), &totals));
    open_page(&p, dev);
    expect_ok(run_records_say(&p.records));
    add_step(&p, dev, totals, 0);
    expect_text(&p, "");
    add_step(&p, dev, totals, 1);
    expect_text(&p, FIRST);
    for (int again = 0; again < 2; again++) {
        expect_ok(run_records_say(&p.records));
        expect_text(&p, FIRST SECOND);
    }
    run_records_close(&p.records);
    run_records_close(&p.records);
    dev->ops->free(dev, totals);
    fake_accelerator_close(dev);
    close_page(&p);
}
END_TEST

START_TEST(a_hosts_line_comes_at_once)
{
    static const device_options reference = {.name = "reference", .threads = 1};
    page p;
    score totals;
    device *dev = NULL;
    expect_ok(device_create(&reference, &dev));
    open_page(&p, dev);
    add_step(&p, dev, &totals, 0);
    expect_text(&p, FIRST);
    add_step(&p, dev, &totals, 1);
    expect_text(&p, FIRST SECOND);
    run_records_close(&p.records);
    device_destroy(dev);
    close_page(&p);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("step_log");
    TCase *core = suite_case(suite, "core", 10);
    tcase_add_test(core, an_accelerators_line_comes_one_line_late);
    tcase_add_test(core, a_hosts_line_comes_at_once);
    return suite_run(suite);
}
