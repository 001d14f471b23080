/* mnist_ddp bench: what all benchmarks share, and one function for each of them. */
#ifndef MNIST_DDP_APP_BENCH_BENCH_H
#define MNIST_DDP_APP_BENCH_BENCH_H

#include "app/bench/measure.h"
#include "app/options/options.h"
#include "app/train/strategy.h"
#include "base/file.h"
#include "base/status.h"
#include "dist/rendezvous.h"
#include "model/model_kind.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* Measures; opts->benchmark says what. Returns the exit code, and has said why on stderr if it is
 * not 0. `argc`, `argv`: the whole command line, for the record. */
int bench_command(const options *opts, int argc, char **argv);

/* The same, of one benchmark. */
int dp_vs_ddp_command(const options *opts, int argc, char **argv); /* DP beside DDP; all modes */
int scaling_command(const options *opts, int argc, char **argv);   /* by ranks */

/* bench all-reduce, broadcast, ... measure as one rank, which main starts; rank 0 prints.
 * EXIT_CODE_INTERNAL also if results were wrong. */
int collective_command(const options *opts, const rendezvous_place *place, int64_t started_ns);

/* Is this one of those? */
bool collective_is_meant(const options *opts);

/* Of its flags, for an error that comes once and not from every rank. */
status collective_check_flags(const options *opts);

/* STATUS_INVALID if the command line has a flag that this benchmark does not know. */
status bench_check_flags(const options *opts);

/* Is a report asked for, of several backends, beside a peer, or in --out? Then this does so, in
 * children of its own. */
bool collective_compares(const options *opts);
int collective_compare_command(const options *opts, int argc, char **argv);

/* A benchmark that measures in children: what all of them hold. */
typedef struct bench_study {
    const options *opts;
    bench_child place;            /* where they run */
    json_t *document;             /* app/report/report.h */
    char folder[FILE_PATH_BYTES]; /* for what it leaves */
} bench_study;

typedef struct bench_plan {
    const char *title;
    int64_t timeout_ms; /* one child's */
    int unwritten;      /* the exit code if the document cannot be written */
    bool says_beside;   /* with --json, but without --quiet, stderr has the text */
    /* Reads the flags, before anything is opened; a failure is one of usage. */
    status (*prepare)(bench_study *s, void *self);
    /* Measures until a signal comes (bench_child_stopped), and fills the document. */
    status (*measure)(bench_study *s, void *self);
} bench_plan;

/* Prepares; makes the folder, unless that has been done; measures; writes the document, and a page
 * of all in the folder; and prints the document on stdout, for people, or with --json as one line.
 * Returns the exit code. `argc`, `argv`: the whole command line, for the record. */
int bench_study_run(const bench_plan *plan, void *self, const options *opts, int argc, char **argv);

/* Warns, and notes in the document, if other programs keep half of this machine's cores or more
 * busy: what else runs here is in every figure. */
void bench_say_if_busy(json_t *document);

/* Makes the folder that takes what the benchmark leaves, and sets `path` (FILE_PATH_BYTES): --out,
 * or a new runs/<local time>-bench-<name>. */
status bench_folder_make(const options *opts, char *path);

/* Writes FOLDER/report.html of all benchmarks' documents that are there. */
status bench_page_write(const char *folder);

/* What `mnist_ddp bench dp-vs-ddp` and `bench modes` measure: every combination of modes, world
 * sizes, models and batch sizes that makes sense, each once; and how the lists of flags are read,
 * "1,2,4", "dp,ddp". And the command lines of measured cases: the same work for every mode, and
 * for PyTorch. */
enum { BENCH_LIST_MAX = 32 };

typedef struct bench_list {
    int values[BENCH_LIST_MAX]; /* each once, in the order of the flag */
    int n;
} bench_list;

/* Reads whole numbers from 1 to `most`. STATUS_INVALID names the flag, the wrong entry and what is
 * allowed. */
status bench_list_numbers(const char *flag, const char *text, int most, bench_list *out);

/* Read --modes and --models: strategy_kinds, and after them variants from STRATEGY_COUNT on; "all"
 * is each of them. model_kinds. STATUS_INVALID as above. */
status bench_list_modes(const char *text, bench_list *out);
status bench_list_models(const char *text, bench_list *out);

/* What a word of --modes means: a strategy, or a variant of one, with flags of its own. */
typedef struct bench_mode {
    const char *name;
    strategy_kind strategy;
    const char *flags; /* of train, beside --mode; NULL: none */
    bool by_rank;      /* an optimizer step is of one rank's batch */
    bool cpu_only;     /* the flags are */
    bool has_peer;     /* bench/peers/torch_ddp_mnist.py knows mode and flags */
    const char *advice;
} bench_mode;

enum { BENCH_VARIANTS = 4 };

typedef struct bench_case {
    bool is_all_reduce; /* bench scaling's, of several sizes: it has a world, and nothing else */
    bool torch;         /* PyTorch's; else ours */
    strategy_kind mode;
    int variant; /* of the mode, from 1; 0: the mode as it is */
    model_kind model;
    int world;         /* ranks, or replicas of dp */
    int batch;         /* as --batch-sizes says */
    int global_batch;  /* images of one optimizer step */
    bool strong, weak; /* which comparison it belongs to; both if world is 1 */
} bench_case;

typedef struct bench_cases {
    bench_case *list; /* free with bench_cases_free */
    int count;
} bench_cases;

/* Reads the lists of the options. What cannot be done (ps on one rank, a batch that ranks cannot
 * share evenly, what PyTorch does not have) is left out, and said in `notes`, an array that gets
 * one text for each. STATUS_INVALID names the flag and what is allowed; also if nothing is left
 * to measure. `is_cuda`: the runs compute on GPUs. */
status bench_cases_make(const options *opts, bool is_cuda, bench_cases *out, json_t *notes);
void bench_cases_free(bench_cases *cases);

bench_mode bench_case_mode(const bench_case *c);

/* "ddp x 4, cnn, batch 256", or "torch ddp x 4, ..." */
void bench_case_name(const bench_case *c, char out[BENCH_CASE_BYTES]);

/* The run on one device that a case is compared with: same system, model and batch; mode single
 * if there is such a row, else the same mode, else another. -1: none. */
int bench_cases_base(const bench_cases *cases, int i);

/* The case that differs from case i in its mode, or in being ours, alone, and is no variant; -1:
 * none. */
int bench_cases_find(const bench_cases *cases, int i, bool torch, strategy_kind mode);

typedef struct bench_commands {
    const options *opts;
    const char *program; /* ours: "/proc/self/exe" */
    const char *folder;  /* where runs may write */
    bool is_cuda;
    bool evaluates;             /* once, in the end */
    int64_t steps;              /* in an epoch */
    int threads;                /* per rank or replica */
    double lr;                  /* the optimizer's own, if none was given */
    char data[FILE_PATH_BYTES]; /* folder of the images; "": they are made in memory */
    bool is_mnist;              /* and not the embedded digits */
    char python[FILE_PATH_BYTES], script[FILE_PATH_BYTES]; /* the peer's; "" without one */
} bench_commands;

/* `folder` is borrowed. */
status bench_commands_init(const options *opts, bool is_cuda, const char *folder,
                           bench_commands *out);

/* Finds the images, so that they are made now if there are none, and not in the first run. With
 * --peer=torch also its Python, its script and MNIST's files: STATUS_INVALID says which of them is
 * missing and how to name it. */
status bench_commands_find(bench_commands *commands);

/* The script or source of a peer, in `out` (FILE_PATH_BYTES). STATUS_INVALID, with the places that
 * were looked at: it is not there. Its name begins with the peer's: "torch_...". */
status bench_find_peer(const char *name, char *out);

/* --peer-python, $TORCH_PYTHON or python3. */
const char *bench_peer_python(const options *opts);

/* An epoch is commands->steps optimizer steps (opts->steps if nobody changes it), of the first
 * images in the data set. */
void bench_commands_make(const bench_commands *commands, const bench_case *c, bench_words *out);

enum { BENCH_FAILURE_BYTES = 512, BENCH_COMMAND_BYTES = 2048 };

/* What was measured: one row per case, one sample per repeat. */
typedef struct bench_row {
    const bench_case *c;
    bench_sample *samples;             /* [repeat] */
    char failure[BENCH_FAILURE_BYTES]; /* the last one; "" */
    char command[BENCH_COMMAND_BYTES];
} bench_row;

typedef struct bench_rows {
    const bench_cases *cases;
    bench_row *list;       /* [case] */
    bench_sample *samples; /* of all */
    int repeats;           /* room in each row */
    int threads, cores;
    bool is_cuda;
} bench_rows;

/* A number of a sample, by its place: offsetof(bench_sample, step_s). */
#define BENCH_FIELD(field) offsetof(bench_sample, field)

/* Borrows the cases. */
status bench_rows_create(const bench_cases *cases, int repeats, bench_rows *out);
void bench_rows_free(bench_rows *rows);

int bench_row_samples(const bench_rows *rows, int row);

/* NAN if no sample knows it. */
double bench_row_median(const bench_rows *rows, int row, size_t field);

/* Samples of all cases (app/bench/measure.h), and failures, go into the rows. */
status dp_vs_ddp_measure(const bench_commands *commands, bench_child *place, bench_rows *rows);

/* Fills the document: settings, rows, tables, summary, limits. `notes`: what cases were left out.
 */
void dp_vs_ddp_document(const bench_commands *commands, const bench_rows *rows, const json_t *notes,
                        json_t *document);

/* Adds plots of what the rows give to the document. */
void dp_vs_ddp_plots(const bench_rows *rows, json_t *document);

/* Why a run is as fast as it is: one sentence, made from where its time goes by stated rules.
 *
 * Each rule looks at the medians of one row (and of the run on one device beside it), and either
 * does not apply or names a cause and the share of the step that it explains. The sentence names
 * the causes with the largest shares. A number that is not known (NAN) fulfils no condition. */
typedef struct bench_facts {
    strategy_kind mode;
    int world, global_batch;
    int threads, cores; /* per rank or replica; of the machine */
    bool is_cuda;
    double step_s;            /* the phases are parts of it; NAN: not known */
    double phase_s[N_PHASES]; /* per step */
    double comm_total_s;      /* per step, from launch to end, hidden or not */
    double base_compute_s;    /* forward + backward of one image on one device alone */
    int base_batch;           /* images at a time there */
} bench_facts;

enum { BENCH_WHY_BYTES = 400 };
void bench_why(const bench_facts *facts, char out[BENCH_WHY_BYTES]);

/* Rule i (from 0) in words, for the documentation in each report; NULL after the last. */
const char *bench_why_rule(int i);

/* bench scaling: what steps and all-reduces take, by the number of ranks. What they would take
 * elsewhere is bench/scaling.py's to say. */
enum { SCALING_MAX_RUNS = 1024 };

typedef struct scaling_plan {
    bench_case runs[SCALING_MAX_RUNS]; /* one repeat's: a child process each */
    int n_runs;
    int cores; /* shared by ranks: cores by threads, or GPUs */
    int gpus;  /* 0: the CPU computes */
} scaling_plan;

/* STATUS_INVALID if a list makes no sense. */
status scaling_plan_make(const options *opts, scaling_plan *out);

/* Of a step: DDP's gradients; what rank 0 of a server or a master exchanges with one other rank. */
double scaling_bytes(const bench_case *run);

/* Of the bucket that DDP fills last, by default. */
double scaling_last_bucket_bytes(model_kind model);

#endif
