/* Flags and help: spellings, commands, and what is said about mistakes. */
#include "app/options/options_table.h"
#include "tests/app/support/command_line.h"

#include <unistd.h>

START_TEST(defaults_are_those_of_the_header)
{
    options opts = command_line_options("");
    ck_assert_int_eq(opts.command, COMMAND_TRAIN);
    ck_assert_str_eq(opts.model, "cnn");
    ck_assert_str_eq(opts.optimizer, "adadelta");
    ck_assert_str_eq(opts.bind_to, "core");
    ck_assert(opts.lr < 0.0 && opts.target_acc < 0.0 && opts.bucket_cap_mb < 0.0);
    ck_assert_double_eq(opts.gamma, 0.7);
    ck_assert_int_eq(opts.epochs, 14);
    ck_assert_int_eq(opts.batch_size, 64);
    ck_assert_int_eq(opts.global_batch_size, -1);
    ck_assert_int_eq(opts.test_batch_size, 1000);
    ck_assert_int_eq(opts.seed, 1);
    ck_assert_int_eq(opts.limit, -1);
    ck_assert_int_eq(opts.log_interval, 10);
    ck_assert_int_eq(opts.timeout, 60);
    ck_assert_int_eq(opts.join_timeout, 600);
    ck_assert_int_eq(opts.local_rank, -1);
    ck_assert_int_eq(opts.master_port, -1);
    ck_assert_int_eq(opts.sampler.samples, 60000);
    ck_assert(opts.save_model && opts.overlap && opts.progress && opts.shuffle);
    ck_assert(!opts.resume && !opts.nesterov && !opts.no_accel && !opts.launch_flags_given);
    ck_assert_ptr_null(opts.nproc_per_node);
    ck_assert_ptr_null(opts.run_dir);
    ck_assert(!options_given(&opts, "batch_size"));
    options_free(&opts);
}
END_TEST

/* Each line sets the batch size to 7. */
static const char *const BATCH_LINES[] = {"--batch-size 7",
                                          "--batch_size 7",
                                          "--batch-size=7",
                                          "--batch_size=7",
                                          "--batch=7",
                                          "train --batch-s 7",
                                          "--batch-size 9 --batch-size 7",
                                          "--batch_size=7 train",
                                          "--epochs 3 --batch 7"};

START_TEST(spellings_are_equal)
{
    options opts = command_line_options(BATCH_LINES[_i]);
    ck_assert_int_eq(opts.batch_size, 7);
    ck_assert(options_given(&opts, "batch_size") && options_given(&opts, "batch-size"));
    ck_assert(!options_given(&opts, "epochs") || opts.epochs == 3);
    options_free(&opts);
}
END_TEST

START_TEST(switches_have_two_forms)
{
    options opts = command_line_options(
        "--no-overlap --no_progress --nesterov --momentum 0.9 --optimizer sgd");
    ck_assert(!opts.overlap && !opts.progress && opts.nesterov);
    options_free(&opts);
    opts = command_line_options("--overlap=false --no-save-model=false --resume=yes");
    ck_assert(!opts.overlap && opts.save_model && opts.resume);
    options_free(&opts);
    opts = command_line_options("--no-overlap --overlap");
    ck_assert(opts.overlap);
    options_free(&opts);
}
END_TEST

static const char *const CPU_LINES[] = {"--no-accel", "--no-cuda", "--no-mps",
                                        "--no_cuda",  "--no-acc",  "--no-ac"};

START_TEST(names_of_pytorch_examples)
{
    options opts = command_line_options(CPU_LINES[_i]);
    ck_assert(opts.no_accel && options_given(&opts, "no-accel"));
    options_free(&opts);
    opts = command_line_options(
        "--batch-size 64 --test-batch-size 1000 --epochs 14 --lr 1.0 --gamma 0.7 "
        "--dry-run --seed 1 --log-interval 10 --save-model");
    ck_assert(opts.dry_run && opts.save_model && opts.lr == 1.0);
    options_free(&opts);
}
END_TEST

START_TEST(lines_of_torch_launchers)
{
    options opts = command_line_options("--nproc_per_node=2 --nnode=1 --node_rank=0 --use-env");
    ck_assert_str_eq(opts.nproc_per_node, "2");
    ck_assert_str_eq(opts.nnodes, "1");
    ck_assert_int_eq(opts.node_rank, 0);
    ck_assert(opts.launch_flags_given);
    options_free(&opts);
    opts = command_line_options("--local-rank=3");
    ck_assert_int_eq(opts.local_rank, 3);
    ck_assert(!opts.launch_flags_given);
    options_free(&opts);
    opts = command_line_options("--local_rank -1 --data_dir /d --device 0,3");
    ck_assert_int_eq(opts.local_rank, -1);
    ck_assert_str_eq(opts.data_dir, "/d");
    ck_assert_str_eq(opts.device, "0,3");
    options_free(&opts);
    opts = command_line_options("--data=/e --world_size=16 --node_rank=0");
    ck_assert_str_eq(opts.data_dir, "/e");
    ck_assert_int_eq(opts.world_size, 16);
    options_free(&opts);
    opts = command_line_options("--standalone --nnodes=1:1 --backend=nccl");
    ck_assert_str_eq(opts.nnodes, "1:1");
    ck_assert_str_eq(opts.backend, "nccl");
    options_free(&opts);
}
END_TEST

/* Where the program of `run` begins, and that what is behind it is not ours. */
static const struct {
    const char *line, *program, *second;
    const char *redirects;
} PROGRAMS[] = {
    {"run a.py", "a.py", NULL, "0"},
    {"run -- a.py", "a.py", NULL, "0"},
    {"run -r 3 a.py --epochs", "a.py", "--epochs", "3"},
    {"run -r3 -- -a --help", "-a", "--help", "3"},
    {"run -r=1 -m a --version", "a", "--version", "1"},
    {"run --redirects 0:1,12:3 a -- b", "a", "--", "0:1,12:3"},
    {"run --logs-specs default --event_log_handler=null -r 2 a", "a", NULL, "2"},
    {"--redirects=2 run a run", "a", "run", "2"},
};

START_TEST(a_program_ends_the_flags)
{
    options opts = command_line_options(PROGRAMS[_i].line);
    ck_assert_int_eq(opts.command, COMMAND_RUN);
    ck_assert_str_eq(opts.program[0], PROGRAMS[_i].program);
    if (PROGRAMS[_i].second == NULL)
        ck_assert_ptr_null(opts.program[1]);
    else
        ck_assert_str_eq(opts.program[1], PROGRAMS[_i].second);
    ck_assert_str_eq(opts.redirects, PROGRAMS[_i].redirects);
    options_free(&opts);
}
END_TEST

static const struct {
    const char *line;
    command command, topic;
} COMMANDS[] = {
    {"", COMMAND_TRAIN, COMMAND_HELP},
    {"train", COMMAND_TRAIN, COMMAND_HELP},
    {"eval --checkpoint x", COMMAND_EVAL, COMMAND_HELP},
    {"--checkpoint x eval", COMMAND_EVAL, COMMAND_HELP},
    {"sampler --epoch 3 --rank 1", COMMAND_SAMPLER, COMMAND_HELP},
    {"help", COMMAND_HELP, COMMAND_HELP},
    {"help eval", COMMAND_HELP, COMMAND_EVAL},
    {"eval --help", COMMAND_HELP, COMMAND_EVAL},
    {"train --epochs 3 -h", COMMAND_HELP, COMMAND_TRAIN},
    {"--epochs nonsense --help", COMMAND_HELP, COMMAND_HELP},
    {"-h", COMMAND_HELP, COMMAND_HELP},
    {"run -m x --help", COMMAND_RUN, COMMAND_HELP},
    {"run --help x", COMMAND_HELP, COMMAND_RUN},
    {"help run", COMMAND_HELP, COMMAND_RUN},
    {"bench dp-vs-ddp --repeats 3", COMMAND_BENCH, COMMAND_HELP},
    {"--repeats 3 bench", COMMAND_BENCH, COMMAND_HELP},
    {"bench dp-vs-ddp --help", COMMAND_HELP, COMMAND_BENCH},
    {"doctor --nnodes 2", COMMAND_DOCTOR, COMMAND_HELP},
    {"env", COMMAND_ENV, COMMAND_HELP},
    {"version", COMMAND_VERSION, COMMAND_HELP},
    {"--version", COMMAND_VERSION, COMMAND_HELP},
    {"--lr .1 --epoch 2 train", COMMAND_TRAIN, COMMAND_HELP},
};

START_TEST(commands_are_found)
{
    options opts = command_line_options(COMMANDS[_i].line);
    ck_assert_int_eq(opts.command, COMMANDS[_i].command);
    ck_assert_int_eq(opts.help_topic, COMMANDS[_i].topic);
    options_free(&opts);
}
END_TEST

static const struct {
    const char *line;
    const char *const *facts;
} REFUSED[] = {
    {"--batchsize 7", FACTS("--batchsize", "--batch-size")},
    {"--master_adderss 1.2.3.4", FACTS("--master_adderss", "--master-addr")},
    {"--hlep", FACTS("--hlep", "--help")},
    {"--quux=1", FACTS("--quux", "mnist_ddp help train")},
    {"--bogus 3 --help", FACTS("--bogus", "mnist_ddp help train")},
    {"-x", FACTS("-x", "mnist_ddp help train")},
    {"-epochs 3", FACTS("-epochs", "--epochs")},
    {"-m", FACTS("-m", "run", "train")},
    {"--", FACTS("--", "mnist_ddp help train")},
    {"--=1", FACTS("--", "mnist_ddp help train")},
    {"--master=1", FACTS("--master", "--master-addr", "--master-port")},
    {"--no=1", FACTS("--no", "--no-accel", "--no-overlap")},
    {"--head 1", FACTS("--head", "sampler", "train")},
    {"eval --nproc-per-node 2", FACTS("--nproc-per-node", "train", "eval")},
    {"eval --epochs 3", FACTS("--epochs", "train", "eval")},
    {"--epochs", FACTS("--epochs=N", "1000000")},
    {"--run-dir --resume", FACTS("--run-dir=DIR")},
    {"--run-dir=", FACTS("--run-dir", "empty")},
    {"--epochs abc", FACTS("--epochs", "abc", "1000000")},
    {"--epochs 1.5", FACTS("--epochs", "1.5", "1000000")},
    {"--epochs=", FACTS("--epochs", "1000000")},
    {"--epochs 3x", FACTS("--epochs", "3x", "1000000")},
    {"--epochs 0", FACTS("--epochs", "0", "1000000")},
    {"--epochs -4", FACTS("--epochs", "-4", "1000000")},
    {"--epochs 99999999999999999999", FACTS("--epochs", "99999999999999999999", "1000000")},
    {"--seed=-1", FACTS("--seed", "-1", "9007199254740992")},
    {"--limit=0", FACTS("--limit", "0", "1000000000")},
    {"--lr nan", FACTS("--lr", "nan", "0", "1e+06")},
    {"--lr=1e999", FACTS("--lr", "1e999", "0", "1e+06")},
    {"--lr=-0.1", FACTS("--lr", "-0.1", "0", "1e+06")},
    {"--lr=fast", FACTS("--lr", "fast", "0", "1e+06")},
    {"--master-port 65536", FACTS("--master-port", "65536", "65535")},
    {"--model cn", FACTS("--model", "cn", "mlp", "did you mean 'cnn'")},
    {"--optimizer=adamm", FACTS("--optimizer", "adamm", "sgd", "adadelta", "did you mean 'adam'")},
    {"--log-format=xml", FACTS("--log-format", "xml", "auto", "plain", "pytorch")},
    {"--resume=maybe", FACTS("--resume", "maybe", "true", "false", "mnist_ddp resume RUN")},
    {"--resume r1", FACTS("r1", "mnist_ddp resume r1")},
    {"resume r1 r2", FACTS("resume", "r2", "one run")},
    {"resume r1 --run-dir=r2", FACTS("resume", "r1", "--run-dir=r2")},
    {"trian", FACTS("trian", "did you mean 'train'")},
    {"MNIST.py", FACTS("mnist_ddp run MNIST.py")},
    {"frobnicate", FACTS("frobnicate", "train", "eval", "sampler", "run", "bench", "doctor", "env",
                         "help", "version")},
    {"train eval", FACTS("eval", "one", "command")},
    {"bench dp-vs-ddp eval", FACTS("eval", "one", "command")},
    {"bench --epochs 3", FACTS("--epochs", "train", "bench")},
    {"--world-sizes 1,2", FACTS("--world-sizes", "bench", "train")},
    {"bench --repeats 0", FACTS("--repeats", "0", "1000000")},
    {"--resume true", FACTS("true", "command")},
    {"run --logs-specs mine x.py", FACTS("--logs-specs=mine", "not supported", "--tee")},
    {"run --event-log-handler=console x.py", FACTS("--event-log-handler=console", "not supported")},
    {"run --numa_binding node x.py", FACTS("--numa-binding=node", "not supported", "numactl")},
    {"run --print-completion tcsh", FACTS("--print-completion", "tcsh", "bash", "zsh", "fish")},
    {"--resume auto", FACTS("auto", "command", "--resume=auto")},
    {"train --no-overlap false --epochs 3", FACTS("false", "--overlap=false")},
    {"eval runs/a runs/b", FACTS("eval", "runs/b", "one run")},
    {"eval runs/a --checkpoint x", FACTS("runs/a", "--checkpoint=x")},
    {"--batch-size 8 --global-batch-size 16", FACTS("--batch-size", "--global-batch-size")},
    {"--elastic-batch global", FACTS("--elastic-batch=global", "--global-batch-size")},
    {"--elastic-batch local --global-batch-size 64",
     FACTS("--elastic-batch=local", "--batch-size")},
    {"--nesterov --optimizer sgd", FACTS("--nesterov", "momentum")},
    {"--momentum 0.9", FACTS("--momentum=0.9", "--optimizer=sgd")},
    {"--adam-betas 0.7,0.9", FACTS("--adam-betas=0.7,0.9", "--optimizer=adam")},
    {"--optimizer adamw --adam-betas 0.7", FACTS("--adam-betas", "'0.7'", "0.9,0.999")},
    {"--optimizer adam --adam-betas 0.7,1", FACTS("--adam-betas", "'0.7,1'", "0.9,0.999")},
    {"--optimizer adam --adam-betas 1,0.9", FACTS("--adam-betas", "'1,0.9'", "0.9,0.999")},
    {"--optimizer adam --adam-betas .9,0", FACTS("--adam-betas", "'.9,0'", "0.9,0.999")},
    {"--optimizer adam --adam-betas 0.9,nan", FACTS("--adam-betas", "nan", "0.9,0.999")},
    {"--optimizer adam --adam-betas 0.9,0.99x", FACTS("--adam-betas", "0.99x", "0.9,0.999")},
    {"--optimizer adam --adam-betas -0.1,0.9", FACTS("--adam-betas", "-0.1,0.9", "0.9,0.999")},
    {"--label-smoothing 1.5", FACTS("--label-smoothing", "1.5", "0 to 1")},
    {"--lr 0x10", FACTS("--lr", "0x10", "not a number")},
    {"--optimizer adam --adam-betas 0x1p-1,0.9", FACTS("--adam-betas", "0x1p-1", "0.9,0.999")},
    {"--augment shift=0x2", FACTS("--augment", "0x2", "rotate=DEGREES")},
    {"--augment shift", FACTS("--augment", "'shift'", "--augment=shift=2,rotate=10")},
    {"--augment=", FACTS("--augment", "empty")},
    {"--augment shift=29", FACTS("--augment", "'shift=29'", "28")},
    {"--augment shift=2,turn=3", FACTS("--augment", "'shift=2,turn=3'", "scale=SHARE")},
    {"--augment rotate=nan", FACTS("--augment", "'rotate=nan'", "180")},
    {"--augment scale=1", FACTS("--augment", "'scale=1'", "0.9")},
    {"--augment rotate=-5", FACTS("--augment", "'rotate=-5'", "180")},
    {"--augment rotate=5x", FACTS("--augment", "'rotate=5x'", "180")},
    {"--clip-grad-norm 0", FACTS("--clip-grad-norm", "0", "1e-09 to 1e+09")},
    {"--schedule one-cycle", FACTS("--schedule", "one-cycle", "did you mean 'onecycle'")},
    {"--schedule cosine --gamma 0.9", FACTS("--gamma=0.9", "--schedule=step", "cosine")},
    {"--pct-start 0.2", FACTS("--pct-start=0.2", "--schedule=onecycle", "step")},
    {"--pct-start 1.2", FACTS("--pct-start", "1.2", "0 to 1")},
    {"--schedule onecycle --warmup-steps 9", FACTS("--warmup-steps=9", "--pct-start")},
    {"--warmup-factor 0.1", FACTS("--warmup-factor=0.1", "--warmup-steps")},
    {"--warmup-steps 9 --warmup-factor 0", FACTS("--warmup-factor", "0", "1e-09 to 1")},
    {"--eval-every 3weeks", FACTS("--eval-every", "3weeks", "--eval-every=100steps")},
    {"--eval-every -1", FACTS("--eval-every", "-1", "--eval-every=100steps")},
    {"--val-split 1.5", FACTS("--val-split=1.5", "whole number")},
    {"--val-split -1", FACTS("--val-split", "-1", "0 to 1e+09")},
    {"--keep 0", FACTS("--keep", "0", "1 to 1000000000")},
    {"--save-every 0", FACTS("--save-every", "'0'", "--save-every=100steps")},
    {"--config /nowhere/x.yaml", FACTS("--config", "/nowhere/x.yaml", "No such file")},
    {"--config /tmp", FACTS("--config", "/tmp", "directory")},
};

START_TEST(mistakes_are_named)
{
    command_line_refused(REFUSED[_i].line, REFUSED[_i].facts);
}
END_TEST

/* What stands after the nonsense is still there. */
START_TEST(long_nonsense_is_bounded)
{
    char line[ANY_LINE - 1];
    memset(line, 'a', sizeof line - 1);
    line[sizeof line - 1] = '\0';
    command_line_refused(line, FACTS("command", "version"));
    line[0] = line[1] = '-';
    command_line_refused(line, FACTS("mnist_ddp help train"));
    line[2 + OPTION_NAME_BYTES] = '\0'; /* the shortest name that is too long for any flag */
    command_line_refused(line, FACTS("mnist_ddp help train"));
    line[2 + OPTION_NAME_BYTES] = 'a';
    memcpy(line, "--epochs=", 9);
    command_line_refused(line, FACTS("--epochs", "1000000"));
}
END_TEST

static const char *const HELP_LINES[] = {
    "help",
    "help train",
    "help eval",
    "help sampler",
    "help run",
    "help bench",
    "help bench dp-vs-ddp",
    "help bench scaling",
    "help bench all-reduce",
    "help doctor",
    "help env",
    "help completion",
    "help manual",
    "help all",
};

static void print_help(int line)
{
    options opts = command_line_options(HELP_LINES[line]);
    options_print_help(&opts);
    options_free(&opts);
}

/* How often a flag begins a line of the help. */
static int lines_of_flag(const option_row *row)
{
    char plain[80], negatable[80];
    int found = 0;
    snprintf(plain, sizeof plain, "\n  --%s", row->name);
    snprintf(negatable, sizeof negatable, "\n  --[no-]%s", row->name);
    for (const char *form = plain; form != NULL; form = form == plain ? negatable : NULL)
        for (const char *at = strstr(command_line_captured, form); at; at = strstr(at + 1, form))
            found += at[strlen(form)] == ' ' || at[strlen(form)] == '\n';
    return found;
}

START_TEST(help_fits_a_terminal_of_80_columns)
{
    command_line_capture(STDOUT_FILENO, print_help, _i);
    for (const char *line = command_line_captured; *line != '\0'; line += strcspn(line, "\n") + 1)
        ck_assert_msg(strcspn(line, "\n") <= 80, "too wide: %.*s", (int)strcspn(line, "\n"), line);
    bool has_flags = strcmp(HELP_LINES[_i], "help") != 0;
    ck_assert_msg(strcmp(HELP_LINES[_i], "help all") == 0 || !has_flags ||
                      (strstr(command_line_captured, "\nUsage: mnist_ddp ") != NULL &&
                       strstr(command_line_captured, "\nExamples\n  mnist_ddp ") != NULL),
                  "no usage or no examples: %s", command_line_captured);
}
END_TEST

START_TEST(the_programs_help_is_one_screen_and_leads_on)
{
    int lines = 0;
    command_line_capture(STDOUT_FILENO, print_help, 0);
    for (const char *c = command_line_captured; *c != '\0'; c++)
        lines += *c == '\n';
    ck_assert_msg(lines < 24, "%d lines and a prompt", lines);
    static const char *const shown[] = {
        "\n  train ",           "\n  eval ",           "\n  run ",     "\n  bench ",
        "\n  doctor ",          " sampler, ",          " env, ",       " version",
        "\n  --nproc-per-node", "\n  --batch-size",    "\n  --epochs", "\n  --model mlp|cnn",
        "\n  --data-dir",       "mnist_ddp help train"};
    for (size_t i = 0; i < sizeof shown / sizeof shown[0]; i++)
        ck_assert_msg(strstr(command_line_captured, shown[i]) != NULL, "%s", shown[i]);
}
END_TEST

START_TEST(help_all_has_every_flag_once)
{
    command_line_capture(STDOUT_FILENO, print_help, COUNT(HELP_LINES) - 1);
    for (size_t r = 0; r < options_table_count; r++) {
        const option_row *row = &options_table[r];
        ck_assert_msg(lines_of_flag(row) == 1, "--%s stands %d times in the help", row->name,
                      lines_of_flag(row));
        ck_assert_msg(strstr(command_line_captured, row->help) != NULL || strlen(row->help) > 40,
                      "--%s", row->name);
    }
    ASSERT_FACTS(command_line_captured, "--batch-size", "[64]");
    ASSERT_FACTS(command_line_captured, "--no-accel", "--no-cuda", "--no-mps");
}
END_TEST

/* Each command and each benchmark lists its own flags and no others. */
static const struct {
    const char *line;
    unsigned flags;
} FLAGS_OF[] = {
    {"help train", FOR_TRAIN},
    {"help eval", FOR_EVAL},
    {"help sampler", FOR_SAMPLER},
    {"help run", FOR_RUN},
    {"help bench dp-vs-ddp", FOR_DP_VS_DDP},
    {"help bench scaling", FOR_SCALING},
    {"help bench all-reduce", FOR_COLLECTIVES},
    {"help doctor", FOR_DOCTOR},
    {"help env", FOR_ENV},
};

START_TEST(help_has_the_flags_of_its_command)
{
    int line = 0;
    while (strcmp(HELP_LINES[line], FLAGS_OF[_i].line) != 0)
        line++;
    command_line_capture(STDOUT_FILENO, print_help, line);
    for (size_t r = 0; r < options_table_count; r++) {
        const option_row *row = &options_table[r];
        char named[OPTION_NAME_BYTES + 4]; /* of a launcher's flags a benchmark has but the names */
        snprintf(named, sizeof named, " --%s", row->name);
        bool launches = FLAGS_OF[_i].flags == FOR_COLLECTIVES && row->group == GROUP_LAUNCHER;
        bool found = launches ? strstr(command_line_captured, named) != NULL : lines_of_flag(row);
        ck_assert_msg(found == ((row->commands & FLAGS_OF[_i].flags) != 0), "%s: --%s",
                      FLAGS_OF[_i].line, row->name);
    }
}
END_TEST

START_TEST(a_benchmark_has_its_own_defaults)
{
    options opts = command_line_options("bench scaling");
    ck_assert_str_eq(opts.bench.world_sizes, "1,2,3,4,5,6,8");
    ck_assert_str_eq(opts.bench.modes, "ddp,dp,ps");
    ck_assert_int_eq(opts.bench.repeats, 3);
    ck_assert(!options_given(&opts, "repeats"));
    options_free(&opts);
    opts = command_line_options("bench scaling --repeats 4");
    ck_assert_int_eq(opts.bench.repeats, 4);
    ck_assert_int_eq(opts.bench.steps, 20);
    options_free(&opts);
    opts = command_line_options("bench dp-vs-ddp");
    ck_assert_str_eq(opts.bench.world_sizes, "1,2,4");
    ck_assert_int_eq(opts.bench.repeats, 7);
    options_free(&opts);
    command_line_capture(STDOUT_FILENO, print_help, 7);
    static const char *const own[] = {"[1,2,3,4,5,6,8]", "[ddp,dp,ps]", "[16,64]"};
    static const char *const others[] = {"[1,2,4]", "[single,dp,ddp]", "[7]"};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        ck_assert_msg(strstr(command_line_captured, own[i]) != NULL, "%s", own[i]);
        ck_assert_msg(strstr(command_line_captured, others[i]) == NULL, "%s", others[i]);
    }
}
END_TEST

/* As flags, benchmarks may be spelled either way. */
static const char *const ALL_REDUCE_LINES[] = {"bench all-reduce", "bench all_reduce",
                                               "bench allreduce", "help bench all_reduce"};

START_TEST(a_benchmark_has_several_spellings)
{
    options opts = command_line_options(ALL_REDUCE_LINES[_i]);
    ck_assert_str_eq(opts.benchmark, "all-reduce");
    options_free(&opts);
}
END_TEST

/* Two rows with one spelling, or one that is another's default of a kind that it is not. */
START_TEST(the_table_is_sound)
{
    char a[OPTION_NAME_BYTES], b[OPTION_NAME_BYTES];
    bool negated;
    for (size_t r = 0; r < options_table_count; r++)
        for (int i = 0; options_table_spelling(&options_table[r], i, a, &negated); i++) {
            for (size_t s = r + 1; s < options_table_count; s++)
                for (int j = 0; options_table_spelling(&options_table[s], j, b, &negated); j++)
                    ck_assert_str_ne(a, b);
            options_table_normalize(a, b);
            ck_assert_str_eq(a, b);
        }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("options");
    TCase *core = suite_case(suite, "core", 10);
    tcase_add_test(core, the_table_is_sound);
    tcase_add_test(core, defaults_are_those_of_the_header);
    tcase_add_loop_test(core, spellings_are_equal, 0, COUNT(BATCH_LINES));
    tcase_add_test(core, switches_have_two_forms);
    tcase_add_loop_test(core, names_of_pytorch_examples, 0, COUNT(CPU_LINES));
    tcase_add_test(core, lines_of_torch_launchers);
    tcase_add_loop_test(core, a_program_ends_the_flags, 0, COUNT(PROGRAMS));
    tcase_add_loop_test(core, commands_are_found, 0, COUNT(COMMANDS));
    tcase_add_loop_test(core, mistakes_are_named, 0, COUNT(REFUSED));
    tcase_add_test(core, long_nonsense_is_bounded);
    tcase_add_loop_test(core, help_fits_a_terminal_of_80_columns, 0, COUNT(HELP_LINES));
    tcase_add_test(core, the_programs_help_is_one_screen_and_leads_on);
    tcase_add_test(core, help_all_has_every_flag_once);
    tcase_add_loop_test(core, help_has_the_flags_of_its_command, 0, COUNT(FLAGS_OF));
    tcase_add_test(core, a_benchmark_has_its_own_defaults);
    tcase_add_loop_test(core, a_benchmark_has_several_spellings, 0, COUNT(ALL_REDUCE_LINES));
    return suite_run(suite);
}
