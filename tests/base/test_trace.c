/* A trace keeps what was begun and ended, in the shape in which it happened. */
#include "base/trace.h"

#include "base/clock.h"
#include "base/thread.h"
#include "tests/support/suite.h"

#include <string.h>

static trace *traced;
static trace_lane *lane;

static void open_lane(void)
{
    ck_assert_int_eq(trace_create(&traced), STATUS_OK);
    ck_assert_int_eq(trace_lane_open(traced, "main", TRACE_NESTED, &lane), STATUS_OK);
}

static void close_lane(void)
{
    trace_destroy(traced);
}

static size_t count(void)
{
    size_t dropped = 0;
    return trace_spans(traced, 0, &dropped);
}

static const trace_span *span(size_t i, const char *name)
{
    const trace_span *s = trace_span_at(traced, 0, i);
    ck_assert_str_eq(s->name, name);
    ck_assert_int_le(s->begin_ns, s->end_ns);
    return s;
}

START_TEST(spans_nest)
{
    trace_begin_numbered(lane, "step", 7);
    trace_begin(lane, "conv1", "forward");
    trace_end(lane);
    ck_assert_uint_eq(count(), 1); /* the step goes on */
    trace_end(lane);
    ck_assert_uint_eq(count(), 2);
    const trace_span *inner = span(0, "forward"), *outer = span(1, "step");
    ck_assert_str_eq(inner->of, "conv1");
    ck_assert_str_eq(outer->number_name, "step");
    ck_assert_int_eq(outer->number, 7);
    ck_assert_ptr_null(inner->number_name);
    ck_assert(outer->begin_ns <= inner->begin_ns && inner->end_ns <= outer->end_ns);
    ck_assert(!inner->unfinished && !outer->unfinished);
}
END_TEST

START_TEST(a_span_has_a_number)
{
    trace_begin(lane, NULL, "step");
    trace_begin(lane, "fc1", "forward");
    trace_number(lane, "nonzero_percent", 12);
    trace_end(lane);
    trace_end(lane);
    trace_number(lane, "nonzero_percent", 13); /* of nothing */
    trace_number(NULL, "nonzero_percent", 14);
    ck_assert_str_eq(span(0, "forward")->number_name, "nonzero_percent");
    ck_assert_int_eq(span(0, "forward")->number, 12);
    ck_assert_ptr_null(span(1, "step")->number_name);
}
END_TEST

/* No moment between two phases, and what a phase left open ends with it. */
START_TEST(phases_adjoin)
{
    trace_begin(lane, NULL, "step");
    trace_switch(lane, "forward");
    trace_begin(lane, "conv1", "forward");
    trace_switch(lane, "backward");
    trace_switch(lane, NULL);
    trace_switch(lane, NULL);
    trace_end(lane);
    ck_assert_uint_eq(count(), 4);
    ck_assert_int_eq(span(0, "forward")->end_ns, span(1, "forward")->end_ns);
    ck_assert_int_eq(span(1, "forward")->end_ns, span(2, "backward")->begin_ns);
    ck_assert_int_ge(span(3, "step")->end_ns, span(2, "backward")->end_ns);
}
END_TEST

/* Also a phase that somebody else ends with the span around it. */
START_TEST(a_phase_ends_with_what_holds_it)
{
    trace_begin(lane, NULL, "step");
    trace_switch(lane, "forward");
    trace_end(lane);
    trace_end(lane);
    trace_switch(lane, "data");
    trace_switch(lane, NULL);
    ck_assert_uint_eq(count(), 3);
    span(2, "data");
}
END_TEST

START_TEST(a_pause_keeps_nothing_but_what_broke_off)
{
    trace_begin(lane, NULL, "epoch");
    trace_pause(traced, true);
    trace_begin(lane, NULL, "step");
    trace_end(lane);
    ck_assert_uint_eq(count(), 0);
    trace_span done = {.name = "all_reduce", .begin_ns = clock_now_ns()}, failed = done;
    done.end_ns = failed.end_ns = done.begin_ns;
    failed.unfinished = true;
    trace_add(lane, &done);
    ck_assert_uint_eq(count(), 0);
    trace_add(lane, &failed);
    ck_assert_uint_eq(count(), 1);
    trace_begin(lane, NULL, "step");
    trace_begin(lane, "fc1", "backward");
    trace_break_off(lane);
    ck_assert_uint_eq(count(), 4);
    ck_assert(span(1, "backward")->unfinished && span(2, "step")->unfinished);
    ck_assert(span(3, "epoch")->unfinished);
    trace_pause(traced, false);
    trace_begin(lane, NULL, "after");
    trace_end(lane);
    ck_assert(!span(4, "after")->unfinished);
}
END_TEST

/* What another thread began before ends when it ends. */
START_TEST(a_pause_keeps_what_began_before)
{
    trace_begin(lane, NULL, "reduce");
    trace_pause(traced, true);
    trace_begin(lane, NULL, "part");
    trace_end(lane);
    trace_end(lane);
    trace_pause(traced, false);
    ck_assert_uint_eq(count(), 1);
    span(0, "reduce");
}
END_TEST

/* Depth and number are bounded, and what is past the bounds does no harm. */
START_TEST(bounds_hold)
{
    enum { DEEP = 40 };
    for (int i = 0; i < DEEP; i++)
        trace_begin(lane, NULL, "deep");
    for (int i = 0; i < DEEP; i++)
        trace_end(lane);
    size_t kept = count(), dropped = 0;
    ck_assert_uint_gt(kept, 4);
    ck_assert_uint_le(kept, DEEP);
    trace_span one = {.name = "one"};
    for (size_t i = kept; i < TRACE_SPANS_MAX + 5; i++) {
        one.number = (int64_t)i;
        trace_add(lane, &one);
    }
    ck_assert_uint_eq(trace_spans(traced, 0, &dropped), TRACE_SPANS_MAX);
    ck_assert_uint_eq(dropped, 5);
    for (size_t i = kept; i < TRACE_SPANS_MAX; i++)
        if (trace_span_at(traced, 0, i)->number != (int64_t)i)
            ck_abort_msg("span %zu is another one", i);
    trace_lane *more = NULL;
    for (int i = 1; i < TRACE_LANES_MAX; i++)
        ck_assert_int_eq(trace_lane_open(traced, "more", TRACE_NESTED, &more), STATUS_OK);
    ck_assert_int_eq(trace_lane_open(traced, "more", TRACE_NESTED, &more), STATUS_INVALID);
}
END_TEST

START_TEST(without_a_trace_nothing_happens)
{
    trace_lane *none = lane;
    const char *of = NULL, *name = NULL;
    ck_assert_int_eq(trace_lane_open(NULL, "main", TRACE_NESTED, &none), STATUS_OK);
    ck_assert_ptr_null(none);
    trace_begin(none, NULL, "step");
    trace_begin_numbered(none, "step", 1);
    trace_switch(none, "forward");
    trace_add(none, &(trace_span){.name = "one"});
    trace_end(none);
    trace_break_off(none);
    trace_pause(NULL, true);
    ck_assert(!trace_doing(none, &of, &name));
    trace_destroy(NULL);
}
END_TEST

static void take_a_while(void *arg, int piece)
{
    (void)arg;
    (void)piece;
    clock_sleep_ms(5);
}

/* The team's threads say what its caller does. */
START_TEST(threads_of_a_team_have_lanes)
{
    enum { THREADS = 3, RUNS = 4 };
    team *crew = NULL;
    ck_assert_int_eq(team_create(THREADS, &crew), STATUS_OK);
    ck_assert_int_eq(team_trace(crew, traced, lane), STATUS_OK);
    ck_assert_int_eq(trace_lanes(traced), THREADS);
    team_run(crew, take_a_while, NULL, 2 * THREADS); /* outside of all spans */
    for (int i = 0; i < RUNS; i++) {
        trace_begin(lane, "conv1", i < RUNS / 2 ? "forward" : "backward");
        team_run(crew, take_a_while, NULL, 2 * THREADS);
        trace_end(lane);
    }
    for (int i = 1; i < THREADS; i++) {
        size_t dropped = 0, n = trace_spans(traced, i, &dropped);
        trace_lane_kind kind;
        ck_assert_uint_ge(n, 1);
        ck_assert_uint_le(n, RUNS);
        ck_assert_ptr_nonnull(strstr(trace_lane_name(traced, i, &kind), "of main"));
        for (size_t k = 0; k < n; k++) {
            const trace_span *s = trace_span_at(traced, i, k);
            ck_assert_str_eq(s->of, "conv1");
            bool within = false;
            for (size_t run = 0; run < RUNS; run++) {
                const trace_span *around = trace_span_at(traced, 0, run);
                within =
                    within || (around->begin_ns <= s->begin_ns && s->end_ns <= around->end_ns &&
                               strcmp(around->name, s->name) == 0);
            }
            ck_assert(within);
        }
    }
    team_destroy(crew);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("trace");
    TCase *core = suite_case(suite, "core", 30);
    tcase_add_checked_fixture(core, open_lane, close_lane);
    tcase_add_test(core, spans_nest);
    tcase_add_test(core, a_span_has_a_number);
    tcase_add_test(core, phases_adjoin);
    tcase_add_test(core, a_phase_ends_with_what_holds_it);
    tcase_add_test(core, a_pause_keeps_nothing_but_what_broke_off);
    tcase_add_test(core, a_pause_keeps_what_began_before);
    tcase_add_test(core, bounds_hold);
    tcase_add_test(core, without_a_trace_nothing_happens);
    tcase_add_test(core, threads_of_a_team_have_lanes);
    return suite_run(suite);
}
