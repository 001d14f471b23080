/* Learning rates: those of torch.optim.lr_scheduler in every bit (tests/golden/schedules.txt), from
 * wherever a run goes on. */
#include "model/schedule.h"
#include "tests/support/facts.h"
#include "tests/support/suite.h"

#include <string.h>

/* torch's numbers are those of its machine's cos. Another C library's may differ in the last bit,
 * and the chained formulas add such differences up. */
#ifdef __x86_64__
#define ALLOWED 0.0
#else
#define ALLOWED 1e-12
#endif

static FILE *open_golden(void)
{
    char path[4096], version[64];
    const char *source = getenv("SOURCE_DIR");
    snprintf(path, sizeof path, "%s/tests/golden/schedules.txt", source ? source : ".");
    FILE *file = fopen(path, "r");
    ck_assert_msg(file != NULL, "%s (is $SOURCE_DIR set?)", path);
    ck_assert_int_eq(fscanf(file, "torch %63s ", version), 1);
    printf("learning rates of torch %s\n", version);
    fflush(stdout);
    return file;
}

static schedule_options read_case(const char *line)
{
    schedule_options o = {0};
    char kind[16];
    int epochs = 0, epoch_steps = 0, warmup = 0;
    int n = sscanf(line, "case %15s %lf %lf %lf %d %lf %d %d", kind, &o.lr, &o.gamma, &o.pct_start,
                   &warmup, &o.warmup_factor, &epoch_steps, &epochs);
    ck_assert_msg(n == 8, "%s", line);
    ck_assert_int_eq(schedule_kind_parse(kind, &o.kind), STATUS_OK);
    o.warmup_steps = warmup;
    o.epoch_steps = epoch_steps;
    o.total_steps = (int64_t)epochs * epoch_steps;
    return o;
}

START_TEST(as_torch)
{
    FILE *file = open_golden();
    char line[256], name[256] = "";
    schedule s = {0};
    int n_cases = 0, n_lrs = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        int step = 0;
        double want = 0.0;
        if (strncmp(line, "case", 4) == 0) {
            schedule_options o = read_case(line);
            ck_assert_int_eq(schedule_init(&o, &s), STATUS_OK);
            strcpy(name, line);
            n_cases++;
            continue;
        }
        ck_assert_msg(sscanf(line, "%d %lf", &step, &want) == 2, "%s", line);
        double have = schedule_lr(&s, step), off = have > want ? have - want : want - have;
        ck_assert_msg(off <= ALLOWED * want, "%sstep %d: %a, torch has %a", name, step, have, want);
        n_lrs++;
    }
    fclose(file);
    ck_assert_int_ge(n_cases, 14);
    ck_assert_int_ge(n_lrs, 400);
}
END_TEST

/* A resumed run asks for a step without those before it. */
START_TEST(a_step_has_its_lr_wherever_a_run_begins)
{
    schedule_options o = {.kind = (schedule_kind)_i,
                          .lr = 0.1,
                          .gamma = 0.9,
                          .pct_start = 0.3,
                          .warmup_steps = _i == SCHEDULE_ONECYCLE ? 0 : 20,
                          .warmup_factor = 0.1,
                          .epoch_steps = 30,
                          .total_steps = 90};
    schedule all, late;
    ck_assert_int_eq(schedule_init(&o, &all), STATUS_OK);
    for (int step = 0; step < 90; step++) {
        ck_assert_int_eq(schedule_init(&o, &late), STATUS_OK);
        double lr = schedule_lr(&all, step);
        ck_assert(schedule_lr(&late, step) == lr);
        ck_assert(schedule_lr(&late, step) == lr);
        (void)schedule_lr(&late, 89);
        ck_assert(schedule_lr(&late, step) == lr); /* back again */
    }
}
END_TEST

START_TEST(a_warm_up_leaves_the_cosine_steps)
{
    schedule s;
    schedule_options o = {.kind = SCHEDULE_COSINE,
                          .lr = 1,
                          .warmup_steps = 10,
                          .warmup_factor = 0.5,
                          .epoch_steps = 10,
                          .total_steps = 10};
    ck_assert_int_eq(schedule_init(&o, &s), STATUS_INVALID);
    ASSERT_FACTS(status_text(), "10", "--warmup-steps", "--epochs");
    schedule_kind kind = SCHEDULE_STEP;
    ck_assert_int_eq(schedule_kind_parse("linear", &kind), STATUS_INVALID);
    ASSERT_FACTS(status_text(), "linear", "step", "onecycle", "cosine", "none");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("schedule");
    TCase *core = suite_case(suite, "core", 10);
    tcase_add_test(core, as_torch);
    tcase_add_loop_test(core, a_step_has_its_lr_wherever_a_run_begins, 0, SCHEDULE_NONE + 1);
    tcase_add_test(core, a_warm_up_leaves_the_cosine_steps);
    return suite_run(suite);
}
