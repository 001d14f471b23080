/* A short training by this program, in processes of its own, of which a demonstration shows what it
 * printed and traced. */
#ifndef MNIST_DDP_APP_DEMO_TRAINING_RUN_H
#define MNIST_DDP_APP_DEMO_TRAINING_RUN_H

#include "app/bench/child.h"
#include "app/demo/demo.h"

/* Begins zeroed. */
typedef struct training_run {
    const demo *d;
    bench_child place;
    bench_words words;
    int own;        /* words[own] and on are of this run; those before of every one */
    json_t *result; /* as --json prints it, of the latest run */
    json_t *trace;  /* as --trace writes it */
} training_run;

/* Of rank 0. Accepts a zeroed one. */
status training_run_open(const demo *d, training_run *out);
void training_run_close(training_run *t);

/* The next run: one thread a rank on the CPU, an epoch, no tests. Then bench_words_add(&t->words,
 * ...) gives its own flags. */
void training_run_begin(training_run *t);

/* Runs it; sets result and trace. */
status training_run_do(training_run *t);

/* "mnist_ddp train --mode=dp": its own flags alone, as one types them; cut at `size_bytes`. */
void training_run_line(const training_run *t, char *out, size_t size_bytes);

/* A number of the result; "bytes" "sent" is one below another. NaN if it is not there. */
double training_run_number(const training_run *t, const char *object, const char *key);

/* "sent_busiest" of result.json's bytes of one optimizer step, and the like. */
static inline int64_t training_run_bytes(const training_run *t, const char *key)
{
    return (int64_t)training_run_number(t, "bytes", key);
}

/* A file that the run has left: its path. Valid until the next run. */
void training_run_path(const training_run *t, const char *name, char out[FILE_PATH_BYTES]);

#endif
