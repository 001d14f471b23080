/* A run in numbers: what it is, and the JSON line of what it has come to. */
#ifndef MNIST_DDP_APP_TRAIN_RESULT_H
#define MNIST_DDP_APP_TRAIN_RESULT_H

#include "app/common/run_files.h"
#include "app/train/rank_context.h"
#include "model/checkpoint.h"

#include <jansson.h>

typedef struct evaluation {
    const char *name;        /* the images': "test", "validation" */
    int64_t images, correct; /* over all ranks */
    double loss;             /* mean over images, in nats */
    double elapsed_s;
} evaluation;

/* A test of the run, and after what. */
typedef struct test_found {
    checkpoint_test test; /* .images is 0: there was none */
    int64_t step, epoch;  /* epoch: from 1 */
} test_found;

/* correct / images. */
double evaluation_accuracy(const evaluation *e);

/* What the loop counts, zeroed at its start. Arrays have one element per epoch trained by this
 * process. result_close accepts a zeroed one. */
typedef struct result {
    double *train_s;
    int epochs;                       /* in train_s */
    int64_t images_per_epoch;         /* in the last one, all ranks', with the sampler's padding */
    double images_per_s;              /* in the fastest epoch; 0: none was trained */
    char date[RUN_CONFIG_DATE_BYTES]; /* when it started */
    double setup_s;                   /* exec to the first optimizer step's end */
    evaluation test;                  /* the last one; .images is 0: there was none */
    evaluation validation;            /* likewise, on the images of --val-split */
    test_found best;                  /* among all that decide about the run, before a resume too */
    double last_loss;                 /* mean of this rank's last batch */
    int64_t steps;                    /* the optimizer's, in train_s */
    device_use moved;                 /* by this rank in these steps */
    bool graph;                       /* steps were replayed as graphs */
    int failed_checkpoints;           /* those that were due and could not be written */
    json_t *changes;                  /* the world's, in this process: an array; NULL: none */

    /* from result_finish on */
    bool knows_waiting; /* else it is in the other phases */
    bool knows_exposed; /* false: all is MOMENT_ACCELERATOR */
    device_use busiest; /* the most of any rank or replica, each number for itself */
    int64_t *peaks;     /* bytes of device memory: (n_peaks), one per rank or replica */
    int n_peaks;
    int64_t bound_ranks;          /* to cores of their own, to the end */
    int64_t comm_ns;              /* the collectives', from launch to end; -1: not known */
    int64_t rss_mib, private_mib; /* private: the largest rank's */
} result;

void result_close(result *r);

/* What the run is, for config.json: what came of its settings, under the names of result.json; its
 * data, the machine of this rank, and "hosts": the name of each once. All ranks call it; if the job
 * has more than one host, they tell each other. STATUS_PEER, STATUS_TIMEOUT as a collective. Memory
 * that runs out is noted (base/json_text.h). */
status result_describe(json_t *object, const rank_context *rank);

/* After the loop: what all ranks and replicas have taken. All ranks call it. */
status result_finish(result *r, const rank_context *rank);

/* One object on one line; free with free(). STATUS_NO_MEMORY. */
status result_print(const result *r, const rank_context *rank, char **out);

#endif
