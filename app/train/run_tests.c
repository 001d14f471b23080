#include "app/train/run_tests.h"

#include "base/memory.h"
#include "model/checkpoint.h"

#include <stdlib.h>

bool run_tests_validate(const run_tests *tests)
{
    return tests->rank->val_set.count > 0;
}

status run_tests_open(rank_context *rank, result *found, run_tests *out)
{
    size_t count = (size_t)rank->test_set.count * NETWORK_CLASSES;
    *out = (run_tests){.rank = rank, .result = found};
    out->monitored = run_tests_validate(out) ? &found->validation : &found->test;
    if (rank->opts->dry_run || rank->settings.eval_every.count == 0)
        return STATUS_OK;
    return memory_alloc(sizeof *out->logits * count, (void **)&out->logits);
}

void run_tests_close(run_tests *tests)
{
    free(tests->logits);
    *tests = (run_tests){0};
}

static status take(run_tests *tests, const dataset *set, float *logits, evaluation *out)
{
    timeline *time = &tests->rank->timeline;
    TRY(timeline_enter(time, MOMENT_EVALUATION));
    TRY(evaluate(tests->rank, set, logits, out));
    return timeline_enter(time, MOMENT_BETWEEN);
}

status run_tests_take(run_tests *tests, const position *at, bool may_be_last)
{
    rank_context *rank = tests->rank;
    evaluation *found = tests->monitored;
    bool validates = run_tests_validate(tests);
    TRY(take(tests, validates ? &rank->val_set : &rank->test_set,
             !validates && may_be_last ? tests->logits : NULL, found));
    tests->found =
        (test_found){{found->images, found->correct, found->loss}, at->step, at->epoch + 1};
    return STATUS_OK;
}

const checkpoint_test *run_tests_at(const run_tests *tests, int64_t step)
{
    bool tested = tests->found.test.images > 0 && tests->found.step == step;
    return tested ? &tests->found.test : NULL;
}

bool run_tests_found_best(const run_tests *tests, int64_t step)
{
    const checkpoint_test *found = run_tests_at(tests, step);
    return found != NULL && best_checkpoint_is_better(found, &tests->result->best.test);
}

void run_tests_keep_best(run_tests *tests)
{
    tests->result->best = tests->found;
}

status run_tests_take_last(run_tests *tests)
{
    return take(tests, &tests->rank->test_set, tests->logits, &tests->result->test);
}

bool run_tests_reach_target(const run_tests *tests)
{
    double target = tests->rank->opts->target_acc;
    return target >= 0 &&
           evaluation_accuracy(tests->monitored) >= (target > 1 ? target / 100 : target);
}
