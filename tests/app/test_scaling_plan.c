/* What bench scaling makes of its flags, of DDP's buckets, and of what it measured. */
#include "app/bench/scaling.h"
#include "dist/ddp.h"
#include "kernels/device_kind.h"
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

static int count(const scaling_plan *plan, cost_sample_kind kind, int ranks)
{
    int n = 0;
    for (int i = 0; i < plan->n_runs; i++)
        n += plan->runs[i].kind == kind && plan->runs[i].ranks == ranks;
    return n;
}

START_TEST(by_default_all_that_the_fit_needs)
{
    static scaling_plan plan;
    ck_assert_int_eq(plan_of("bench scaling --device cpu", &plan), STATUS_OK);
    ck_assert_int_eq(count(&plan, COST_SAMPLE_ALL_REDUCE, 1), 0);
    ck_assert_int_eq(count(&plan, COST_SAMPLE_ALL_REDUCE, 8), 1);
    ck_assert_int_eq(count(&plan, COST_SAMPLE_DDP, 1), 4); /* two models, two batches */
    ck_assert_int_eq(count(&plan, COST_SAMPLE_DDP, 6), 4);
    ck_assert_int_eq(count(&plan, COST_SAMPLE_MASTER, 1), 0);
    ck_assert_int_eq(count(&plan, COST_SAMPLE_MASTER, 4), 4);
    ck_assert_int_eq(count(&plan, COST_SAMPLE_SERVER, 4), 4);
    ck_assert(scaling_plan_holds_out(&plan, 3) && scaling_plan_holds_out(&plan, 6));
    ck_assert(!scaling_plan_holds_out(&plan, 4));
    ck_assert_int_ge(plan.cores, 1);
    ck_assert_int_eq(plan.gpus, 0);
}
END_TEST

START_TEST(flags_say_what_is_measured_and_projected)
{
    static scaling_plan plan;
    ck_assert_int_eq(
        plan_of("bench scaling --device=cpu --modes=ddp --models=cnn,cnn --world-sizes=1,5,1 "
                "--batch-sizes=7 --hold-out=9 --link-latency-us=3 --link-bandwidth-gbps=8 "
                "--ranks-per-node=4 --images-per-s=50 --project-ranks=77 --project-batch=5 "
                "--project-global-batch=6",
                &plan),
        STATUS_OK);
    ck_assert_int_eq(plan.n_runs, 3);
    ck_assert_int_eq(plan.held_out.n, 1);
    ck_assert_int_eq(plan.runs[2].ranks, 5);
    ck_assert_int_eq(plan.runs[2].batch, 7);
    ck_assert_int_eq(plan.runs[2].model, MODEL_CNN);
    ck_assert_double_eq_tol(plan.cluster.between.latency_s, 3e-6, 1e-15);
    ck_assert_double_eq_tol(plan.cluster.between.s_per_byte, 1e-9, 1e-18); /* 8 Gb/s: 1 GB/s */
    ck_assert_int_eq(plan.cluster.ranks_per_node, 4);
    ck_assert_double_eq(plan.images_per_s, 50);
    ck_assert_int_eq(plan.most_ranks, 77);
    ck_assert_int_eq(plan.rank_batch, 5);
    ck_assert_int_eq(plan.global_batch, 6);
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
    {"--hold-out 1", {"--hold-out", "one"}},
    {"--world-sizes 1,3", {"--hold-out", "above 1"}},
};

START_TEST(nothing_need_be_held_out)
{
    static scaling_plan plan;
    ck_assert_int_eq(plan_of("bench scaling --device cpu --hold-out none", &plan), STATUS_OK);
    ck_assert_int_eq(plan.held_out.n, 0);
}
END_TEST

START_TEST(wrong_lists_are_named)
{
    static scaling_plan plan;
    char line[200];
    snprintf(line, sizeof line, "bench scaling --device cpu %s", REFUSED[_i].flags);
    ck_assert_int_eq(plan_of(line, &plan), STATUS_INVALID);
    ASSERT_FACTS_LISTED(status_text(), REFUSED[_i].facts);
}
END_TEST

/* The projection's last bucket is the one that DDP would make of the model. */
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
    cost_work per_rank = scaling_work((model_kind)_i);
    ck_assert_double_eq(per_rank.last_bytes, (double)(last * sizeof(float)));
    ck_assert_double_eq(per_rank.gradient_bytes, (double)(network_count(net) * sizeof(float)));
    ddp_destroy(reducer);
    process_group_destroy(group);
    network_destroy(net);
    device_destroy(dev);
}
END_TEST

START_TEST(a_star_moves_parameters_and_gradients_and_dp_images_too)
{
    static scaling_plan plan;
    ck_assert_int_eq(plan_of("bench scaling --device cpu", &plan), STATUS_OK);
    double gradients = 4.0 * (double)model_kind_count(MODEL_MLP);
    scaling_run run = {COST_SAMPLE_DDP, MODEL_MLP, 3, 10};
    ck_assert_double_eq(scaling_plan_sample(&plan, &run).bytes, gradients);
    ck_assert(scaling_plan_sample(&plan, &run).held_out);
    run.kind = COST_SAMPLE_SERVER;
    ck_assert_double_eq(scaling_plan_sample(&plan, &run).bytes, 2 * gradients);
    run.kind = COST_SAMPLE_MASTER;
    ck_assert_double_eq(scaling_plan_sample(&plan, &run).bytes,
                        2 * gradients + 10 * (784 * 4 + 2 * 40));
}
END_TEST

START_TEST(repeats_of_a_case_are_one_series)
{
    scaling_measurements m = {.series = NULL};
    cost_sample a = {.kind = COST_SAMPLE_DDP, .ranks = 2, .images = 16, .bytes = 100}, b = a;
    b.images = 64;
    for (int i = 0; i < 9; i++) {
        ck_assert_int_eq(scaling_add(&m, &a, 1 + i), STATUS_OK);
        ck_assert_int_eq(scaling_add(&m, &b, 10 + i), STATUS_OK);
    }
    ck_assert_uint_eq(m.n, 2);
    ck_assert_int_eq(m.series[0].n, 9);
    ck_assert_double_eq(m.series[0].sample.seconds, 5);
    ck_assert_double_eq(m.series[1].sample.seconds, 14);
    scaling_measurements_free(&m);
}
END_TEST

/* What a rank of the cluster computes is its own speed where that is given, else this machine's. */
START_TEST(the_clusters_ranks_compute_as_given_or_as_here)
{
    static scaling_plan plan;
    scaling_measurements m = {.series = NULL};
    cost_fit fit = {
        .cores = 2,
        .image_s = {1e-4, 0},
        .optimizer_s_per_byte = 3e-3 / (4.0 * (double)model_kind_count(MODEL_MLP)),
    };
    scaling_view view = {&plan, &fit, &m, true};
    cost_work per_rank;
    ck_assert_int_eq(plan_of("bench scaling --device cpu", &plan), STATUS_OK);
    m.forward_s[MODEL_MLP] = 1;
    m.backward_s[MODEL_MLP] = 3;
    ck_assert_int_eq(scaling_project_work(&view, MODEL_MLP, &per_rank), STATUS_OK);
    ck_assert_double_eq(per_rank.image_s, 1e-4);
    ck_assert_double_eq_tol(per_rank.step_s, 3e-3, 1e-15);
    ck_assert_double_eq_tol(per_rank.backward_share, 0.75, 1e-12);
    ck_assert_double_eq(per_rank.overlap, 1);
    ck_assert_int_eq(scaling_project_work(&view, MODEL_CNN, &per_rank), STATUS_INVALID);
    ASSERT_FACTS(status_text(), "--images-per-s");
    cost_sample small = {.kind = COST_SAMPLE_DDP, .model = MODEL_CNN, .ranks = 1, .images = 4};
    cost_sample large = small;
    large.images = 16;
    ck_assert_int_eq(scaling_add(&m, &large, 0.008), STATUS_OK);
    ck_assert_int_eq(scaling_add(&m, &small, 0.004), STATUS_OK);
    ck_assert_int_eq(scaling_project_work(&view, MODEL_CNN, &per_rank), STATUS_OK);
    ck_assert_double_eq_tol(per_rank.image_s, 5e-4, 1e-12);
    ck_assert_double_eq(per_rank.step_s, 0);
    plan.images_per_s = 2e4;
    view.overlap = false;
    ck_assert_int_eq(scaling_project_work(&view, MODEL_CNN, &per_rank), STATUS_OK);
    ck_assert_double_eq_tol(per_rank.image_s, 5e-5, 1e-15);
    ck_assert_double_eq(per_rank.step_s, 0);
    ck_assert_double_eq_tol(per_rank.backward_share, 2.0 / 3, 1e-12);
    ck_assert_double_eq(per_rank.overlap, 0);
    scaling_measurements_free(&m);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("scaling_plan");
    TCase *core = suite_case(suite, "core", 20);
    tcase_add_test(core, by_default_all_that_the_fit_needs);
    tcase_add_test(core, flags_say_what_is_measured_and_projected);
    tcase_add_test(core, nothing_need_be_held_out);
    tcase_add_loop_test(core, wrong_lists_are_named, 0, sizeof REFUSED / sizeof REFUSED[0]);
    tcase_add_loop_test(core, the_last_bucket_is_ddps, MODEL_MLP, MODEL_CNN + 1);
    tcase_add_test(core, a_star_moves_parameters_and_gradients_and_dp_images_too);
    tcase_add_test(core, repeats_of_a_case_are_one_series);
    tcase_add_test(core, the_clusters_ranks_compute_as_given_or_as_here);
    return suite_run(suite);
}
