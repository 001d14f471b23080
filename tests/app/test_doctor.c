/* What doctor finds before a run, and what env tells about this machine. */
#include "tests/app/support/run_command.h"
#include "tests/app/support/test_folder.h"
#include "tests/app/support/training.h"
#include "tests/support/facts.h"
#include "tests/support/port.h"

#include <jansson.h>

static json_t *parsed_json(const char *text)
{
    json_error_t error;
    json_t *object = json_loads(text, 0, &error);
    ck_assert_msg(object != NULL, "%s in: %s", error.text, text);
    return object;
}

START_TEST(a_good_machine_has_no_failures)
{
    program p = program_run_line("doctor --nproc-per-node=2");
    ASSERT_EXIT(p, 0);
    ASSERT_FACTS(p.out, "ok", "settings", "1 node", "2 ranks", "world size 2");
    ASSERT_FACTS(p.out, "ok", "port");
    ASSERT_FACTS(p.out, "ok", "data", "600 train", "250 test");
    ASSERT_FACTS(p.out, "0 failed");
    program_close(&p);
}
END_TEST

START_TEST(json_says_the_same)
{
    program p = program_run_line("doctor --json");
    ASSERT_EXIT(p, 0);
    json_t *object = parsed_json(p.out);
    ck_assert(json_is_true(json_object_get(object, "ok")));
    ck_assert_int_eq(json_integer_value(json_object_get(object, "failed")), 0);
    const json_t *checks = json_object_get(object, "checks");
    ck_assert_uint_gt(json_array_size(checks), 8);
    for (size_t i = 0; i < json_array_size(checks); i++) {
        const json_t *check = json_array_get(checks, i);
        ck_assert(json_is_string(json_object_get(check, "name")));
        ck_assert(json_is_string(json_object_get(check, "level")));
        ck_assert(json_is_string(json_object_get(check, "text")));
    }
    json_decref(object);
    program_close(&p);
}
END_TEST

static const struct {
    const char *flags;
    int code;
    const char *facts[5];
} PROBLEMS[] = {
    {"--nnodes=3 --node-rank=5", 64, {"failed", "settings", "--node-rank=5", "3"}},
    {"--data-dir=/nowhere", 65, {"failed", "data", "--data-dir", "/nowhere"}},
    {"--backend=nonsense", 64, {"failed", "backend", "nonsense"}},
    {"--backend=shm --nnodes=2 --master-addr=127.0.0.1 --master-port=%d",
     69,
     {"failed", "backend", "shm", "2"}},
    {"--nnodes=2 --node-rank=1 --master-addr=no-such-host.invalid",
     69,
     {"failed", "node 0", "no-such-host.invalid:29500", "no such host"}},
    {
        "--nnodes=2 --node-rank=1 --master-addr=127.0.0.1 --master-port=%d",
        0,
        {"warning", "node 0", "127.0.0.1:"},
    },
    {"--global-batch-size=3 --nproc-per-node=2", 64, {"failed", "settings", "3", "2 ranks"}},
    {"train --inject=kill:rank=2,step=1", 64, {"failed", "settings", "--inject", "rank 2"}},
    {"--run-dir=occupied/run", 74, {"failed", "results", "occupied", "--run-dir"}},
    {"--run-dir=run/again", 74, {"failed", "results", "run/again", "--resume"}},
    {"--resume --run-dir=nothing", 74, {"failed", "results", "nothing", "checkpoint"}},
    {"--resume", 64, {"failed", "results", "runs", "mnist_ddp resume RUN"}},
    {"--trace=occupied/trace.json", 74, {"failed", "results", "occupied", "--trace"}},
    {"run --log-dir=occupied/logs -- true", 74, {"failed", "results", "occupied", "--log-dir"}},
    {"run --nproc-per-node=2 no-such.py", 64, {"failed", "settings", "no-such.py"}},
    {"--device=cuda --no-accel --nproc-per-node=700", 0, {"warning", "cores", "700 ranks", "CPU"}},
};

/* Nodes need gloo to talk, or that is the problem. */
static const char *missing_for(const char *flags, int code)
{
    bool needs_gloo = code == 0 && strstr(flags, "--nnodes") != NULL;
    return needs_gloo && !training_has_gloo() ? "gloo is not in this build" : NULL;
}

START_TEST(problems_are_found)
{
    char line[RUN_LINE_BYTES], flags[RUN_LINE_BYTES];
    snprintf(flags, sizeof flags, "%s", PROBLEMS[_i].flags);
    char *mark = strstr(flags, "%d");
    if (mark != NULL)
        snprintf(mark, sizeof flags - (size_t)(mark - flags), "%d", port_find_free());
    snprintf(line, sizeof line, "doctor %.1900s", flags);
    program p = program_run_line(line);
    ASSERT_FACTS_LISTED(p.out, PROBLEMS[_i].facts);
    ASSERT_EXIT(p, PROBLEMS[_i].code);
    program_close(&p);
}
END_TEST

/* What stands after "doctor" is any command line of train or run. */
static const char *const LINES[] = {
    "doctor --batch-size 3 --lr 0.1 --optimizer sgd --momentum 0.9 --epochs 2 --run-dir new",
    "doctor train --mode dp --replicas 2 --no-save-model --log-format plain --json",
    "doctor --resume=auto --run-dir run/again --model mlp",
    "doctor run --max-restarts 1 --role x --nproc-per-node 2 -- true --epochs nonsense",
};

/* Nothing is to be lost that a run says. */
START_TEST(a_log_that_cannot_be_kept_is_told)
{
    test_folder_require(file_make_folders("unlogged/train.log"));
    program p = program_run_line("doctor --run-dir=unlogged");
    ASSERT_EXIT(p, 0);
    ASSERT_FACTS(p.out, "warning", "results", "unlogged/train.log", "Is a directory");
    program_close(&p);
}
END_TEST

START_TEST(a_real_command_line_is_looked_at)
{
    program p = program_run_line(LINES[_i]);
    ASSERT_EXIT(p, 0);
    ASSERT_FACTS(p.out, "settings", "world size");
    ck_assert(!file_exists("new"));
    program_close(&p);
}
END_TEST

START_TEST(a_taken_port_has_a_holder)
{
    char line[128];
    int port = 0, fd = port_listen(&port);
    snprintf(line, sizeof line, "doctor --master-port=%d", port);
    program p = program_run_line(line);
    ASSERT_EXIT(p, 69);
    ASSERT_FACTS(p.out, "failed", "port", program_flag("pid ", (int)getpid()), "free");
    close(fd);
    program_close(&p);
}
END_TEST

/* A port that somebody listens at need not be node 0's. */
START_TEST(a_stranger_is_not_node_0)
{
    char line[128];
    int port = 0, fd = port_listen(&port);
    snprintf(line, sizeof line,
             "doctor --nnodes=2 --node-rank=1 --master-addr=127.0.0.1 --master-port=%d", port);
    program p = program_run_line(line);
    ASSERT_EXIT(p, 69);
    ASSERT_FACTS(p.out, "failed", "node 0", "mnist_ddp", program_flag("127.0.0.1:", port));
    close(fd);
    program_close(&p);
}
END_TEST

START_TEST(variables_are_looked_at)
{
    setenv("RANK", "0", 1);
    setenv("GLOO_SOCKET_IFNAME", "nosuch0", 1);
    program p = program_run_line("doctor");
    ASSERT_EXIT(p, 69);
    ASSERT_FACTS(p.out, "RANK=0");
    ASSERT_FACTS(p.out, "failed", "GLOO_SOCKET_IFNAME=nosuch0", "interface");
    program_close(&p);
}
END_TEST

START_TEST(env_is_one_block_without_secrets)
{
    setenv("NCCL_DEBUG", "WARN", 1);
    setenv("MNIST_DDP_SECRET", "hush", 1);
    setenv("PET_AUTH_TOKEN", "hush", 1);
    setenv("HOME_OF", "hush", 1);
    setenv("PET_RDZV_ENDPOINT", "https://root:hush@h:1", 1);
    program p = program_run_line("env");
    ASSERT_EXIT(p, 0);
    ASSERT_FACTS(p.out, "mnist_ddp", "0.");
    ASSERT_FACTS(p.out, "kernel");
    ASSERT_FACTS(p.out, "processor");
    ASSERT_FACTS(p.out, "module gloo");
    ASSERT_FACTS(p.out, "NCCL_DEBUG=WARN");
    ASSERT_NO_FACTS(p.out, "hush");
    program_close(&p);
    p = program_run_line("env --json");
    ASSERT_EXIT(p, 0);
    json_t *object = parsed_json(p.out);
    ck_assert(json_is_string(json_object_get(object, "kernel")));
    ck_assert(json_is_array(json_object_get(object, "variables")));
    json_decref(object);
    program_close(&p);
}
END_TEST

#define COUNT(table) ((int)(sizeof(table) / sizeof(table)[0]))

int main(void)
{
    program_clean_environment();
    test_folder_open();
    test_folder_require(file_write(test_folder_path("occupied"), &(file_part){"a file", 6}, 1));
    test_folder_require(file_make_folders(test_folder_path("run/again/checkpoints")));
    Suite *suite = suite_create("doctor");
    TCase *core = suite_case(suite, "core", RUN_S);
    tcase_add_test(core, a_good_machine_has_no_failures);
    tcase_add_test(core, json_says_the_same);
    for (int i = 0; i < (int)COUNT(PROBLEMS); i++)
        suite_add(core, problems_are_found, i, missing_for(PROBLEMS[i].flags, PROBLEMS[i].code));
    tcase_add_loop_test(core, a_real_command_line_is_looked_at, 0, COUNT(LINES));
    tcase_add_test(core, a_log_that_cannot_be_kept_is_told);
    tcase_add_test(core, a_taken_port_has_a_holder);
    tcase_add_test(core, a_stranger_is_not_node_0);
    tcase_add_test(core, variables_are_looked_at);
    tcase_add_test(core, env_is_one_block_without_secrets);
    return test_folder_close(suite_run(suite));
}
