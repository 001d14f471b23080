/* mnist_ddp run on one machine: what the program gets, what becomes of what it says, and how the
 * launcher ends. The program is a shell script; Python is a script that prints its arguments. */
#include "tests/app/run_lines.h"

#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* As torchrun sets them (NODE_RANK is ours), and what the launcher adds for its own ranks. */
static const char *const VARIABLES[] = {"RANK",
                                        "LOCAL_RANK",
                                        "WORLD_SIZE",
                                        "LOCAL_WORLD_SIZE",
                                        "GROUP_RANK",
                                        "GROUP_WORLD_SIZE",
                                        "ROLE_RANK",
                                        "ROLE_WORLD_SIZE",
                                        "ROLE_NAME",
                                        "NODE_RANK",
                                        "MASTER_ADDR",
                                        "MASTER_PORT",
                                        "TORCHELASTIC_RESTART_COUNT",
                                        "TORCHELASTIC_MAX_RESTARTS",
                                        "TORCHELASTIC_RUN_ID",
                                        "TORCHELASTIC_USE_AGENT_STORE",
                                        "TORCHELASTIC_ERROR_FILE",
                                        "TORCHELASTIC_SIGNALS_TO_HANDLE",
                                        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
                                        "OMP_NUM_THREADS"};
enum { N_VARIABLES = sizeof VARIABLES / sizeof VARIABLES[0] };

static const char *value_of(const char *text, const char *name)
{
    static char value[512];
    char key[64];
    snprintf(key, sizeof key, "\n%s=", name);
    const char *at = strncmp(text, key + 1, strlen(key + 1)) == 0 ? text : strstr(text, key);
    ck_assert_msg(at != NULL, "no %s in:\n%s", name, text);
    at = strchr(at + 1, '=') + 1;
    snprintf(value, sizeof value, "%.*s", (int)strcspn(at, "\n"), at);
    return value;
}

START_TEST(the_environment_is_torchruns)
{
    program p = run_script("--nproc-per-node=2 --max-restarts=3 --role trainer --rdzv-id job7",
                           "env > env.$RANK");
    ASSERT_EXIT(p, 0);
    for (int rank = 0; rank < 2; rank++) {
        char number[16], *text = run_file(rank == 0 ? "env.0" : "env.1");
        snprintf(number, sizeof number, "%d", rank);
        for (int i = 0; i < N_VARIABLES; i++)
            value_of(text, VARIABLES[i]);
        ck_assert_str_eq(value_of(text, "RANK"), number);
        ck_assert_str_eq(value_of(text, "LOCAL_RANK"), number);
        ck_assert_str_eq(value_of(text, "ROLE_RANK"), number);
        ck_assert_str_eq(value_of(text, "WORLD_SIZE"), "2");
        ck_assert_str_eq(value_of(text, "GROUP_WORLD_SIZE"), "1");
        ck_assert_str_eq(value_of(text, "NODE_RANK"), "0");
        ck_assert_str_eq(value_of(text, "ROLE_NAME"), "trainer");
        ck_assert_str_eq(value_of(text, "TORCHELASTIC_RESTART_COUNT"), "0");
        ck_assert_str_eq(value_of(text, "TORCHELASTIC_MAX_RESTARTS"), "3");
        ck_assert_str_eq(value_of(text, "TORCHELASTIC_RUN_ID"), "job7");
        ck_assert_str_eq(value_of(text, "TORCHELASTIC_USE_AGENT_STORE"), "True");
        ck_assert_str_eq(value_of(text, "TORCHELASTIC_SIGNALS_TO_HANDLE"),
                         "SIGTERM,SIGINT,SIGHUP,SIGQUIT");
        ck_assert_str_eq(value_of(text, "TORCH_NCCL_ASYNC_ERROR_HANDLING"), "1");
        ck_assert_ptr_nonnull(strstr(value_of(text, "TORCHELASTIC_ERROR_FILE"), "/error.json"));
        free(text);
    }
    ck_assert_int_eq(run_count(p.err, "OMP_NUM_THREADS="), 1); /* said in one line */
    program_close(&p);
}
END_TEST

START_TEST(what_the_user_set_stays)
{
    setenv("OMP_NUM_THREADS", "7", 1);
    setenv("RANK", "41", 1);
    setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3", 1);
    program p = run_script("--nproc-per-node 2", "test $OMP_NUM_THREADS = 7 && test $RANK -lt 2 && "
                                                 "test $TORCH_NCCL_ASYNC_ERROR_HANDLING = 3");
    ASSERT_EXIT(p, 0);
    ck_assert_str_eq(p.err, "");
    program_close(&p);
}
END_TEST

static const struct {
    const char *variables[4], *flags;
    const char *says; /* what rank 0's "$WORLD_SIZE $GROUP_WORLD_SIZE $ROLE_NAME" is */
} SPELLINGS[] = {
    {{NULL}, "--nproc-per-node=3 --nnodes=1", "3 1 default"},
    {{NULL}, "--nproc_per_node 3 --nnodes 1:1", "3 1 default"},
    {{NULL}, "--nproc 3 --nnode=1 --role=x", "3 1 x"},
    {{NULL}, "--standalone --nproc_per_node=3 --rdzv_id=a --rdzv_endpoint=h:1", "3 1 default"},
    {{NULL}, "--rdzv-backend=c10d --rdzv-endpoint=localhost:0 --nproc_per_node=2", "2 1 default"},
    {{NULL}, "--start_method=fork --monitor_interval=5 --use_env --max_restarts 0", "1 1 default"},
    {{"PET_NPROC_PER_NODE=3", "PET_ROLE=y"}, "", "3 1 y"},
    {{"PET_NPROC_PER_NODE=3", "PET_ROLE=y"}, "--nproc-per-node=2", "2 1 y"},
    {{"PET_STANDALONE=1", "PET_MAX_RESTARTS=2", "PET_NPROC_PER_NODE=2"}, "", "2 1 default"},
    {{"PET_MONITOR_INTERVAL=0.5", "PET_REDIRECTS=0", "PET_TEE=0"}, "", "1 1 default"},
    {{"PET_RDZV_BACKEND=c10d", "PET_RDZV_ENDPOINT=localhost:0", "PET_NNODES=1"}, "", "1 1 default"},
    {{"PET_RDZV_CONF=timeout=5,last_call_timeout=1"}, "", "1 1 default"},
};

START_TEST(flags_and_variables_have_torchruns_spellings)
{
    for (int i = 0; i < 4 && SPELLINGS[_i].variables[i] != NULL; i++)
        putenv((char *)(uintptr_t)SPELLINGS[_i].variables[i]);
    program p = run_script(SPELLINGS[_i].flags,
                           "test $RANK != 0 || echo $WORLD_SIZE $GROUP_WORLD_SIZE $ROLE_NAME");
    ASSERT_EXIT(p, 0);
    ck_assert_msg(strncmp(p.out, SPELLINGS[_i].says, strlen(SPELLINGS[_i].says)) == 0,
                  "%s: '%s', want '%s'", SPELLINGS[_i].flags, p.out, SPELLINGS[_i].says);
    program_close(&p);
}
END_TEST

static const struct {
    const char *line, *words;
} MISTAKES[] = {
    {"run", "which program"},
    {"run --nproc-per-node=2", "which program"},
    {"run --nproc-per-node=2 --", "which program"},
    {"run --nproc-per-nod=x -- true", "'x' is neither"},
    {"run --nproc_per_nodes=2 -- true", "did you mean --nproc-per-node?"},
    {"run --master_adderss 1.2.3.4 -- true", "did you mean --master-addr?"},
    {"run -epochs 3 -- true", "no such flag"},
    {"run -x -- true", "-x: no such flag"},
    {"run --epochs=3 -- true", "--epochs: a flag of 'mnist_ddp train', not of 'run'"},
    {"run --rdzv 1 -- true", "could be --rdzv-backend"},
    {"run --node_rank=5 --nnodes=3 --nproc_per_node=8 -- true", "--node-rank=2 on the last one"},
    {"run --nnodes=1:4 -- true", "elastic"},
    {"run --rdzv-backend=etcd --rdzv-endpoint=h:2379 -- true", "etcd is not in this version"},
    {"run --rdzv-backend=etcd-v2 -- true", "etcd is not in this version"},
    {"run --rdzv-backend=zookeeper -- true", "not one of static, c10d"},
    {"run --rdzv-backend=c10d --nnodes=2 -- true", "Give --rdzv-endpoint=HOST:PORT"},
    {"run --rdzv-endpoint=h:99999 -- true", "0 to 65535"},
    {"run --rdzv-conf=join_timeot=3 -- true", "did you mean 'join_timeout'?"},
    {"run --rdzv-conf=timeout -- true", "is no KEY=VALUE"},
    {"run --redirects=4 -- true", "--redirects: '4' is neither"},
    {"run -t 0:1,1 -- true", "--tee: '0:1,1' is neither"},
    {"run --local-ranks-filter=a -- true", "is no list of local ranks"},
    {"run --signals-to-handle=SIGTREM -- true", "did you mean 'SIGTERM'?"},
    {"run --signals-to-handle=SIGKILL -- true", "cannot be handled"},
    {"run --start-method=thread -- true", "spawn, fork, forkserver"},
    {"run --exit-code=last -- true", "first, torchrun"},
    {"run --no-python --module x", "give one of them"},
    {"run no-such-program", "no such executable in PATH"},
    {"run --no-python ./missing", "no such executable"},
    {"run missing.py", "missing.py: No such file"},
    {"run --nproc-per-node=gpu -- true", "no usable GPU"},
    {"run --log-dir=/dev/null/x -- true", "/dev/null"},
    {"MNIST.py", "mnist_ddp run MNIST.py"},
};

START_TEST(mistakes_get_an_answer_at_once)
{
    int64_t start_ns = clock_now_ns();
    program p = run_line(MISTAKES[_i].line);
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 2.0);
    ck_assert_int_ne(p.exit_code, 0);
    ASSERT_SAYS(p.err, MISTAKES[_i].words);
    program_close(&p);
}
END_TEST

/* Python, in these tests: prints what it is given. */
static void make_python(void)
{
    run_write("python", "#!/bin/sh\necho \"$LOCAL_RANK:$*\"\n");
    ck_assert_int_eq(chmod("python", 0755), 0);
    setenv("PYTHON_EXEC", workbench_path("python"), 1);
    run_write("train.py", "parser.add_argument('--local-rank')");
    run_write("old.py", "parser.add_argument('--local_rank', default=-1)");
    run_write("plain_script", "print(1)");
}

static const struct {
    const char *line, *says;
} PROGRAMS[] = {
    {"run train.py --lr 3 --nproc-per-node 8", "0:-u train.py --lr 3 --nproc-per-node 8\n"},
    {"run -- train.py -x", "0:-u train.py -x\n"},
    {"run train.py -- -x", "0:-u train.py -- -x\n"},
    {"run plain_script", "0:-u plain_script\n"},
    {"run -m pkg.mod -v", "0:-u -m pkg.mod -v\n"},
    {"run --module pkg.mod", "0:-u -m pkg.mod\n"},
    {"run train.py --out=${local_rank}/x${local_rank}", "0:-u train.py --out=0/x0\n"},
    {"run --no-use-env train.py --lr 3", "0:-u train.py --local-rank=0 --lr 3\n"},
    {"run --use-env=false old.py", "0:-u old.py --local_rank=0\n"},
    {"run --use-env old.py", "0:-u old.py\n"},
    {"run --run-path train.py a", "runpy.run_path(sys.argv[0], run_name='__main__') train.py a\n"},
    {"run --no-python /bin/echo hello", "hello\n"},
    {"run /bin/echo hello", "hello\n"},
    {"run echo hello", "hello\n"},
    {"--nproc-per-node 1 run echo hello", "hello\n"},
};

START_TEST(any_program_runs)
{
    make_python();
    program p = run_line(PROGRAMS[_i].line);
    ASSERT_EXIT(p, 0);
    ASSERT_SAYS(p.out, PROGRAMS[_i].says);
    program_close(&p);
}
END_TEST

START_TEST(what_is_no_program_is_explained)
{
    run_write("bad", "\x7f"
                     "nothing");
    ck_assert_int_eq(chmod("bad", 0755), 0);
    program p = run_line("run --max-restarts 3 ./bad");
    ASSERT_EXIT(p, 127);
    ASSERT_SAYS(p.err, "could not be executed: Exec format error");
    ASSERT_SAYS(p.err, "#!/usr/bin/env python3");
    ASSERT_SILENT(p.err, "restart 1"); /* it would not help */
    program_close(&p);
}
END_TEST

static const struct {
    const char *flags, *script;
    int code;
    const char *words;
} ENDS[] = {
    {"--nproc-per-node=2", "exit 0", 0, ""},
    {"--nproc-per-node=3", "test $RANK != 1 || exit 7; sleep 30", 7, "rank 1 failed first"},
    {"--nproc-per-node=3", "test $RANK != 2 || kill -9 $$; sleep 30", 137, "SIGKILL"},
    {"--nproc-per-node=2 --exit-code=torchrun", "exit 7", 1, "exit code 7"},
    {"--nproc-per-node=2", "echo why >&2; exit 3", 3, "    | why\n"},
    {"", "exit 75", 75, "exit code 75"}, /* of a foreign program it means nothing */
    {"", "exit 64", 64, "it said nothing on stderr"},
    /* a rank that only lost its peer is not to blame, though it ends first */
    {"--nproc-per-node=2",
     "test $RANK = 1 && { sleep .15; exit 5; }; echo 'gloo: Connection closed by peer' >&2; exit 1",
     5, "rank 1 failed first: exit code 5\n"},
};

START_TEST(exit_codes_are_the_first_failing_ranks)
{
    int64_t start_ns = clock_now_ns();
    program p = run_script(ENDS[_i].flags, ENDS[_i].script);
    ASSERT_EXIT(p, ENDS[_i].code);
    ASSERT_SAYS(p.err, ENDS[_i].words);
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 5.0);
    program_close(&p);
}
END_TEST

/* Says "out RANK" and "err RANK". */
#define TALK "echo out $RANK; echo err $RANK >&2"

/* The only folder below `base`. */
static const char *job_folder(const char *base)
{
    static char path[FILE_PATH_BYTES];
    DIR *list = opendir(base);
    int n = 0;
    ck_assert_ptr_nonnull(list);
    for (struct dirent *e = readdir(list); e != NULL; e = readdir(list)) {
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", base, e->d_name);
        n++;
    }
    closedir(list);
    ck_assert_int_eq(n, 1);
    return path;
}

static void assert_log(int rank, const char *name, const char *text)
{
    char path[FILE_PATH_BYTES + 64];
    snprintf(path, sizeof path, "%s/attempt_0/%d/%s", job_folder("logs"), rank, name);
    if (text == NULL) {
        ck_assert_msg(!file_exists(path), "%s is there", path);
        return;
    }
    char *held = run_file(path);
    ck_assert_str_eq(held, text);
    free(held);
}

START_TEST(redirects_go_to_files)
{
    program p = run_script("--nproc-per-node=12 --log-dir=logs --rdzv-id=j -r 0:3,1:1,11:2", TALK);
    ASSERT_EXIT(p, 0);
    ck_assert_ptr_nonnull(strstr(job_folder("logs"), "logs/j_"));
    assert_log(0, "stdout.log", "out 0\n");
    assert_log(0, "stderr.log", "err 0\n");
    assert_log(1, "stdout.log", "out 1\n");
    assert_log(1, "stderr.log", NULL);
    assert_log(2, "stdout.log", NULL);
    assert_log(11, "stdout.log", NULL);
    assert_log(11, "stderr.log", "err 11\n");
    ck_assert_int_eq(run_count(p.out, "out "), 10);
    ck_assert_int_eq(run_count(p.err, "err "), 10);
    ASSERT_SAYS(p.err, "err 1\n");
    ASSERT_SILENT(p.err, "err 11\n");
    program_close(&p);
}
END_TEST

START_TEST(tee_goes_both_ways)
{
    program p = run_script(
        "--nproc-per-node=11 --log-dir=logs --role=r -t 1:3,10:1 --redirects=10:2", TALK);
    ASSERT_EXIT(p, 0);
    assert_log(1, "stdout.log", "out 1\n");
    assert_log(1, "stderr.log", "err 1\n");
    assert_log(10, "stdout.log", "out 10\n");
    assert_log(10, "stderr.log", "err 10\n");
    ASSERT_SAYS(p.out, "[r1]:out 1\n");
    ASSERT_SAYS(p.out, "[r10]:out 10\n");
    ASSERT_SAYS(p.err, "[r1]:err 1\n");
    ASSERT_SAYS(p.out, "out 0\n");
    ASSERT_SILENT(p.out, "[r0]");
    ASSERT_SILENT(p.err, "err 10");
    program_close(&p);
}
END_TEST

START_TEST(a_filter_hides_ranks)
{
    program p =
        run_script("--nproc-per-node=11 --log-dir=logs --local-ranks-filter=1,10 -t 2:3", TALK);
    ASSERT_EXIT(p, 0);
    ck_assert_int_eq(run_count(p.out, "out "), 2);
    ck_assert_int_eq(run_count(p.err, "err "), 2);
    ASSERT_SAYS(p.out, "out 10\n");
    assert_log(2, "stdout.log", "out 2\n");
    program_close(&p);
}
END_TEST

START_TEST(a_prefix_may_be_made)
{
    char words[600], host[256] = "";
    gethostname(host, sizeof host - 1);
    const char *argv[] = {program_mnist_ddp(),
                          "run",
                          "--tee=3",
                          "--log-line-prefix-template",
                          "<${hostname} $role_name ${rank}/$local_rank $$5> ",
                          "sh",
                          "-c",
                          "echo a; printf b >&2",
                          NULL};
    program p = program_start(argv);
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 0);
    snprintf(words, sizeof words, "<%s default 0/0 $5> a\n", host);
    ck_assert_str_eq(p.out, words);
    snprintf(words, sizeof words, "<%s default 0/0 $5> b\n", host);
    ck_assert_str_eq(p.err, words);
    program_close(&p);
}
END_TEST

START_TEST(restarts_go_on_until_the_budget_is_used_up)
{
    program p = run_script("--nproc-per-node=2 --max-restarts=2 --log-dir=logs -r 1",
                           "echo $RANK.$TORCHELASTIC_RESTART_COUNT.$MNIST_DDP_GENERATION; "
                           "test $RANK = 0 || exit 9; sleep 20");
    ASSERT_EXIT(p, 9);
    ASSERT_SAYS(p.err, "rank 1 failed first: exit code 9; restart 1 of 2\n");
    ASSERT_SAYS(p.err, "rank 1 failed first: exit code 9; restart 2 of 2\n");
    ASSERT_SAYS(p.err, "error: rank 1 failed first: exit code 9\n");
    char path[FILE_PATH_BYTES + 64];
    for (int attempt = 0; attempt < 3; attempt++) {
        char words[32];
        snprintf(path, sizeof path, "%s/attempt_%d/1/stdout.log", job_folder("logs"), attempt);
        snprintf(words, sizeof words, "1.%d.%d\n", attempt, attempt);
        char *text = run_file(path);
        ck_assert_str_eq(text, words);
        free(text);
    }
    snprintf(path, sizeof path, "%s/attempt_0/1/error.json", job_folder("logs"));
    char *text = run_file(path);
    ASSERT_SAYS(text, "\"errorCode\":9");
    ASSERT_SAYS(text, "\"extraInfo\":{");
    ASSERT_SAYS(text, "\"timestamp\":\"");
    free(text);
    program_close(&p);
}
END_TEST

START_TEST(a_restart_that_helps_ends_well)
{
    program p = run_script("--nproc-per-node=3 --max-restarts=5",
                           "test $TORCHELASTIC_RESTART_COUNT = 2 || test $RANK != 2 || kill -9 $$; "
                           "test $TORCHELASTIC_RESTART_COUNT = 2 || sleep 20");
    ASSERT_EXIT(p, 0);
    ASSERT_SAYS(p.err, "SIGKILL (Killed); restart 2 of 5\n");
    ASSERT_SAYS(p.err, "what the failed attempts left: ");
    program_close(&p);
}
END_TEST

/* What a worker says in error.json, by itself or through @record, is in the box. */
START_TEST(the_error_file_is_read)
{
    program p = run_script(
        "", "echo '{\"message\":{\"message\":\"ValueError: 42\",\"extraInfo\":"
            "{\"py_callstack\":\"T\",\"timestamp\":\"1\"}}}' > $TORCHELASTIC_ERROR_FILE; exit 1");
    ASSERT_EXIT(p, 1);
    ASSERT_SAYS(p.err, "  it says: ValueError: 42\n");
    program_close(&p);
}
END_TEST

/* The last lines are there also where the launcher never saw them. */
START_TEST(the_box_has_the_last_lines_of_a_file)
{
    program p = run_script("--log-dir=logs -r 3", "seq 1 30 >&2; exit 2");
    ASSERT_EXIT(p, 2);
    ASSERT_SAYS(p.err, "    | 11\n");
    ASSERT_SAYS(p.err, "    | 30\n");
    ASSERT_SILENT(p.err, "    | 10\n");
    program_close(&p);
}
END_TEST

static void await_file(const char *path)
{
    for (int64_t end_ns = clock_deadline_ns(RUN_S * 1000); !file_exists(path);) {
        ck_assert_msg(!clock_passed(end_ns), "%s did not come", path);
        clock_sleep_ms(POLL_MS);
    }
}

/* A program gets the very signal, and has time to end. */
START_TEST(signals_are_passed_on)
{
    program p = run_start("--nproc-per-node=2 --signals-to-handle=SIGTERM,SIGUSR2",
                          "trap 'touch got.$RANK; exit 0' USR2; touch up.$RANK; "
                          "while :; do sleep .01; done");
    await_file("up.0");
    await_file("up.1");
    kill(p.pid, SIGUSR2);
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 128 + SIGUSR2);
    ck_assert(file_exists("got.0") && file_exists("got.1"));
    program_close(&p);
}
END_TEST

START_TEST(who_does_not_end_is_killed_after_the_shutdown_timeout)
{
    program p = run_start("--nproc-per-node=2 --shutdown-timeout=1",
                          "trap '' TERM; touch up.$RANK; while :; do sleep .05; done");
    await_file("up.0");
    await_file("up.1");
    int64_t start_ns = clock_now_ns();
    kill(p.pid, SIGTERM);
    program_wait(&p, RUN_S);
    double took_s = clock_seconds(clock_now_ns() - start_ns);
    ASSERT_EXIT(p, 143);
    ck_assert_msg(took_s > 0.9 && took_s < 4, "%g s", took_s);
    program_close(&p);
}
END_TEST

/* Our own train, as any program's workers: a launch in a launch. */
START_TEST(a_preempted_program_gives_75)
{
    program p = run_start("--nproc-per-node=2", "trap 'exit 75' TERM; touch up.$RANK; "
                                                "while :; do sleep .01; done");
    await_file("up.0");
    await_file("up.1");
    kill(p.pid, SIGTERM);
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 75);
    program_close(&p);
}
END_TEST

static pid_t pid_in(const char *path)
{
    await_file(path);
    for (;;) {
        char *text = run_file(path);
        pid_t pid = (pid_t)atoi(text);
        free(text);
        if (pid > 0)
            return pid;
        clock_sleep_ms(POLL_MS);
    }
}

/* What a failed rank leaves running (a loader's process, say) goes with it. */
START_TEST(children_of_ranks_do_not_stay)
{
    program p = run_start("--nproc-per-node=2",
                          "sleep 60 & echo $! > child.$RANK; "
                          "test $RANK = 1 || wait; while ! test -e go; do sleep .01; done; exit 4");
    pid_t children[] = {pid_in("child.0"), pid_in("child.1")};
    run_write("go", "");
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 4);
    underway_assert_gone(children, 2, 1000);
    program_close(&p);
}
END_TEST

START_TEST(no_orphans_when_the_launcher_is_killed)
{
    program p = run_start("--nproc-per-node=3", "trap '' TERM HUP; echo $$ > pid.$RANK; "
                                                "while :; do sleep .05; done");
    pid_t pids[] = {pid_in("pid.0"), pid_in("pid.1"), pid_in("pid.2")};
    kill(p.pid, SIGKILL);
    underway_assert_gone(pids, 3, 1000);
    program_wait(&p, RUN_S);
    program_close(&p);
}
END_TEST

START_TEST(a_taken_port_is_explained)
{
    char flags[64], words[64];
    int port = 0, fd = underway_listen(&port);
    snprintf(flags, sizeof flags, "--nproc-per-node=2 --master-port=%d", port);
    program p = run_script(flags, "exit 0");
    ASSERT_EXIT(p, 69);
    snprintf(words, sizeof words, "taken by pid %d", (int)getpid());
    ASSERT_SAYS(p.err, words);
    ASSERT_SAYS(p.err, " is free");
    close(fd);
    program_close(&p);
}
END_TEST

START_TEST(a_dry_run_only_tells)
{
    program p = run_line("run --dry-run --nnodes=2 --nproc-per-node=2 --node-rank=1 "
                         "--master-addr=10.1.2.3 --master-port=4321 --max-restarts=2 -- "
                         "echo it's ${local_rank}");
    ASSERT_EXIT(p, 0);
    ASSERT_SAYS(p.out, "store: served by node 0 at 10.1.2.3:4321\n");
    ASSERT_SAYS(p.out, "node 0 of 2: ranks 0 to 1 of 4\n");
    ASSERT_SAYS(p.out, "node 1 of 2 (this one): ranks 2 to 3 of 4\n");
    ASSERT_SAYS(p.out, "  rank 3: echo 'it'\\''s' 1\n    RANK=3 LOCAL_RANK=1 WORLD_SIZE=4 ");
    ck_assert_int_eq(run_count(p.out, "  rank "), 4);
    program_close(&p);
}
END_TEST

START_TEST(each_rank_may_see_one_gpu)
{
    setenv("CUDA_VISIBLE_DEVICES", "5,GPU-ab,7", 1);
    program p = run_script("--nproc-per-node=3 --virtual-local-rank -r 1 --log-dir logs",
                           "echo $LOCAL_RANK $CUDA_VISIBLE_DEVICES");
    ASSERT_EXIT(p, 0);
    assert_log(0, "stdout.log", "0 5\n");
    assert_log(1, "stdout.log", "0 GPU-ab\n");
    assert_log(2, "stdout.log", "0 7\n");
    program_close(&p);
    p = run_script("--nproc-per-node=4 --virtual-local-rank", "true");
    ASSERT_EXIT(p, 64);
    ASSERT_SAYS(p.err, "names 3 GPUs");
    program_close(&p);
}
END_TEST

/* Time of the processor, which other processes of the machine do not lengthen. */
START_TEST(it_starts_quickly)
{
    enum { RUNS = 5 };
    struct rusage before, after;
    getrusage(RUSAGE_CHILDREN, &before);
    for (int i = 0; i < RUNS; i++) {
        program p = run_line("run --quiet /bin/true");
        ASSERT_EXIT(p, 0);
        program_close(&p);
    }
    getrusage(RUSAGE_CHILDREN, &after);
    double ms = (double)(after.ru_utime.tv_sec - before.ru_utime.tv_sec +
                         (after.ru_stime.tv_sec - before.ru_stime.tv_sec)) *
                    1e3 +
                (double)(after.ru_utime.tv_usec - before.ru_utime.tv_usec +
                         (after.ru_stime.tv_usec - before.ru_stime.tv_usec)) *
                    1e-3;
#ifdef SANITIZED
    ck_assert_double_gt(ms, 0);
#else
    ck_assert_msg(ms / RUNS < 20, "%g ms", ms / RUNS);
#endif
}
END_TEST

/* Nothing is left in the temporary folder after a run that went well. */
START_TEST(a_good_run_leaves_nothing)
{
    ck_assert_int_eq(mkdir("tmp", 0700), 0);
    setenv("TMPDIR", workbench_path("tmp"), 1);
    program p = run_script("--nproc-per-node=2 -r 3", TALK);
    ASSERT_EXIT(p, 0);
    ck_assert_int_eq(rmdir("tmp"), 0);
    program_close(&p);
}
END_TEST

static void start_clean(void)
{
    char command[128];
    snprintf(command, sizeof command,
             "cd '%s' && rm -rf logs tmp env.* up.* got.* child.* pid.* go", workbench);
    ck_assert_int_eq(system(command), 0);
}

#define COUNT(table) ((int)(sizeof(table) / sizeof(table)[0]))

int main(void)
{
    underway_clean_environment();
    workbench_open();
    Suite *suite = suite_create("run");
    TCase *core = suite_case(suite, "core", 2.0 * RUN_S);
    tcase_add_checked_fixture(core, start_clean, NULL);
    tcase_add_test(core, the_environment_is_torchruns);
    tcase_add_test(core, what_the_user_set_stays);
    tcase_add_loop_test(core, flags_and_variables_have_torchruns_spellings, 0, COUNT(SPELLINGS));
    tcase_add_loop_test(core, mistakes_get_an_answer_at_once, 0, COUNT(MISTAKES));
    tcase_add_loop_test(core, any_program_runs, 0, COUNT(PROGRAMS));
    tcase_add_test(core, what_is_no_program_is_explained);
    tcase_add_loop_test(core, exit_codes_are_the_first_failing_ranks, 0, COUNT(ENDS));
    tcase_add_test(core, redirects_go_to_files);
    tcase_add_test(core, tee_goes_both_ways);
    tcase_add_test(core, a_filter_hides_ranks);
    tcase_add_test(core, a_prefix_may_be_made);
    tcase_add_test(core, restarts_go_on_until_the_budget_is_used_up);
    tcase_add_test(core, a_restart_that_helps_ends_well);
    tcase_add_test(core, the_error_file_is_read);
    tcase_add_test(core, the_box_has_the_last_lines_of_a_file);
    tcase_add_test(core, signals_are_passed_on);
    tcase_add_test(core, who_does_not_end_is_killed_after_the_shutdown_timeout);
    tcase_add_test(core, a_preempted_program_gives_75);
    tcase_add_test(core, children_of_ranks_do_not_stay);
    tcase_add_test(core, no_orphans_when_the_launcher_is_killed);
    tcase_add_test(core, a_taken_port_is_explained);
    tcase_add_test(core, a_dry_run_only_tells);
    tcase_add_test(core, each_rank_may_see_one_gpu);
    tcase_add_test(core, it_starts_quickly);
    tcase_add_test(core, a_good_run_leaves_nothing);
    return workbench_close(suite_run(suite));
}
