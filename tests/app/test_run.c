/* mnist_ddp run on one machine: how it is asked, and what the program gets. The program is a shell
 * script; Python is a script that prints its arguments. */
#include "base/clock.h"
#include "tests/app/support/run_command.h"
#include "tests/app/support/test_folder.h"
#include "tests/support/port.h"

#include <sys/resource.h>
#include <sys/stat.h>

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
    program p = run_command("--nproc-per-node=2 --max-restarts=3 --role trainer --rdzv-id job7",
                            "env > env.$RANK");
    ASSERT_EXIT(p, 0);
    for (int rank = 0; rank < 2; rank++) {
        char number[16], *text = test_folder_read(rank == 0 ? "env.0" : "env.1");
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
    ck_assert_int_eq(facts_count(p.err, "OMP_NUM_THREADS="), 1); /* said in one line */
    program_close(&p);
}
END_TEST

START_TEST(what_the_user_set_stays)
{
    setenv("OMP_NUM_THREADS", "7", 1);
    setenv("RANK", "41", 1);
    setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3", 1);
    program p =
        run_command("--nproc-per-node 2", "test $OMP_NUM_THREADS = 7 && test $RANK -lt 2 && "
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
    program p = run_command(SPELLINGS[_i].flags,
                            "test $RANK != 0 || echo $WORLD_SIZE $GROUP_WORLD_SIZE $ROLE_NAME");
    ASSERT_EXIT(p, 0);
    ck_assert_msg(strncmp(p.out, SPELLINGS[_i].says, strlen(SPELLINGS[_i].says)) == 0,
                  "%s: '%s', want '%s'", SPELLINGS[_i].flags, p.out, SPELLINGS[_i].says);
    program_close(&p);
}
END_TEST

static const struct {
    const char *line, *facts[7]; /* the last is NULL */
} MISTAKES[] = {
    {"run", {"error", "run", "mnist_ddp run"}},
    {"run --nproc-per-node=2", {"error", "run", "mnist_ddp run"}},
    {"run --nproc-per-node=2 --", {"error", "run", "mnist_ddp run"}},
    {"run --nproc-per-nod=x -- true", {"error", "--nproc-per-node", "x", "1024"}},
    {"run --nproc_per_nodes=2 -- true", {"error", "--nproc_per_nodes", "--nproc-per-node"}},
    {"run --master_adderss 1.2.3.4 -- true", {"error", "--master_adderss", "--master-addr"}},
    {"run -epochs 3 -- true", {"error", "-epochs", "mnist_ddp help run"}},
    {"run -x -- true", {"error", "-x", "mnist_ddp help run"}},
    {"run --epochs=3 -- true", {"error", "--epochs", "train", "run"}},
    {"run --rdzv 1 -- true", {"error", "--rdzv", "--rdzv-backend", "--rdzv-endpoint"}},
    {"run --node_rank=5 --nnodes=3 --nproc_per_node=8 -- true",
     {"error", "--node-rank=5", "--node-rank=2"}},
    {"run --nnodes=1:4 -- true", {"error", "--nnodes=1:4", "elastic", "--nnodes=4"}},
    {"run --rdzv-backend=etcd-v2 -- true",
     {"error", "--rdzv-backend=etcd-v2", "etcd", "--rdzv-backend=c10d"}},
    {"run --rdzv-backend=zookeeper -- true",
     {"error", "--rdzv-backend", "zookeeper", "static", "c10d"}},
    {"run --rdzv-backend=c10d --nnodes=2 -- true",
     {"error", "--rdzv-backend=c10d", "--rdzv-endpoint=HOST:PORT"}},
    {"run --rdzv-endpoint=h:99999 -- true", {"error", "--rdzv-endpoint", "h:99999", "65535"}},
    {"run --rdzv-conf=join_timeot=3 -- true",
     {"error", "--rdzv-conf", "join_timeot", "join_timeout"}},
    {"run --rdzv-conf=timeout -- true", {"error", "--rdzv-conf", "timeout", "KEY=VALUE"}},
    {"run --redirects=4 -- true", {"error", "--redirects", "4", "3", "0:1,12:3"}},
    {"run -t 0:1,1 -- true", {"error", "--tee", "0:1,1", "0:1,12:3"}},
    {"run --local-ranks-filter=a -- true", {"error", "--local-ranks-filter", "a", "0,1,12"}},
    {"run --signals-to-handle=SIGTREM -- true",
     {"error", "--signals-to-handle", "SIGTREM", "SIGTERM"}},
    {"run --signals-to-handle=SIGKILL -- true", {"error", "--signals-to-handle", "SIGKILL"}},
    {"run --start-method=thread -- true",
     {"error", "--start-method", "thread", "spawn", "fork", "forkserver"}},
    {"run --exit-code=last -- true", {"error", "--exit-code", "last", "first", "torchrun"}},
    {"run --no-python --module x", {"error", "--no-python", "--module"}},
    {"run no-such-program", {"error", "no-such-program", "PATH"}},
    {"run --no-python ./missing", {"error", "./missing"}},
    {"run missing.py", {"error", "missing.py", "No such file"}},
    {"run --nproc-per-node=gpu -- true", {"error", "--nproc-per-node=gpu", "GPU"}},
    {"run --log-dir=/dev/null/x -- true", {"error", "--log-dir", "/dev/null/x", "Not a directory"}},
    {"MNIST.py", {"error", "mnist_ddp run MNIST.py"}},
};

START_TEST(mistakes_get_an_answer_at_once)
{
    int64_t start_ns = clock_now_ns();
    program p = program_run_line(MISTAKES[_i].line);
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 2.0);
    ck_assert_int_ne(p.exit_code, 0);
    ASSERT_FACTS_LISTED(p.err, MISTAKES[_i].facts);
    program_close(&p);
}
END_TEST

/* Python, in these tests: prints what it is given. */
static void make_python(void)
{
    test_folder_write("python", "#!/bin/sh\necho \"$LOCAL_RANK:$*\"\n");
    ck_assert_int_eq(chmod("python", 0755), 0);
    setenv("PYTHON_EXEC", test_folder_path("python"), 1);
    test_folder_write("train.py", "parser.add_argument('--local-rank')");
    test_folder_write("old.py", "parser.add_argument('--local_rank', default=-1)");
    test_folder_write("plain_script", "print(1)");
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
    program p = program_run_line(PROGRAMS[_i].line);
    ASSERT_EXIT(p, 0);
    ASSERT_SAYS(p.out, PROGRAMS[_i].says);
    program_close(&p);
}
END_TEST

START_TEST(what_is_no_program_is_explained)
{
    test_folder_write("bad", "\x7f"
                             "nothing");
    ck_assert_int_eq(chmod("bad", 0755), 0);
    program p = program_run_line("run --max-restarts 3 ./bad");
    ASSERT_EXIT(p, 127);
    ASSERT_FACTS(p.err, "error", "rank 0", "Exec format error");
    ASSERT_FACTS(p.err, "hint", "#!/usr/bin/env python3");
    ASSERT_NO_FACTS(p.err, "restart 1"); /* it would not help */
    program_close(&p);
    test_folder_write("plain", "");
    p = program_run_line("run --no-python ./plain");
    ASSERT_EXIT(p, 64);
    ASSERT_FACTS(p.err, "error", "./plain", "chmod +x");
    program_close(&p);
}
END_TEST

START_TEST(a_taken_port_is_explained)
{
    char flags[64], address[32], pid[32];
    int port = 0, fd = port_listen(&port);
    snprintf(flags, sizeof flags, "--nproc-per-node=2 --master-port=%d", port);
    program p = run_command(flags, "exit 0");
    ASSERT_EXIT(p, 69);
    snprintf(address, sizeof address, "127.0.0.1:%d", port);
    snprintf(pid, sizeof pid, "pid %d", (int)getpid());
    ASSERT_FACTS(p.err, "error", address, pid, "free");
    close(fd);
    program_close(&p);
}
END_TEST

START_TEST(a_dry_run_only_tells)
{
    program p = program_run_line("run --dry-run --nnodes=2 --nproc-per-node=2 --node-rank=1 "
                                 "--master-addr=10.1.2.3 --master-port=4321 --max-restarts=2 -- "
                                 "echo it's ${local_rank}");
    ASSERT_EXIT(p, 0);
    ASSERT_FACTS(p.out, "store", "node 0", "10.1.2.3:4321");
    ASSERT_FACTS(p.out, "restarts", "2");
    ASSERT_FACTS(p.out, "node 0", "2", "ranks 0 to 1", "4");
    ASSERT_FACTS(p.out, "node 1", "this one", "2", "ranks 2 to 3", "4");
    ASSERT_SAYS(p.out, "  rank 3: echo 'it'\\''s' 1\n    RANK=3 LOCAL_RANK=1 WORLD_SIZE=4 ");
    ck_assert_int_eq(facts_count(p.out, "  rank "), 4);
    /* if this host's own name stands for a loopback address */
    ck_assert_int_le(facts_count(p.err, "GLOO_SOCKET_IFNAME="), 1);
    program_close(&p);
}
END_TEST

/* Time of the processor in the processes that have ended. */
static double used_ms(void)
{
    struct rusage used;
    getrusage(RUSAGE_CHILDREN, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1e3 +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-3;
}

/* Of several runs the least: other processes of the machine empty its caches. */
START_TEST(it_starts_quickly)
{
    enum { RUNS = 5 };
    double least_ms = 1e9;
    for (int i = 0; i < RUNS; i++) {
        double before_ms = used_ms();
        program p = program_run_line("run --quiet /bin/true");
        ASSERT_EXIT(p, 0);
        program_close(&p);
        double ms = used_ms() - before_ms;
        least_ms = ms < least_ms ? ms : least_ms;
    }
#ifdef SANITIZED
    ck_assert_double_gt(least_ms, 0);
#else
    ck_assert_msg(least_ms < 20, "%g ms", least_ms);
#endif
}
END_TEST

#define COUNT(table) ((int)(sizeof(table) / sizeof(table)[0]))

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("run");
    TCase *starts = suite_case(suite, "starts", 2.0 * RUN_S);
    tcase_add_checked_fixture(starts, test_folder_clean, NULL);
    tcase_add_test(starts, the_environment_is_torchruns);
    tcase_add_test(starts, what_the_user_set_stays);
    tcase_add_loop_test(starts, flags_and_variables_have_torchruns_spellings, 0, COUNT(SPELLINGS));
    tcase_add_loop_test(starts, mistakes_get_an_answer_at_once, 0, COUNT(MISTAKES));
    tcase_add_loop_test(starts, any_program_runs, 0, COUNT(PROGRAMS));
    tcase_add_test(starts, what_is_no_program_is_explained);
    tcase_add_test(starts, a_taken_port_is_explained);
    tcase_add_test(starts, a_dry_run_only_tells);
    tcase_add_test(starts, it_starts_quickly);
    return test_folder_close(suite_run(suite));
}
