/* Every setting of the program: one table makes the flags, the environment, the configuration file
 * and the help.
 *
 * Order of precedence: command line, then MNIST_DDP_<NAME>, then --config FILE, then the default.
 * "--batch-size" and "--batch_size" are the same flag, as are "batch-size" and "batch_size" in a
 * file.
 */
#ifndef MNIST_DDP_APP_OPTIONS_H
#define MNIST_DDP_APP_OPTIONS_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum command {
    COMMAND_TRAIN,
    COMMAND_EVAL,
    COMMAND_SAMPLER,
    COMMAND_HELP,
    COMMAND_VERSION,
} command;

/* Strings are owned by the options; NULL where not given and no default is noted. Numbers that may
 * be "not given" are -1 then. */
typedef struct options {
    command command;
    command help_topic; /* of COMMAND_HELP: the command asked about, or COMMAND_HELP for all */

    /* what is trained */
    char *model;                   /* "cnn" */
    char *optimizer;               /* "adadelta" */
    double lr;                     /* not given: the optimizer's own default (negative) */
    double momentum, weight_decay; /* 0 */
    bool nesterov;
    double gamma;              /* 0.7, of StepLR, per epoch */
    int64_t epochs;            /* 14: the total */
    int64_t batch_size;        /* 64, per rank */
    int64_t global_batch_size; /* -1; the alternative to batch_size */
    int64_t test_batch_size;   /* 1000 */
    int64_t accum;             /* 1: batches per optimizer step */
    int64_t seed;              /* 1 */
    int64_t limit;             /* -1: all images; else train on the first N */
    double target_acc; /* -1; stop after the epoch whose test accuracy (0..1, or > 1: percent)
                          reaches it */
    bool drop_last;    /* of the sampler */
    bool dry_run;      /* one step, one epoch */

    /* where it computes */
    char *device;  /* "auto" */
    char *devices; /* "0,3" */
    char *amp;     /* "off" */
    bool tf32;
    bool cuda_graph; /* true; --no-cuda-graph */
    bool no_accel;   /* --no-accel, --no-cuda and --no-mps: the CPU */
    int64_t threads; /* -1: cores / ranks on this host */

    /* data and results */
    char *data_dir;
    char *run_dir;    /* default runs/<time>-<model> */
    bool resume;      /* continue the run in run_dir */
    bool save_model;  /* true; --no-save-model */
    char *checkpoint; /* eval: a model.safetensors or a run folder */

    /* how it talks */
    int64_t log_interval; /* 10 steps */
    char *log_format;     /* "auto", "plain", "pytorch" */
    bool json;            /* one JSON line on stdout at the end; the log goes to stderr */
    bool progress;        /* true: a bar where the log is a terminal; --no-progress */
    bool quiet;           /* only warnings, errors and results */

    /* data parallelism */
    char *backend;           /* "auto" */
    double bucket_cap_mb;    /* -1: 25 MiB with a first bucket of 1 MiB; given: both */
    bool overlap;            /* true; --no-overlap */
    int64_t timeout;         /* 60 s, of a collective */
    int64_t join_timeout;    /* 600 s, of waiting for ranks */
    int64_t inject_delay_ms; /* 0 */

    /* the launcher */
    char *nproc_per_node; /* "auto" | "cpu" | "gpu" | N; NULL */
    char *nnodes;         /* "N" or "N:N"; NULL */
    int64_t node_rank;    /* -1 */
    int64_t world_size;   /* -1 */
    char *master_addr;    /* NULL: 127.0.0.1 */
    int64_t master_port;  /* -1: 29500, or a free one where one node needs none */
    int64_t local_rank; /* -1; accepted for scripts of torch.distributed.launch; LOCAL_RANK wins */
    bool standalone;

    /* mnist_ddp sampler */
    int64_t samples; /* 60000 */
    int64_t rank;    /* 0 */
    int64_t epoch;   /* 0 */
    int64_t head;    /* -1: all */
    bool shuffle;    /* true; --no-shuffle */

    char *config; /* --config FILE */

    bool launch_flags_given; /* a launcher flag stood on the command line */
    uint8_t given[128];      /* per table row: 0 default, 1 file, 2 environment, 3 command line */
} options;

/* Reads the command line, the environment and the configuration file. On failure the message names
 * the flag, variable or file:line, what is allowed and, for an unknown name, the nearest known one.
 */
status options_parse(int argc, char **argv, options *out);
void options_free(options *opts);

/* Was the setting of this name ("batch_size") given anywhere (not a default)? */
bool options_given(const options *opts, const char *name);

/* Prints the help of a command on stdout, grouped, from the table; of all for COMMAND_HELP. */
void options_print_help(command which);

#endif
