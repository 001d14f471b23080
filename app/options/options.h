/* Every setting of the program: one table makes the flags, the environment, the configuration file
 * and the help.
 *
 * Order of precedence: command line, then MNIST_DDP_<NAME>, then --config FILE, then the default.
 * "--batch-size" and "--batch_size" are the same flag, as are "batch-size" and "batch_size" in a
 * file.
 */
#ifndef MNIST_DDP_APP_OPTIONS_OPTIONS_H
#define MNIST_DDP_APP_OPTIONS_OPTIONS_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum command {
    COMMAND_TRAIN,
    COMMAND_RESUME, /* of the table alone: options.command is COMMAND_TRAIN */
    COMMAND_EVAL,
    COMMAND_PREDICT,
    COMMAND_SERVE,
    COMMAND_REPORT,
    COMMAND_SAMPLER,
    COMMAND_DATA,
    COMMAND_RUN,
    COMMAND_STORE,
    COMMAND_BENCH,
    COMMAND_DEMO,
    COMMAND_DOCTOR,
    COMMAND_ENV,
    COMMAND_COMPLETION,
    COMMAND_MANUAL,
    COMMAND_HELP,
    COMMAND_VERSION,
} command;

enum { OPTIONS_MAX_RUNS = 8 };

/* Strings are owned by the options; NULL if not given and no default is noted. Numbers that may
 * be "not given" are -1 then. app/options/training_values.h reads those that are more than a
 * number. What one command alone has is a struct of that command. */
typedef struct options {
    command command;
    command help_topic;    /* of COMMAND_HELP: the command asked about; COMMAND_HELP: the program */
    bool help_all;         /* of COMMAND_HELP: every flag of every command */
    command examined;      /* of COMMAND_DOCTOR: COMMAND_TRAIN or COMMAND_RUN */
    const char *action;    /* of COMMAND_DATA, _STORE and _DEMO: argv's own; NULL: none was named */
    const char *shell;     /* of COMMAND_COMPLETION: argv's own; NULL: none was named */
    const char *benchmark; /* of COMMAND_BENCH, as benchmark_table names it; NULL: none was named */
    bool resumes;          /* the command was "resume" */
    int words;             /* on the command line: the command, and what it is about */

    /* what is trained */
    char *model;         /* "cnn" */
    char *optimizer;     /* "adadelta" */
    double lr;           /* not given: the optimizer's own default (negative) */
    bool scale_lr;       /* lr times the ranks */
    double momentum;     /* 0 */
    double weight_decay; /* not given: the optimizer's own default (negative) */
    char *adam_betas;    /* "0.9,0.999" */
    bool nesterov;
    double clip_grad_norm;     /* -1: gradients are not clipped */
    double label_smoothing;    /* 0 */
    char *augment;             /* NULL: images stay as they are */
    double gamma;              /* 0.7, of StepLR, per epoch */
    char *schedule;            /* "step"; see model/schedule.h */
    double pct_start;          /* 0.3, of OneCycleLR */
    int64_t warmup_steps;      /* 0 */
    double warmup_factor;      /* 1/3, of LinearLR */
    int64_t epochs;            /* 14: the total */
    int64_t batch_size;        /* 64, per rank */
    int64_t global_batch_size; /* -1; the alternative to batch_size */
    char *elastic_batch;       /* NULL: "global" if that is given, else "local" */
    int64_t test_batch_size;   /* 1000 */
    char *eval_every;          /* "1epochs"; "0": no tests */
    int64_t accum;             /* 1: batches per optimizer step */
    int64_t seed;              /* 1 */
    int64_t limit;             /* -1: all images; else train on the first N */
    double val_split;          /* 0 */
    double target_acc; /* -1; stop after the test whose accuracy (0..1, or > 1: percent) reaches
                          it */
    bool drop_last;    /* of the sampler */
    bool shuffle;      /* true; --no-shuffle */
    bool dry_run;      /* one step, one epoch, nothing saved; run: only the plan */

    /* where it computes */
    char *device;  /* "auto" */
    char *devices; /* "0,3" */
    char *amp;     /* "off" */
    bool tf32;
    bool cuda_graph; /* true; --no-cuda-graph */
    bool no_accel;   /* --no-accel, --no-cuda and --no-mps: the CPU */
    char *isa;       /* "auto" */
    bool dense;      /* multiply zeros, too */
    int64_t threads; /* -1: cores / ranks on this host */
    char *bind_to;   /* "core", "none" */

    /* data and results */
    char *dataset; /* "mnist"; see data/dataset.h */
    char *data_dir;
    char *run_dir;    /* default runs/<time>-<model> */
    char *resume;     /* NULL; "must": continue the run in run_dir; "auto": if there is one */
    char *init;       /* NULL; the model.safetensors or run folder whose weights it starts from */
    char *save_every; /* "1epochs" */
    int64_t keep;     /* 2: checkpoints that stay */
    bool save_model;  /* true; --no-save-model */
    char *checkpoint; /* eval: a model.safetensors or a run folder */
    char *out;        /* of bench and eval; NULL: a new folder in runs/ */

    /* how it talks */
    int64_t log_interval; /* 10 steps */
    char *log_format;     /* "auto", "plain", "pytorch" */
    bool json;            /* one JSON line on stdout at the end; the log goes to stderr */
    bool progress;        /* true: a bar if the log is a terminal; --no-progress */
    char *trace;          /* NULL; the file for a trace of the run */
    int64_t trace_steps;  /* 200: of which the trace keeps every span */
    bool explain;         /* says at the start what is about to happen */
    bool quiet;           /* only warnings, errors and results */

    /* data parallelism */
    char *mode;                  /* "ddp"; see app/train/strategy.h */
    int64_t replicas;            /* -1: one per GPU, 2 on the CPU; of --mode=dp */
    char *backend;               /* "auto" */
    char *comm_hook;             /* "none" */
    int64_t powersgd_rank;       /* 4 */
    int64_t powersgd_start_iter; /* 50 */
    double bucket_cap_mb;        /* -1: 25 MiB with a first bucket of 1 MiB; given: both */
    bool overlap;                /* true; --no-overlap */
    bool nccl_nvls;              /* NCCL may use NVLS, whose sums have no fixed order */
    int64_t timeout;             /* 60 s, of a collective */
    int64_t join_timeout;        /* 600 s, of waiting for ranks */
    int64_t inject_delay_ms;     /* 0 */
    char *init_method;           /* NULL: env://; see dist/rendezvous.h */
    int64_t rank;                /* -1: as the environment says; of sampler 0 */
    char *debug;                 /* off, info or detail; NULL: $TORCH_DISTRIBUTED_DEBUG */
    char *inject;                /* NULL; see app/options/training_values.h */

    /* the launcher; each also as torchrun's PET_<NAME> */
    char *launcher;           /* "auto"; of app/launch/outer_launcher.h; our own */
    char *nproc_per_node;     /* "auto" | "cpu" | "gpu" | N; NULL */
    char *nnodes;             /* "N" or "MIN:MAX"; NULL */
    int64_t node_rank;        /* -1 */
    int64_t world_size;       /* -1 */
    int64_t local_world_size; /* -1; accepted if it is what nproc_per_node comes to */
    char *master_addr;        /* NULL: 127.0.0.1 */
    int64_t master_port;      /* -1: 29500, or a free one if there is one node */
    int64_t local_rank; /* -1; accepted for scripts of torch.distributed.launch; LOCAL_RANK wins */
    char *local_addr;   /* NULL: as the route to node 0 says */
    bool standalone;
    char *rdzv_backend;             /* "static" */
    char *rdzv_endpoint;            /* "HOST[:PORT],..."; NULL */
    char *rdzv_id;                  /* NULL: "none", or a random one if the port is a free one */
    char *rdzv_conf;                /* "KEY=VALUE,..."; NULL */
    int64_t max_restarts;           /* 0 */
    double monitor_interval;        /* 0.1 s between two looks at the other nodes */
    int64_t shutdown_timeout;       /* -1: $TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30 s */
    char *signals_to_handle;        /* "SIGTERM,SIGINT,SIGHUP,SIGQUIT" */
    char *exit_code;                /* "first", "torchrun" */
    char *log_dir;                  /* NULL: a temporary folder, kept if something fails */
    char *redirects;                /* "0" to "3", or "0:1,1:2" */
    char *tee;                      /* likewise */
    char *local_ranks_filter;       /* "0,1"; NULL: all */
    char *duplicate_stdout_filters; /* "apple,orange"; NULL; see app/launch/output.h */
    char *duplicate_stderr_filters;
    char *log_line_prefix_template; /* NULL: "[${role_name}${local_rank}]:" */
    char *event_log;                /* NULL; see app/common/event_log.h */
    bool event_log_steps;
    int64_t health_check_port; /* -1; see app/launch/health_check.h */

    /* mnist_ddp predict: files; data show: indices; store: keys and values */
    const char **files; /* argv's own words, in an array of the options; NULL: none */
    int n_files;
    char **program; /* of run: PROGRAM ARGS, argv's own, NULL at the end; NULL: none. store: what
                       follows "--" */

    /* mnist_ddp report; of eval and serve, the first alone */
    const char *runs[OPTIONS_MAX_RUNS]; /* run folders: argv's own */
    int n_runs;

    /* mnist_ddp bench; lists are numbers or words with commas between them */
    struct {
        char *modes;       /* "single,dp,ddp" */
        char *world_sizes; /* "1,2,4" */
        char *models;      /* "mlp,cnn" */
        char *batch_sizes; /* "64" */
        char *scaling;     /* "both" */
        int64_t repeats;   /* 7 */
        int64_t warmup;    /* 1 */
        int64_t steps;     /* 50 */
        char *peer;        /* "none", "torch" */
        char *peer_python; /* NULL: $TORCH_PYTHON, else "python3" */
        /* bench all-reduce, broadcast, ...; sizes as "64K" */
        char *minbytes;        /* "8" */
        char *maxbytes;        /* "16M" */
        double stepfactor;     /* 2 */
        int64_t iters;         /* 20 */
        int64_t warmup_iters;  /* 5 */
        int64_t check_results; /* 1; 0: nobody looks */
        char *datatype;        /* "float" */
        char *redop;           /* "sum" */
        int64_t root;          /* 0 */
    } bench;

    /* mnist_ddp data show and fetch */
    struct {
        bool test;              /* images of the test set */
        int64_t label;          /* -1: all */
        int64_t columns;        /* -1: as many as fit */
        char *mirror;           /* "URL,URL": asked before the known ones; NULL */
        bool offline;           /* nothing is fetched */
        double connect_timeout; /* 5 s, for all mirrors together */
        int64_t stall_timeout;  /* 20 s */
        int64_t lock_timeout;   /* 600 s, for another process that fetches the same */
    } data;

    /* mnist_ddp run: the program that it starts */
    struct {
        bool module;        /* PROGRAM is a Python module */
        bool no_python;     /* PROGRAM is executed itself */
        bool run_path;      /* by Python's runpy.run_path */
        bool use_env;       /* true; --no-use-env: --local-rank=N goes to the program */
        char *role;         /* "default" */
        char *start_method; /* accepted: workers are always executed anew */
        bool virtual_local_rank;
        char *print_completion; /* "bash", "zsh", "fish"; NULL */
    } run;

    /* mnist_ddp sampler; demo takes the number of samples */
    struct {
        int64_t samples; /* 60000 */
        int64_t epoch;   /* 0 */
        int64_t head;    /* -1: all */
    } sampler;

    /* mnist_ddp demo */
    struct {
        bool fast;  /* without time for a reader */
        char *html; /* NULL; the file for an animated page */
    } demo;

    /* mnist_ddp serve and store */
    struct {
        char *host;   /* store: "HOST[:PORT]"; NULL: $MASTER_ADDR, else 127.0.0.1 */
        char *bind;   /* "127.0.0.1" */
        int64_t port; /* serve: 0, a free one; store: 29500, or $MASTER_PORT of a client */
    } server;

    char *config; /* --config FILE */

    char **command_line;     /* all words, the program's first; argv's own, NULL at the end */
    bool launch_flags_given; /* a launcher flag stood on the command line */
    uint8_t given[192];      /* per table row: 0 default, 1 file, 2 environment, 3 command line */
} options;

/* Reads the command line, the environment and the configuration file. On failure the message names
 * the flag, variable or file:line, what is allowed and, for an unknown name, the nearest known one.
 */
status options_read(int argc, char **argv, options *out);

/* What no single setting can tell. */
status options_check(options *opts);

/* A warning for each flag of the command line that only another one makes use of. */
void options_say_unused(const options *opts);

/* Both. */
status options_parse(int argc, char **argv, options *out);
void options_free(options *opts);

/* How many words of the command line from word `at` on are the flag `name`, which takes a value,
 * however it is spelled: 1, 2; 0: it is another word. */
int options_words_of(const options *opts, int at, const char *name);

/* Was the setting of this name ("batch_size") given anywhere (not a default)? */
bool options_given(const options *opts, const char *name);

/* Prints the help that was asked for (COMMAND_HELP) on stdout, from the tables: the program's on
 * one screen, that of a command or benchmark with its flags in groups. */
void options_print_help(const options *opts);

#endif
