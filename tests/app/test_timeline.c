/* A moment is entered once: its time, its place in the rank's status and the waiting come from the
 * table. */
#include "app/train/timeline.h"

#include "base/clock.h"
#include "kernels/device_kind.h"
#include "tests/support/suite.h"

#include <string.h>

static void expect_ok(status st)
{
    ck_assert_msg(st == STATUS_OK, "%s", status_text());
}

/* A new row is not forgotten half-way. */
START_TEST(every_moment_has_its_row)
{
    for (int m = 0; m < N_MOMENTS; m++) {
        const moment_facts *facts = moment_about((moment)m);
        ck_assert_msg(facts->doing != NULL, "moment %d is not in the table", m);
        ck_assert_int_lt(facts->phase, N_PHASES);
        ck_assert_msg(m >= N_PHASES || (facts->name != NULL && (int)facts->phase == m),
                      "phase %d is counted as %d", m, (int)facts->phase);
    }
}
END_TEST

typedef struct host_rank {
    device *dev;
    rank_status *page;
    run_trace none;
    timeline line;
} host_rank;

static void open_rank(host_rank *r)
{
    static const device_options reference = {.name = "reference", .threads = 1};
    static const rank_status_options alone = {.world_size = 1};
    *r = (host_rank){.dev = NULL};
    expect_ok(device_create(&reference, &r->dev));
    expect_ok(rank_status_create(&alone, &r->page));
    timeline_open(r->dev, r->page, &r->none, &r->line);
}

static void close_rank(host_rank *r)
{
    timeline_close(&r->line);
    rank_status_destroy(r->page);
    device_destroy(r->dev);
}

static void spend(host_rank *r, moment m, int ms)
{
    expect_ok(timeline_enter(&r->line, m));
    clock_sleep_ms(ms);
}

static int64_t sum_of(const timeline *line)
{
    int64_t sum = 0;
    for (int i = 0; i < N_PHASES; i++)
        sum += line->ns[i];
    return sum;
}

START_TEST(time_is_counted_inside_an_epoch_only)
{
    const int64_t ms = 1000000;
    host_rank r;
    open_rank(&r);
    spend(&r, MOMENT_EVALUATION, 5);
    int64_t began_ns = clock_now_ns();
    timeline_count_from_here(&r.line);
    expect_ok(timeline_begin_steps(&r.line));
    spend(&r, MOMENT_FORWARD, 5);
    spend(&r, MOMENT_DDP_WAIT, 10);
    spend(&r, MOMENT_CHECKPOINT, 5);
    expect_ok(timeline_stop_counting(&r.line));
    int64_t all_ns = clock_now_ns() - began_ns;
    spend(&r, MOMENT_CHECKPOINT, 5);
    expect_ok(timeline_enter(&r.line, MOMENT_LEAVE));
    ck_assert_int_ge(r.line.ns[MOMENT_FORWARD], 5 * ms);
    ck_assert_int_ge(r.line.ns[MOMENT_REDUCE], 10 * ms); /* what ddp waits for */
    ck_assert_int_ge(r.line.ns[MOMENT_LOAD], 5 * ms);    /* what lies between two steps */
    ck_assert_int_le(sum_of(&r.line), all_ns);
    ck_assert_int_ge(sum_of(&r.line), 20 * ms);
    ck_assert_int_eq(timeline_exposed_ns(&r.line), r.line.ns[MOMENT_REDUCE]);
    timeline_waited(&r.line, MOMENT_REDUCE, 3 * ms);
    ck_assert_int_eq(r.line.ns[MOMENT_WAITING], 3 * ms);
    ck_assert_int_ge(r.line.ns[MOMENT_REDUCE], 7 * ms);
    close_rank(&r);
}
END_TEST

START_TEST(the_status_says_what_the_rank_does)
{
    host_rank r;
    rank_snapshot sight;
    open_rank(&r);
    rank_status_look(r.page, &sight);
    ck_assert_ptr_nonnull(strstr(sight.doing, "starting"));
    for (int m = 0; m < N_MOMENTS; m++) {
        expect_ok(timeline_enter(&r.line, (moment)m));
        rank_status_look(r.page, &sight);
        ck_assert_ptr_nonnull(strstr(sight.doing, moment_about((moment)m)->doing));
    }
    expect_ok(timeline_begin_step(&r.line, 2, 31));
    rank_status_look(r.page, &sight);
    ck_assert_ptr_nonnull(strstr(sight.doing, "in the data loader, step 31 in epoch 3"));
    close_rank(&r);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("timeline");
    TCase *core = suite_case(suite, "core", 30);
    tcase_add_test(core, every_moment_has_its_row);
    tcase_add_test(core, time_is_counted_inside_an_epoch_only);
    tcase_add_test(core, the_status_says_what_the_rank_does);
    return suite_run(suite);
}
