/* What bench scaling makes of its flags and of DDP's buckets. */
#include "app/bench/bench.h"
#include "dist/ddp.h"
#include "kernels/device_kind.h"
#include "model/network.h"
#include "tests/app/support/command_line.h"
#include "tests/support/facts.h"
#include "tests/support/suite.h"

enum { MIB = 1 << 20 };

static status plan_of(const char *line, scaling_plan *plan)
{
    options opts;
    ck_assert_msg(command_line_parse(line, &opts) == STATUS_OK, "%s", status_text());
    status st = scaling_plan_make(&opts, plan);
    options_free(&opts);
    return st;
}

static int count(const scaling_plan *plan, bool is_all_reduce, strategy_kind mode, int ranks)
{
    int n = 0;
    for (int i = 0; i < plan->n_runs; i++) {
        const bench_case *run = &plan->runs[i];
        n += run->is_all_reduce == is_all_reduce && run->world == ranks &&
             (is_all_reduce || run->mode == mode);
    }
    return n;
}

START_TEST(by_default_all_modes_at_all_sizes)
{
    static scaling_plan plan;
    ck_assert_int_eq(plan_of("bench scaling --device cpu", &plan), STATUS_OK);
    ck_assert_int_eq(count(&plan, true, 0, 1), 0);
    ck_assert_int_eq(count(&plan, true, 0, 8), 1);
    ck_assert_int_eq(count(&plan, false, STRATEGY_DDP, 1), 4); /* two models, two batches */
    ck_assert_int_eq(count(&plan, false, STRATEGY_DDP, 6), 4);
    ck_assert_int_eq(count(&plan, false, STRATEGY_DP, 1), 0);
    ck_assert_int_eq(count(&plan, false, STRATEGY_DP, 4), 4);
    ck_assert_int_eq(count(&plan, false, STRATEGY_PS, 4), 4);
    ck_assert_int_ge(plan.cores, 1);
    ck_assert_int_eq(plan.gpus, 0);
}
END_TEST

START_TEST(flags_say_what_is_measured)
{
    static scaling_plan plan;
    ck_assert_int_eq(
        plan_of("bench scaling --device=cpu --modes=ddp --models=cnn,cnn --world-sizes=1,5,1 "
                "--batch-sizes=7",
                &plan),
        STATUS_OK);
    ck_assert_int_eq(plan.n_runs, 3);
    ck_assert_int_eq(plan.runs[2].world, 5);
    ck_assert_int_eq(plan.runs[2].batch, 7);
    ck_assert_int_eq(plan.runs[2].global_batch, 5 * 7);
    ck_assert_int_eq(plan.runs[2].model, MODEL_CNN);
}
END_TEST

static const struct {
    const char *flags, *facts[6];
} REFUSED[] = {
    {"--modes dq", {"--modes", "dq", "single", "ddp", "ps"}},
    {"--models lenet", {"lenet"}},
    {"--world-sizes 1,x", {"--world-sizes", "1,x"}},
    {"--world-sizes 1,,2", {"--world-sizes", "1,,2"}},
    {"--world-sizes 2,4", {"--world-sizes", "1"}},
    {"--batch-sizes 0", {"--batch-sizes", "0"}},
};

START_TEST(wrong_lists_are_named)
{
    static scaling_plan plan;
    char line[200];
    snprintf(line, sizeof line, "bench scaling --device cpu %s", REFUSED[_i].flags);
    ck_assert_int_eq(plan_of(line, &plan), STATUS_INVALID);
    ASSERT_FACTS_LISTED(status_text(), REFUSED[_i].facts);
}
END_TEST

/* The last bucket is the one that DDP would make of the model. */
START_TEST(the_last_bucket_is_ddps)
{
    device_options on = {.name = "reference", .threads = 1};
    process_group_options alone = {.world_size = 1, .backend = "shm", .timeout_ms = 1000};
    ddp_options buckets = {.first_bucket_bytes = MIB, .bucket_cap_bytes = 25 * MIB};
    network_options settings = {.kind = (model_kind)_i, .max_batch = 1};
    device *dev;
    network *net;
    process_group *group;
    ddp *reducer;
    const parameter *parameters;
    size_t offsets[NETWORK_MAX_PARAMETERS], offset, last;
    ck_assert_int_eq(device_create(&on, &dev), STATUS_OK);
    ck_assert_int_eq(network_create(dev, &settings, &net), STATUS_OK);
    ck_assert_int_eq(process_group_create(&alone, &group), STATUS_OK);
    size_t n = network_layout(net, &parameters);
    for (size_t i = 0; i < n; i++)
        offsets[i] = parameters[i].offset;
    ck_assert_int_eq(ddp_create(group, network_gradients(net),
                                &(ddp_parameters){network_count(net), offsets, n}, &buckets,
                                &reducer),
                     STATUS_OK);
    ddp_bucket(reducer, ddp_buckets(reducer) - 1, &offset, &last);
    ck_assert_double_eq(scaling_last_bucket_bytes((model_kind)_i), (double)(last * sizeof(float)));
    ddp_destroy(reducer);
    process_group_destroy(group);
    network_destroy(net);
    device_destroy(dev);
}
END_TEST

START_TEST(a_star_moves_parameters_and_gradients_and_dp_images_too)
{
    double gradients = 4.0 * (double)model_kind_count(MODEL_MLP);
    bench_case run = {.mode = STRATEGY_DDP, .model = MODEL_MLP, .world = 3, .batch = 10};
    ck_assert_double_eq(scaling_bytes(&run), gradients);
    run.mode = STRATEGY_PS;
    ck_assert_double_eq(scaling_bytes(&run), 2 * gradients);
    run.mode = STRATEGY_DP;
    ck_assert_double_eq(scaling_bytes(&run), 2 * gradients + 10 * (784 * 4 + 2 * 40));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("scaling_plan");
    TCase *core = suite_case(suite, "core", 20);
    tcase_add_test(core, by_default_all_modes_at_all_sizes);
    tcase_add_test(core, flags_say_what_is_measured);
    tcase_add_loop_test(core, wrong_lists_are_named, 0, sizeof REFUSED / sizeof REFUSED[0]);
    tcase_add_loop_test(core, the_last_bucket_is_ddps, MODEL_MLP, MODEL_CNN + 1);
    tcase_add_test(core, a_star_moves_parameters_and_gradients_and_dp_images_too);
    return suite_run(suite);
}
