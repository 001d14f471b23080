#include "app/options/command_table.h"
#include "model/model_kind.h"

#include <stdio.h>
#include <string.h>

#define AT(field) offsetof(options, field)
#define FIELD(field) AT(field), 0, 0 /* of a row without bounds */
#define NOTHING 0, 0, 0              /* offset, low, high of a row without a field */

enum {
    TRAIN_EVAL = FOR_TRAIN | FOR_EVAL,
    PREDICTION = FOR_PREDICT | FOR_SERVE, /* what classifies pictures */
    TRAIN_SAMPLER = FOR_TRAIN | FOR_SAMPLER | FOR_DEMO,
    LAUNCHERS = FOR_TRAIN | FOR_RUN,
    COMPARISON = 1 << COMMAND_BENCH | FOR_DP_VS_DDP,
    SCALING = 1 << COMMAND_BENCH | FOR_SCALING,
    RANKS_BENCH = 1 << COMMAND_BENCH | FOR_COLLECTIVES, /* which is started as ranks */
    TRAINING_BENCH = COMPARISON | SCALING,              /* which measure runs of train */
    SET_UP = LAUNCHERS | RANKS_BENCH | FOR_DOCTOR,      /* what doctor looks at before a run */
    TRAIN_BENCH = FOR_TRAIN | TRAINING_BENCH,           /* what bench hands to those runs */
    TRAIN_EVAL_BENCH = TRAIN_EVAL | TRAINING_BENCH,
    REPORTS = FOR_TRAIN | FOR_EVAL | FOR_PREDICT | FOR_SAMPLER | FOR_DATA | FOR_STORE | FOR_BENCH |
              FOR_DEMO | FOR_DOCTOR | FOR_ENV,
};

/* Bounds keep products of two settings far from overflow. */
#define MAX_BATCH 1048576.0
#define MAX_COUNT 1e9
#define MAX_SEED 9007199254740992.0 /* 2^53: exact in every number type that may carry it */
#define MAX_RANKS 65536.0
#define WEEK_S 604800.0

/* Of MODEL_KINDS: all names, each after a bar, from [1] on "mlp|cnn". */
#define AFTER_BAR(KIND, name) "|" name

/* clang-format off */
const option_row options_table[] = {
    {"model", NULL, OPTION_WORD, GROUP_TRAINING, FOR_TRAIN | FOR_DEMO, RUN_STATE, FIELD(model),
     "cnn", &MODEL_KINDS(AFTER_BAR)[1], "the network"},
    {"optimizer", NULL, OPTION_WORD, GROUP_TRAINING, TRAIN_BENCH, RUN_STATE, FIELD(optimizer),
     "adadelta", "sgd|adam|adamw|adadelta", "the optimizer"},
    {"lr", NULL, OPTION_REAL, GROUP_TRAINING, TRAIN_BENCH, RUN_RATE, AT(lr), 0, 1e6, NULL, "X",
     "learning rate; onecycle: the highest [adadelta 1.0, all others 0.001]"},
    {"scale-lr", NULL, OPTION_SWITCH, GROUP_TRAINING, FOR_TRAIN, RUN_RATE, FIELD(scale_lr), NULL,
     NULL, "multiply the learning rate by the number of ranks"},
    {"momentum", NULL, OPTION_REAL, GROUP_TRAINING, TRAIN_BENCH, RUN_STATE, AT(momentum), 0, 1, "0",
     "X", "momentum of sgd"},
    {"weight-decay", NULL, OPTION_REAL, GROUP_TRAINING, FOR_TRAIN, RUN_STATE, AT(weight_decay), 0,
     1e6, NULL, "X", "L2 penalty; adamw: decay of the weights themselves [adamw 0.01, all others "
     "0]"},
    {"adam-betas", NULL, OPTION_TEXT, GROUP_TRAINING, FOR_TRAIN, RUN_STATE, FIELD(adam_betas),
     "0.9,0.999", "B1,B2", "of adam and adamw: how much of the averages of gradients and of their "
     "squares each step keeps"},
    {"nesterov", NULL, OPTION_SWITCH, GROUP_TRAINING, FOR_TRAIN, RUN_STATE, FIELD(nesterov), NULL,
     NULL, "Nesterov momentum of sgd"},
    {"clip-grad-norm", NULL, OPTION_REAL, GROUP_TRAINING, FOR_TRAIN, RUN, AT(clip_grad_norm), 1e-9,
     1e9, NULL, "X", "scale a step's gradients down if their norm is above it [never]"},
    {"label-smoothing", NULL, OPTION_REAL, GROUP_TRAINING, FOR_TRAIN, RUN, AT(label_smoothing), 0,
     1, "0", "X", "the share of each training label that goes to all classes alike; no test has "
     "it"},
    {"augment", NULL, OPTION_TEXT, GROUP_TRAINING, FOR_TRAIN, RUN_SUMS, FIELD(augment), NULL,
     "LIST", "move, turn and resize each training image at random, anew every epoch, by at most "
     "shift=PIXELS, rotate=DEGREES, scale=SHARE: shift=2,rotate=10 [never]"},
    {"gamma", NULL, OPTION_REAL, GROUP_TRAINING, FOR_TRAIN, RUN_RATE, AT(gamma), 0, 1000, "0.7",
     "X", "schedule step: the learning rate is multiplied by it after every epoch"},
    {"schedule", "lr-scheduler", OPTION_WORD, GROUP_TRAINING, FOR_TRAIN, RUN_RATE, FIELD(schedule),
     "step", "step|onecycle|cosine|none", "of the learning rate: step, after every epoch; onecycle "
     "and cosine, in every step until the end of --epochs"},
    {"pct-start", NULL, OPTION_REAL, GROUP_TRAINING, FOR_TRAIN, RUN_RATE, AT(pct_start), 0, 1,
     "0.3", "X", "onecycle: the share of all steps in which the learning rate rises"},
    {"warmup-steps", NULL, OPTION_INTEGER, GROUP_TRAINING, FOR_TRAIN, RUN_RATE, AT(warmup_steps), 0,
     MAX_COUNT, "0", "N", "steps in which the learning rate first rises linearly; not with "
     "onecycle"},
    {"warmup-factor", NULL, OPTION_REAL, GROUP_TRAINING, FOR_TRAIN, RUN_RATE, AT(warmup_factor),
     1e-9, 1, "0.3333333333333333", "X", "of the learning rate, at which such a rise begins"},
    {"epochs", NULL, OPTION_INTEGER, GROUP_TRAINING, FOR_TRAIN, JOB_LENGTH, AT(epochs), 1, 1e6,
     "14", "N", "passes over the training images, in total"},
    {"batch-size", NULL, OPTION_INTEGER, GROUP_TRAINING, FOR_TRAIN | FOR_DEMO, RUN_ORDER,
     AT(batch_size), 1, MAX_BATCH, "64", "N", "images per rank and step"},
    {"global-batch-size", NULL, OPTION_INTEGER, GROUP_TRAINING, FOR_TRAIN, RUN_ORDER,
     AT(global_batch_size), 1, MAX_BATCH * 64, NULL, "N",
     "images of all ranks per step, instead of --batch-size"},
    {"elastic-batch", NULL, OPTION_WORD, GROUP_TRAINING, FOR_TRAIN, JOB, FIELD(elastic_batch), NULL,
     "global|local", "what stays when nodes come and go: --global-batch-size or --batch-size [as "
     "given]"},
    {"test-batch-size", NULL, OPTION_INTEGER, GROUP_TRAINING, TRAIN_EVAL, KEPT, AT(test_batch_size),
     1, MAX_BATCH, "1000", "N", "images per forward of a test, at most; no result depends on it"},
    {"eval-every", NULL, OPTION_TEXT, GROUP_TRAINING, FOR_TRAIN, JOB_KEPT, FIELD(eval_every),
     "1epochs", "N[epochs|steps]", "how often to test; the end is always tested; 0: no tests"},
    {"accum", NULL, OPTION_INTEGER, GROUP_TRAINING, FOR_TRAIN, RUN_ORDER, AT(accum), 1, MAX_BATCH,
     "1", "N", "batches whose gradients make one optimizer step"},
    {"seed", NULL, OPTION_INTEGER, GROUP_TRAINING, TRAIN_SAMPLER | TRAINING_BENCH, RUN_ORDER,
     AT(seed), 0, MAX_SEED, "1", "N", "of initial weights, order and dropout"},
    {"limit", NULL, OPTION_INTEGER, GROUP_TRAINING, FOR_TRAIN, RUN_ORDER, AT(limit), 1, MAX_COUNT,
     NULL, "N", "use only the first N images [all]"},
    {"val-split", "validation-split", OPTION_REAL, GROUP_TRAINING, FOR_TRAIN, RUN_SPLIT,
     AT(val_split), 0, MAX_COUNT, "0", "N", "hold the last N training images back for validation, "
     "or a share of them as 0.1: --eval-every and --target-acc then look at these, and the test "
     "images are looked at once, at the end"},
    {"target-acc", NULL, OPTION_REAL, GROUP_TRAINING, FOR_TRAIN, JOB, AT(target_acc), 0, 100, NULL,
     "X", "stop after the test whose accuracy reaches it: 0.99, or 99 for percent"},
    {"drop-last", NULL, OPTION_SWITCH, GROUP_TRAINING, TRAIN_SAMPLER, RUN_ORDER, FIELD(drop_last),
     NULL, NULL, "leave out the images that do not divide by the ranks instead of repeating some"},
    {"shuffle", NULL, OPTION_SWITCH, GROUP_TRAINING, TRAIN_SAMPLER, RUN_ORDER, FIELD(shuffle),
     "true", NULL, "images in random order, another one every epoch"},
    {"dry-run", NULL, OPTION_SWITCH, GROUP_GENERAL, LAUNCHERS, JOB, FIELD(dry_run), NULL, NULL,
     "one step and one test, nothing is saved"},

    {"device", NULL, OPTION_TEXT, GROUP_DEVICE, TRAIN_EVAL | PREDICTION | FOR_BENCH | FOR_DOCTOR,
     KEPT, FIELD(device), "auto", "NAME", "auto, cuda, cuda:1, cpu or reference (plain "
     "loops)"},
    {"devices", NULL, OPTION_TEXT, GROUP_DEVICE, TRAIN_EVAL | PREDICTION | FOR_DOCTOR, KEPT,
     FIELD(devices), NULL, "LIST", "GPUs to use, as 0,3: one rank or replica each [all]"},
    {"amp", NULL, OPTION_WORD, GROUP_DEVICE, TRAIN_EVAL_BENCH, RUN_SUMS, FIELD(amp), "off",
     "off|bf16|fp16", "mixed precision; fp16, on a GPU only, scales the loss"},
    {"tf32", NULL, OPTION_SWITCH, GROUP_DEVICE, TRAIN_EVAL_BENCH, RUN_SUMS, FIELD(tf32), NULL, NULL,
     "round what a GPU multiplies to TF32: faster, 10 bits of precision"},
    {"cuda-graph", NULL, OPTION_SWITCH, GROUP_DEVICE, FOR_TRAIN, JOB_KEPT, FIELD(cuda_graph),
     "true", NULL, "record a step once as a CUDA graph and replay it"},
    {"no-accel", "no-cuda no-mps", OPTION_SWITCH, GROUP_DEVICE,
     TRAIN_EVAL | PREDICTION | FOR_DOCTOR, KEPT, FIELD(no_accel), NULL, NULL, "use the CPU"},
    {"isa", NULL, OPTION_WORD, GROUP_DEVICE, TRAIN_EVAL_BENCH | PREDICTION, KEPT, FIELD(isa),
     "auto", "auto|avx512|avx2|generic", "instructions of the cpu device; auto: the best that the "
     "processor has"},
    {"dense", NULL, OPTION_SWITCH, GROUP_DEVICE, TRAIN_EVAL_BENCH, RUN_SUMS, FIELD(dense), NULL,
     NULL, "multiply the zeros of activations and gradients, too, which the cpu device leaves out: "
     "for comparison"},
    {"threads", NULL, OPTION_INTEGER, GROUP_DEVICE, TRAIN_EVAL_BENCH | PREDICTION, KEPT,
     AT(threads), 1, 4096, NULL, "N", "threads per rank [cores / ranks of this host]"},
    {"bind-to", NULL, OPTION_WORD, GROUP_DEVICE, FOR_TRAIN | FOR_BENCH, KEPT, FIELD(bind_to),
     "core", "core|none", "keep every computing thread to a core of its own, if all ranks here "
     "have enough and no other job has them"},

    {"dataset", NULL, OPTION_WORD, GROUP_DATA, TRAIN_EVAL | PREDICTION | FOR_DATA, RUN_ORDER,
     FIELD(dataset), "mnist", "mnist|fashion|kmnist",
     "MNIST, Fashion-MNIST or KMNIST (Kuzushiji-MNIST)"},
    {"data-dir", "data", OPTION_TEXT, GROUP_DATA,
     TRAIN_EVAL_BENCH | FOR_SERVE | FOR_DATA | FOR_DEMO | FOR_DOCTOR, KEPT, FIELD(data_dir), NULL,
     "DIR", "folder with MNIST's files [$MNIST_DDP_DATA, then the usual places]"},
    {"mirror", NULL, OPTION_TEXT, GROUP_DATA, FOR_DATA, PRIVATE, FIELD(data.mirror), NULL,
     "URL,...", "fetch: folders of mirrors that are asked before the known ones"},
    {"offline", NULL, OPTION_SWITCH, GROUP_DATA, FOR_DATA, PRIVATE, FIELD(data.offline), NULL, NULL,
     "fetch: only say what is missing"},
    {"connect-timeout", NULL, OPTION_REAL, GROUP_DATA, FOR_DATA, PRIVATE, AT(data.connect_timeout),
     0.001, 3600, "5", "S", "fetch: seconds in which a mirror must be connected; all mirrors share "
     "them"},
    {"stall-timeout", NULL, OPTION_INTEGER, GROUP_DATA, FOR_DATA, PRIVATE, AT(data.stall_timeout),
     1, 3600, "20", "S", "fetch: seconds after which a mirror that sends next to nothing is left"},
    {"lock-timeout", NULL, OPTION_INTEGER, GROUP_DATA, FOR_DATA, PRIVATE, AT(data.lock_timeout), 0,
     WEEK_S, "600", "S", "fetch: seconds to wait for another process that fetches into the same "
     "folder"},
    {"test", NULL, OPTION_SWITCH, GROUP_DATA, FOR_DATA, PRIVATE, FIELD(data.test), NULL, NULL,
     "show: test images"},
    {"label", NULL, OPTION_INTEGER, GROUP_DATA, FOR_DATA, PRIVATE, AT(data.label), 0, 9, NULL, "N",
     "show: only images of this class"},
    {"columns", NULL, OPTION_INTEGER, GROUP_DATA, FOR_DATA, PRIVATE, AT(data.columns), 1, 1000,
     NULL, "N", "show: images side by side [as many as fit]"},
    {"run-dir", NULL, OPTION_TEXT, GROUP_DATA, FOR_TRAIN, PRIVATE, FIELD(run_dir), NULL, "DIR",
     "folder for the results [runs/<time>-<model>]"},
    {"resume", NULL, OPTION_MODE, GROUP_DATA, FOR_TRAIN, JOB, FIELD(resume), NULL, "must|auto",
     "continue the run in --run-dir, without it the newest in runs/; --resume=auto: if there is "
     "one in --run-dir"},
    {"init", NULL, OPTION_TEXT, GROUP_DATA, FOR_TRAIN, PRIVATE, FIELD(init), NULL, "PATH",
     "start from the weights of another run, or from a safetensors file of PyTorch's state_dict"},
    {"save-every", NULL, OPTION_TEXT, GROUP_DATA, FOR_TRAIN, JOB_KEPT, FIELD(save_every), "1epochs",
     "N[epochs|steps]", "how often to write a checkpoint; one is always written at the end"},
    {"keep", NULL, OPTION_INTEGER, GROUP_DATA, FOR_TRAIN, KEPT, AT(keep), 1, MAX_COUNT, "2", "N",
     "how many checkpoints stay, the newest, beside the best one; an older one is deleted after "
     "the next is on disk"},
    {"save-model", NULL, OPTION_SWITCH, GROUP_DATA, FOR_TRAIN, KEPT, FIELD(save_model), "true",
     NULL, "write the model and checkpoints"},
    {"checkpoint", NULL, OPTION_TEXT, GROUP_DATA, FOR_EVAL | FOR_PREDICT, PRIVATE,
     FIELD(checkpoint), NULL, "PATH", "the model: a run folder or a safetensors file, of PyTorch "
     "too [the newest in runs/]"},
    {"out", NULL, OPTION_TEXT, GROUP_DATA, TRAINING_BENCH | RANKS_BENCH | FOR_EVAL, PRIVATE,
     FIELD(out), NULL, "DIR", "folder for figures, plots and report.html "
     "[runs/TIME-bench-BENCHMARK]"},

    {"log-interval", NULL, OPTION_INTEGER, GROUP_LOG, FOR_TRAIN, PRIVATE, AT(log_interval), 1,
     MAX_COUNT, "10", "N", "steps between two lines of the log; if not given, a line every 2 s, in "
     "pytorch's format every"},
    {"log-format", NULL, OPTION_WORD, GROUP_LOG, FOR_TRAIN, PRIVATE, FIELD(log_format), "auto",
     "auto|plain|pytorch", "pytorch: the lines of pytorch/examples"},
    {"json", NULL, OPTION_SWITCH, GROUP_LOG, REPORTS, PRIVATE, FIELD(json), NULL, NULL,
     "the result as one JSON line on stdout, the log on stderr"},
    {"progress", NULL, OPTION_SWITCH, GROUP_LOG, FOR_TRAIN, PRIVATE, FIELD(progress), "true", NULL,
     "on a terminal: a line that says how far the run is, and what it does"},
    {"trace", NULL, OPTION_TEXT, GROUP_LOG, FOR_TRAIN, PRIVATE, FIELD(trace), NULL, "FILE",
     "write what every rank and thread did when, for ui.perfetto.dev or chrome://tracing"},
    {"trace-steps", NULL, OPTION_INTEGER, GROUP_LOG, FOR_TRAIN, PRIVATE, AT(trace_steps), 1, 10000,
     "200", "N", "first steps that the trace holds; of later ones only the one in which the run "
     "broke off"},
    {"explain", NULL, OPTION_SWITCH, GROUP_LOG, FOR_TRAIN, PRIVATE, FIELD(explain), NULL, NULL,
     "say at the start what is about to happen: who has what, what moves, what it takes"},
    {"quiet", NULL, OPTION_SWITCH, GROUP_LOG, FOR_ALL, PRIVATE, FIELD(quiet), NULL, NULL,
     "only warnings, errors and results"},

    {"mode", NULL, OPTION_WORD, GROUP_PARALLEL, FOR_TRAIN, JOB_SPREAD, FIELD(mode), "ddp",
     "ddp|dp|ps|single", "ddp: a process per rank; dp: one process, a thread per replica; ps: rank "
     "0 is a parameter server; single: one process. dp, single: --batch-size is the whole batch"},
    {"replicas", NULL, OPTION_INTEGER, GROUP_PARALLEL, FOR_TRAIN | FOR_DEMO, JOB_SPREAD,
     AT(replicas), 1, 64, NULL, "N", "of --mode=dp [one per GPU of --devices; 2 on the CPU]"},
    {"backend", NULL, OPTION_TEXT, GROUP_PARALLEL, FOR_TRAIN | FOR_BENCH | FOR_DEMO | FOR_DOCTOR,
     JOB_KEPT, FIELD(backend), "auto", "NAME",
     "how ranks talk: auto, shm (one host), gloo, hierarchical (shm on each host, gloo between "
     "them), mpi or nccl (GPUs)"},
    {"bucket-cap-mb", NULL, OPTION_REAL, GROUP_PARALLEL, TRAIN_BENCH | FOR_DEMO, JOB_KEPT,
     AT(bucket_cap_mb), 0.001, 1048576, NULL, "X",
     "MiB of gradients per all-reduce [25, the first 1]"},
    {"comm-hook", NULL, OPTION_WORD, GROUP_PARALLEL, FOR_TRAIN, JOB_KEPT, FIELD(comm_hook), "none",
     "none|fp16|bf16|powersgd", "what ddp sends of its gradients: all, 16 bits of each, or "
     "low-rank factors; CPU only"},
    {"powersgd-rank", NULL, OPTION_INTEGER, GROUP_PARALLEL, FOR_TRAIN, JOB_KEPT, AT(powersgd_rank),
     1, 64, "4", "N", "columns of powersgd's factors: more are more exact, larger and slower"},
    {"powersgd-start-iter", NULL, OPTION_INTEGER, GROUP_PARALLEL, FOR_TRAIN, JOB_KEPT,
     AT(powersgd_start_iter), 0, MAX_COUNT, "50", "N",
     "steps that powersgd sends whole: in these the network learns most"},
    {"overlap", NULL, OPTION_SWITCH, GROUP_PARALLEL, TRAIN_BENCH, JOB_KEPT, FIELD(overlap), "true",
     NULL, "all-reduce while the backward pass goes on"},
    {"timeout", NULL, OPTION_INTEGER, GROUP_PARALLEL, FOR_TRAIN | FOR_BENCH | FOR_DEMO | FOR_STORE,
     KEPT, AT(timeout), 1, WEEK_S, "60", "SECONDS",
     "deadline of one collective; on GPUs ten times that for the first of its kind and size"},
    {"join-timeout", NULL, OPTION_INTEGER, GROUP_PARALLEL, SET_UP, KEPT, AT(join_timeout), 1,
     WEEK_S, "600", "SECONDS", "how long to wait for all ranks at the start"},
    {"init-method", NULL, OPTION_TEXT, GROUP_PARALLEL, FOR_TRAIN | RANKS_BENCH, PRIVATE,
     FIELD(init_method), NULL, "URL", "where this rank meets the others: tcp://HOST:PORT of rank "
     "0, file:///PATH of a new file that all see, or env://; each may end in ?rank=R&world_size=N "
     "[env://]"},
    {"rank", NULL, OPTION_INTEGER, GROUP_PARALLEL, FOR_TRAIN | RANKS_BENCH | FOR_SAMPLER, PRIVATE,
     AT(rank), 0, MAX_RANKS - 1, NULL, "N", "which rank this is, of --world-size [$RANK]"},
    {"nccl-nvls", NULL, OPTION_SWITCH, GROUP_PARALLEL, FOR_TRAIN | FOR_BENCH, JOB_KEPT,
     FIELD(nccl_nvls), NULL, NULL, "let NCCL sum in the NVSwitch (NVLink SHARP): faster, but the "
     "same command may give other bits; if $NCCL_ALGO is set, that counts"},
    {"inject", NULL, OPTION_TEXT, GROUP_PARALLEL, FOR_TRAIN | FOR_DEMO, PRIVATE, FIELD(inject),
     NULL, "FAULT", "a fault, to see what is said of it: kill:rank=1,step=50, stop, delay (and "
     "ms=M), drop-conn, port-busy, uneven:rank=1, forget-set-epoch; gen=N: after restart N"},
    {"inject-delay-ms", NULL, OPTION_INTEGER, GROUP_PARALLEL, FOR_TRAIN | FOR_DEMO, PRIVATE,
     AT(inject_delay_ms), 0, 3600000, "0", "MS",
     "slow every all-reduce down, to see what overlap hides"},
    {"debug", NULL, OPTION_WORD, GROUP_PARALLEL, FOR_TRAIN | RANKS_BENCH, PRIVATE, FIELD(debug),
     NULL, "off|info|detail", "info: more of the log; detail: also, before each collective ranks "
     "compare what they are about to do, and a difference is named [$TORCH_DISTRIBUTED_DEBUG, else "
     "off]"},

    {"launcher", NULL, OPTION_WORD, GROUP_LAUNCHER, SET_UP | FOR_DEMO, PRIVATE, FIELD(launcher),
     "auto", "auto|torchrun|openmpi|slurm|kubernetes|none",
     "who has started this process, and says by variables which rank it is: auto asks them in this "
     "order; none: it is on its own"},
    {"nproc-per-node", NULL, OPTION_TEXT, GROUP_LAUNCHER, SET_UP | FOR_DEMO, PRIVATE,
     FIELD(nproc_per_node), NULL, "N", "ranks to start here: a number, auto, cpu or gpu [1]"},
    {"nnodes", NULL, OPTION_TEXT, GROUP_LAUNCHER, SET_UP, PRIVATE, FIELD(nnodes), NULL, "N|MIN:MAX",
     "machines of the job [1]; MIN:MAX: they may come and go (c10d, etcd)"},
    {"node-rank", NULL, OPTION_INTEGER, GROUP_LAUNCHER, SET_UP, PRIVATE, AT(node_rank), 0,
     MAX_RANKS - 1, NULL, "N", "which of them this is [0]"},
    {"world-size", NULL, OPTION_INTEGER, GROUP_LAUNCHER, SET_UP | FOR_SAMPLER, PRIVATE,
     AT(world_size), 1, MAX_RANKS, NULL, "N", "ranks of all machines [nnodes * nproc-per-node]"},
    {"local-world-size", NULL, OPTION_INTEGER, GROUP_LAUNCHER, SET_UP, PRIVATE,
     AT(local_world_size), 1, MAX_RANKS, NULL, "N",
     "ranks of this machine, if a script's line says so: the same as --nproc-per-node"},
    {"master-addr", NULL, OPTION_TEXT, GROUP_LAUNCHER, SET_UP, PRIVATE, FIELD(master_addr), NULL,
     "HOST", "address of node 0; the other nodes must give it [127.0.0.1]"},
    {"master-port", NULL, OPTION_INTEGER, GROUP_LAUNCHER, SET_UP, PRIVATE, AT(master_port), 0,
     65535, NULL, "PORT", "its port [29500; with one machine, or 0, a free one]"},
    {"standalone", NULL, OPTION_SWITCH, GROUP_LAUNCHER, SET_UP, PRIVATE, FIELD(standalone), NULL,
     NULL, "one machine, a free port"},
    {"local-rank", NULL, OPTION_INTEGER, GROUP_LAUNCHER, FOR_TRAIN, PRIVATE, AT(local_rank), -1,
     MAX_RANKS, NULL, "N", "as torch.distributed.launch passes it; $LOCAL_RANK wins"},
    {"local-addr", NULL, OPTION_TEXT, GROUP_LAUNCHER, SET_UP, PRIVATE, FIELD(local_addr), NULL,
     "HOST", "this machine's address, as messages to the others name it [by the route to node 0]"},
    {"rdzv-backend", NULL, OPTION_TEXT, GROUP_LAUNCHER, SET_UP, PRIVATE, FIELD(rdzv_backend),
     "static", "NAME", "static (nodes numbered by --node-rank), c10d or etcd (as they come)"},
    {"rdzv-endpoint", NULL, OPTION_TEXT, GROUP_LAUNCHER, SET_UP, PRIVATE, FIELD(rdzv_endpoint),
     NULL, "HOST[:PORT],...", "where nodes meet; several of etcd's, which survives its host "
     "[--master-addr, --master-port]"},
    {"rdzv-id", NULL, OPTION_TEXT, GROUP_LAUNCHER, SET_UP, PRIVATE, FIELD(rdzv_id), NULL, "NAME",
     "of the job: nodes of another one are turned away [none]"},
    {"rdzv-conf", NULL, OPTION_TEXT, GROUP_LAUNCHER, SET_UP, PRIVATE, FIELD(rdzv_conf), NULL,
     "K=V,...", "join_timeout, last_call_timeout (30), keep_alive_interval (5), "
     "keep_alive_max_attempt (3), read_timeout (60), is_host; for etcd protocol, cacert, cert, "
     "key"},
    {"max-restarts", NULL, OPTION_INTEGER, GROUP_LAUNCHER, LAUNCHERS, PRIVATE, AT(max_restarts), 0,
     1e6, "0", "N", "after a failure start all ranks anew, at most so often"},
    {"monitor-interval", NULL, OPTION_REAL, GROUP_LAUNCHER, LAUNCHERS, PRIVATE,
     AT(monitor_interval), 0.001, 3600, "0.1", "SECONDS",
     "between two looks at the other nodes; own ranks are seen at once"},
    {"shutdown-timeout", NULL, OPTION_INTEGER, GROUP_LAUNCHER, LAUNCHERS, PRIVATE,
     AT(shutdown_timeout), 0, WEEK_S, NULL, "SECONDS", "for ranks to end when told to [30]"},
    {"signals-to-handle", NULL, OPTION_TEXT, GROUP_LAUNCHER, LAUNCHERS, PRIVATE,
     FIELD(signals_to_handle), "SIGTERM,SIGINT,SIGHUP,SIGQUIT", "LIST",
     "signals that are passed on to the ranks"},
    {"exit-code", NULL, OPTION_WORD, GROUP_LAUNCHER, LAUNCHERS, PRIVATE, FIELD(exit_code), "first",
     "first|torchrun", "after a failure: the first failing rank's, or 1 as torchrun"},
    {"log-dir", NULL, OPTION_TEXT, GROUP_LAUNCHER, LAUNCHERS, PRIVATE, FIELD(log_dir), NULL, "DIR",
     "for the ranks' logs and error.json [a temporary one, kept on failure]"},
    {"redirects", "-r", OPTION_TEXT, GROUP_LAUNCHER, LAUNCHERS, PRIVATE, FIELD(redirects), "0",
     "SPEC", "to files: 1 stdout, 2 stderr, 3 both; or by local rank, as 0:1,12:3"},
    {"tee", "-t", OPTION_TEXT, GROUP_LAUNCHER, LAUNCHERS, PRIVATE, FIELD(tee), "0", "SPEC",
     "to files and here, with a prefix; as --redirects"},
    {"local-ranks-filter", NULL, OPTION_TEXT, GROUP_LAUNCHER, LAUNCHERS, PRIVATE,
     FIELD(local_ranks_filter), NULL, "LIST",
     "local ranks whose output is shown here, as 0,1 [all]"},
    {"duplicate-stdout-filters", NULL, OPTION_TEXT, GROUP_LAUNCHER, LAUNCHERS, PRIVATE,
     FIELD(duplicate_stdout_filters), NULL, "LIST",
     "lines of --tee with one of these words go to filtered_stdout.log too; ,, is a comma"},
    {"duplicate-stderr-filters", NULL, OPTION_TEXT, GROUP_LAUNCHER, LAUNCHERS, PRIVATE,
     FIELD(duplicate_stderr_filters), NULL, "LIST", "the same, of stderr"},
    {"logs-specs", NULL, OPTION_REFUSED, GROUP_LAUNCHER, LAUNCHERS, PRIVATE, NOTHING, "default",
     "NAME", "not supported: it names a Python class; --log-dir, --redirects and --tee say where "
     "output goes"},
    {"event-log", NULL, OPTION_TEXT, GROUP_LAUNCHER, LAUNCHERS, PRIVATE, FIELD(event_log), NULL,
     "FILE", "append a line of JSON for each event: a node waits, a round begins, a node is lost, "
     "..."},
    {"event-log-steps", NULL, OPTION_SWITCH, GROUP_LAUNCHER, FOR_TRAIN, PRIVATE,
     FIELD(event_log_steps), NULL, NULL, "in that file also each step of each rank, with a hash of "
     "its samples"},
    {"event-log-handler", NULL, OPTION_REFUSED, GROUP_LAUNCHER, LAUNCHERS, PRIVATE, NOTHING, "null",
     "NAME", "not supported: it names a Python handler; --event-log=FILE says what happened"},
    {"health-check-port", NULL, OPTION_INTEGER, GROUP_LAUNCHER, LAUNCHERS, PRIVATE,
     AT(health_check_port), 0, 65535, NULL, "PORT",
     "where this launcher says over HTTP whether it lives, and at /metrics how far its ranks are "
     "[$TORCHELASTIC_HEALTH_CHECK_PORT, else nowhere]"},
    {"numa-binding", NULL, OPTION_REFUSED, GROUP_LAUNCHER, LAUNCHERS, PRIVATE, NOTHING, NULL,
     "MODE", "not supported: ranks of train bind themselves (--bind-to); others: run -- numactl "
     "PROGRAM"},
    {"log-line-prefix-template", NULL, OPTION_TEXT, GROUP_LAUNCHER, LAUNCHERS, PRIVATE,
     FIELD(log_line_prefix_template), NULL, "TEXT",
     "before a line of --tee; knows ${role_name}, ${local_rank}, ${rank}, ${hostname}"},
    {"use-env", NULL, OPTION_SWITCH, GROUP_LAUNCHER, LAUNCHERS, PRIVATE, FIELD(run.use_env), "true",
     NULL, "a program reads $LOCAL_RANK; --no-use-env: gets --local-rank=N too (run)"},

    {"module", "-m", OPTION_SWITCH, GROUP_PROGRAM, FOR_RUN, PRIVATE, FIELD(run.module), NULL, NULL,
     "PROGRAM is a Python module: python3 -u -m PROGRAM"},
    {"no-python", NULL, OPTION_SWITCH, GROUP_PROGRAM, FOR_RUN, PRIVATE, FIELD(run.no_python), NULL,
     NULL, "PROGRAM is executed itself, whatever its name"},
    {"run-path", NULL, OPTION_SWITCH, GROUP_PROGRAM, FOR_RUN, PRIVATE, FIELD(run.run_path), NULL,
     NULL, "PROGRAM is run by Python's runpy.run_path"},
    {"role", NULL, OPTION_TEXT, GROUP_PROGRAM, FOR_RUN, PRIVATE, FIELD(run.role), "default", "NAME",
     "of the ranks: $ROLE_NAME, and part of --tee's prefix"},
    {"start-method", NULL, OPTION_WORD, GROUP_PROGRAM, FOR_RUN, PRIVATE, FIELD(run.start_method),
     "spawn", "spawn|fork|forkserver", "accepted; every rank is a program of its own"},
    {"print-completion", NULL, OPTION_WORD, GROUP_PROGRAM, FOR_RUN, PRIVATE,
     FIELD(run.print_completion), NULL, "bash|zsh|fish", "as 'mnist_ddp completion'"},
    {"virtual-local-rank", NULL, OPTION_SWITCH, GROUP_PROGRAM, FOR_RUN, PRIVATE,
     FIELD(run.virtual_local_rank), NULL, NULL, "each rank sees one GPU, and LOCAL_RANK=0"},

    {"modes", NULL, OPTION_TEXT, GROUP_BENCH, TRAINING_BENCH, PRIVATE, FIELD(bench.modes),
     "single,dp,ddp", "LIST", "what to compare: single, dp, ddp, ps"},
    {"world-sizes", NULL, OPTION_TEXT, GROUP_BENCH, TRAINING_BENCH, PRIVATE,
     FIELD(bench.world_sizes), "1,2,4", "LIST", "ranks, or replicas of dp"},
    {"models", NULL, OPTION_TEXT, GROUP_BENCH, TRAINING_BENCH, PRIVATE, FIELD(bench.models),
     "mlp,cnn", "LIST", "networks: mlp, cnn, speedrun"},
    {"batch-sizes", NULL, OPTION_TEXT, GROUP_BENCH, TRAINING_BENCH, PRIVATE,
     FIELD(bench.batch_sizes), "64", "LIST", "images per step: of all ranks (strong scaling) or of "
     "each (weak)"},
    {"scaling", NULL, OPTION_WORD, GROUP_BENCH, COMPARISON, PRIVATE, FIELD(bench.scaling), "both",
     "strong|weak|both", "strong: more ranks share a batch; weak: each brings its own"},
    {"repeats", NULL, OPTION_INTEGER, GROUP_BENCH, TRAINING_BENCH, PRIVATE, AT(bench.repeats), 1,
     1e6, "7", "N", "runs of every case, in turn with the others; an interval takes 6"},
    {"warmup", NULL, OPTION_INTEGER, GROUP_BENCH, TRAINING_BENCH, PRIVATE, AT(bench.warmup), 0, 1e6,
     "1", "N", "epochs of every run that are not counted"},
    {"steps", NULL, OPTION_INTEGER, GROUP_BENCH, TRAINING_BENCH, PRIVATE, AT(bench.steps), 1, 1e6,
     "50", "N", "optimizer steps of an epoch, if the data set has as many"},
    {"peer", NULL, OPTION_WORD, GROUP_BENCH, COMPARISON | RANKS_BENCH, PRIVATE, FIELD(bench.peer),
     "none", "none|torch|mpi|torch,mpi", "measure PyTorch (a Python with torch) or plain Open MPI "
     "(mpicc) beside ours"},
    {"peer-python", NULL, OPTION_TEXT, GROUP_BENCH, COMPARISON | RANKS_BENCH, PRIVATE,
     FIELD(bench.peer_python), NULL, "PROGRAM", "that Python [$TORCH_PYTHON, else python3]"},

    {"minbytes", "-b", OPTION_TEXT, GROUP_MESSAGES, RANKS_BENCH, PRIVATE, FIELD(bench.minbytes),
     "8", "SIZE", "the smallest message"},
    {"maxbytes", "-e", OPTION_TEXT, GROUP_MESSAGES, RANKS_BENCH, PRIVATE, FIELD(bench.maxbytes),
     "16M", "SIZE", "the largest; every rank takes three times as much memory"},
    {"stepfactor", "-f", OPTION_REAL, GROUP_MESSAGES, RANKS_BENCH, PRIVATE, AT(bench.stepfactor), 1,
     1e9, "2", "X", "from one size to the next"},
    {"iters", "-n", OPTION_INTEGER, GROUP_MESSAGES, RANKS_BENCH, PRIVATE, AT(bench.iters), 1, 1e6,
     "20", "N", "operations of a size that are timed"},
    {"warmup-iters", "-w", OPTION_INTEGER, GROUP_MESSAGES, RANKS_BENCH, PRIVATE,
     AT(bench.warmup_iters), 0, 1e6, "5", "N", "operations before them"},
    {"check", "-c", OPTION_INTEGER, GROUP_MESSAGES, RANKS_BENCH, PRIVATE, AT(bench.check_results),
     0, 1e6, "1", "0|1", "look at the results of each size: #wrong"},
    {"datatype", "-d", OPTION_WORD, GROUP_MESSAGES, RANKS_BENCH, PRIVATE, FIELD(bench.datatype),
     "float", "float|double|half|bfloat16|int64|uint8", "of the elements"},
    {"redop", "-o", OPTION_WORD, GROUP_MESSAGES, RANKS_BENCH, PRIVATE, FIELD(bench.redop), "sum",
     "sum|prod|min|max|avg", "how elements are reduced"},
    {"root", NULL, OPTION_INTEGER, GROUP_MESSAGES, RANKS_BENCH, PRIVATE, AT(bench.root), 0,
     MAX_RANKS, "0", "N", "the rank that sends or gets, if it is one"},

    {"samples", NULL, OPTION_INTEGER, GROUP_SAMPLER, FOR_SAMPLER | FOR_DEMO, PRIVATE,
     AT(sampler.samples), 1, MAX_COUNT, "60000", "N", "size of the data set"},
    {"epoch", NULL, OPTION_INTEGER, GROUP_SAMPLER, FOR_SAMPLER, PRIVATE, AT(sampler.epoch), 0,
     MAX_COUNT, "0", "N", "of which epoch"},
    {"head", NULL, OPTION_INTEGER, GROUP_SAMPLER, FOR_SAMPLER, PRIVATE, AT(sampler.head), 0,
     MAX_COUNT, NULL, "N", "only the first N indices [all]"},

    {"fast", NULL, OPTION_SWITCH, GROUP_DEMO, FOR_DEMO, PRIVATE, FIELD(demo.fast), NULL, NULL,
     "without time to read"},
    {"html", NULL, OPTION_TEXT, GROUP_DEMO, FOR_DEMO, PRIVATE, FIELD(demo.html), NULL, "FILE",
     "also as an animated page, which needs no network"},

    {"host", NULL, OPTION_TEXT, GROUP_SERVER, FOR_STORE, PRIVATE, FIELD(server.host), NULL,
     "HOST[:PORT]", "where the store is [$MASTER_ADDR:$MASTER_PORT, else 127.0.0.1:29500]"},
    {"bind", NULL, OPTION_TEXT, GROUP_SERVER, FOR_SERVE | FOR_STORE, PRIVATE, FIELD(server.bind),
     "127.0.0.1", "ADDRESS", "where to listen; 0.0.0.0: for every machine that can reach this one"},
    {"port", NULL, OPTION_INTEGER, GROUP_SERVER, FOR_SERVE | FOR_STORE, PRIVATE, AT(server.port), 0,
     65535, "0", "N", "0: a free one"},

    {"config", NULL, OPTION_TEXT, GROUP_GENERAL, FOR_ALL, PRIVATE, FIELD(config), NULL, "FILE",
     "YAML file with settings: \"batch-size: 64\""},
    {"help", NULL, OPTION_HELP, GROUP_GENERAL, FOR_ALL, PRIVATE, NOTHING, NULL, NULL,
     "this text; also -h"},
    {"version", NULL, OPTION_VERSION, GROUP_GENERAL, FOR_ALL, PRIVATE, NOTHING, NULL, NULL,
     "version and the library that computes"},
};
/* clang-format on */

const size_t options_table_count = sizeof options_table / sizeof options_table[0];

_Static_assert(sizeof options_table / sizeof options_table[0] <= sizeof((options *)0)->given,
               "options.given has a place for every row");

const char *setting_why(setting_class class)
{
    static const char *const why[] = {
        [RUN] = "the steps before were computed with the former",
        [RUN_STATE] = "the checkpoint's weights and state are of the former",
        [RUN_ORDER] = "the order and the batches of the epoch are those of the former",
        [RUN_RATE] = "a run follows one schedule",
        [RUN_SPLIT] = "what was trained on would be validated on, or the other way round",
        [RUN_SUMS] = "the steps before were computed with the former",
        [JOB_SPREAD] = "the steps before were computed with the former",
        [JOB_LENGTH] = "its schedule ends with the last of them",
    };
    return why[class];
}

bool options_table_spelling(const option_row *row, int i, char out[OPTION_NAME_BYTES],
                            bool *negated)
{
    *negated = false;
    if (i == 0) {
        snprintf(out, OPTION_NAME_BYTES, "%s", row->name);
        return true;
    }
    int at = 1;
    for (const char *alias = row->aliases; alias != NULL && *alias != '\0'; at++) {
        int length = (int)strcspn(alias, " ");
        if (at == i) {
            snprintf(out, OPTION_NAME_BYTES, "%.*s", length, alias);
            return true;
        }
        alias += length;
        alias += strspn(alias, " ");
    }
    *negated = true;
    snprintf(out, OPTION_NAME_BYTES, "no-%s", row->name);
    bool negatable = row->kind == OPTION_SWITCH || row->kind == OPTION_MODE;
    return at == i && negatable && strncmp(row->name, "no-", 3) != 0;
}

void options_table_normalize(const char *name, char out[OPTION_NAME_BYTES])
{
    size_t length = strlen(name);
    out[0] = '\0';
    if (length >= OPTION_NAME_BYTES)
        return;
    for (size_t i = 0; i <= length; i++)
        out[i] = name[i] == '_' ? '-' : name[i];
}

bool options_table_find(const char *name, unsigned commands, option_match *out)
{
    char spelling[OPTION_NAME_BYTES];
    bool negated;
    for (size_t r = 0; r < options_table_count; r++) {
        const option_row *row = &options_table[r];
        if ((row->commands & commands) == 0)
            continue;
        for (int i = 0; options_table_spelling(row, i, spelling, &negated); i++)
            if (strcmp(spelling, name) == 0) {
                *out = (option_match){row, negated};
                return true;
            }
    }
    return false;
}

int options_table_find_prefix(const char *name, unsigned commands, option_match *out,
                              char *candidates, size_t size_bytes)
{
    char spelling[OPTION_NAME_BYTES];
    bool negated;
    int found = 0;
    size_t length = strlen(name), used = 0;
    candidates[0] = '\0';
    for (size_t r = 0; r < options_table_count; r++) {
        const option_row *row = &options_table[r];
        if ((row->commands & commands) == 0)
            continue;
        bool row_found[2] = {false, false}; /* plain, negated: aliases are one candidate */
        for (int i = 0; options_table_spelling(row, i, spelling, &negated); i++) {
            if (row_found[negated] || strncmp(spelling, name, length) != 0)
                continue;
            row_found[negated] = true;
            if (found++ == 0)
                *out = (option_match){row, negated};
            int n = snprintf(candidates + used, size_bytes - used, "%s--%s", used ? ", " : "",
                             spelling);
            used += n > 0 && (size_t)n < size_bytes - used ? (size_t)n : 0;
        }
    }
    return found;
}

void options_table_nearest(const char *name, unsigned commands, char out[OPTION_NAME_BYTES])
{
    char spelling[OPTION_NAME_BYTES];
    bool negated;
    nearest search;
    nearest_init(&search, name);
    for (size_t r = 0; r < options_table_count; r++)
        for (int i = 0; (options_table[r].commands & commands) != 0 &&
                        options_table_spelling(&options_table[r], i, spelling, &negated);
             i++)
            nearest_offer(&search, spelling);
    snprintf(out, OPTION_NAME_BYTES, "%s", search.best);
}
