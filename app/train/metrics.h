/* The numbers of a run over time, in its folder: metrics.jsonl for people and scripts, and an event
 * file for TensorBoard. Rank 0 writes them.
 *
 * metrics.jsonl has one JSON object a line, in the order of the steps:
 *
 *     {"event":"step","step":11,"epoch":1,"time_s":0.2,"loss":2.3,"lr":1,"images_per_s":9000}
 *     {"event":"test","step":50,"epoch":1,"time_s":..,"test_loss":..,"test_acc":0.91}
 *     {"event":"validation","step":50,"epoch":1,"time_s":..,"val_loss":..,"val_acc":0.91}
 *     {"event":"epoch","epoch":1,"step":938,"time_s":..,"train_loss":..,"test_loss":..,
 *      "test_acc":..,"lr":..,"images_per_s":..}
 *
 * step: steps of the optimizer that are done. epoch: from 1. time_s: since the run's start; after a
 * resume it goes on from the last line that was kept. loss: the mean of rank 0's last batch.
 * train_loss: the mean over the epoch and all ranks. With --clip-grad-norm a "step" also has
 * "grad_norm". lr: of the last step. images_per_s: of all ranks, since the last line about a step,
 * or of the epoch; tests do not count. A number that is not finite, and that of a test that was not
 * made, is null. "test" is a test inside an epoch, "epoch" is an epoch's end. With --val-split,
 * "validation" is inside an epoch, "epoch" also has val_loss and val_acc, and its test is null;
 * "test" is the one at the run's end.
 *
 * The event file has train/loss, train/lr and train/images_per_s of each "step", test/loss and
 * test/accuracy of each test, val/loss and val/accuracy of each validation. Each start of the run
 * has a file of its own; its first event says from which step on it replaces earlier files.
 *
 * An epoch that ends inside (--target-acc) has its "epoch" line, too; a run that goes on with it
 * replaces that line by the whole epoch's.
 *
 * Lines about steps are written about once a second, all others at once. If the disk is full, there
 * is one warning, and no more is written. */
#ifndef MNIST_DDP_APP_TRAIN_METRICS_H
#define MNIST_DDP_APP_TRAIN_METRICS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct metrics metrics;

typedef enum metrics_event {
    METRICS_STEP,
    METRICS_TEST,
    METRICS_VALIDATION,
    METRICS_EPOCH,
} metrics_event;

/* One line. Numbers that there are none of are NAN. */
typedef struct metrics_entry {
    metrics_event event;
    int64_t step, epoch; /* epoch: from 0 */
    int64_t now_ns;
    double loss, lr, images_per_s; /* loss: of a step, or of the epoch's training */
    double grad_norm; /* a step's, before its gradients were clipped; 0: they are not, and the line
                         is without it */
    double test_loss, test_acc;
    double val_loss, val_acc;
    bool validates; /* the run has --val-split: METRICS_EPOCH has val_loss and val_acc */
} metrics_entry;

typedef struct metrics_options {
    const char *folder;
    int64_t step;       /* that the run continues from: later lines are cut off; 0: it begins */
    int64_t epochs;     /* completed before it: the "epoch" lines of others are cut off */
    int64_t started_ns; /* when the program started */
} metrics_options;

/* STATUS_IO if a file cannot be opened, STATUS_NO_MEMORY. */
status metrics_open(const metrics_options *settings, metrics **out);

/* Does nothing if `m` is NULL. */
void metrics_add(metrics *m, const metrics_entry *entry);

/* Writes all that was added: before a checkpoint, so that its lines are there before it is. So does
 * metrics_close. Both accept NULL. */
void metrics_flush(metrics *m);
void metrics_close(metrics *m);

/* The lines of metrics.jsonl: printed, and cut off after a step. */

enum { METRICS_LINE_BYTES = 400 }; /* any line has at most */

/* Writes the line and its newline to `out` (METRICS_LINE_BYTES); returns its length. */
size_t metrics_lines_print(const metrics_entry *entry, double time_s, char *out);

/* What was there. */
typedef struct metrics_lines_found {
    double time_s; /* the last line's that stays; 0: there is none */
    unsigned cut;  /* 1u << metrics_event of each test that was cut off and is of from->step */
} metrics_lines_found;

/* Opens the file to be appended to, made if it is missing. All from the first line on is cut off
 * that is about a step after from->step, ends an epoch after from->epochs or is the test at the
 * run's end after that step; so is a last line that is torn or names no step. Such a line before
 * others stays, with one warning. A file that has no other line is kept as "<path>.damaged", with a
 * warning. STATUS_IO if the file cannot be opened, read, cut or kept, STATUS_INVALID if it is no
 * file, STATUS_NO_MEMORY: nothing is cut off. */
status metrics_lines_open(const char *path, const metrics_options *from, int *fd,
                          metrics_lines_found *found);

/* Records of a TensorBoard event file (events.out.tfevents.*), as bytes.
 *
 * A file is a sequence of TFRecords: the length of the data as 8 bytes, its masked CRC, the data,
 * the data's masked CRC; numbers little-endian. The CRC is CRC32C (Castagnoli). Masked means
 * rotated right by 15 bits, plus 0xa282ead8. The data is one message Event of TensorFlow's
 * event.proto:
 *
 *     1 wall_time     double          5 summary       of values: 1 tag, 2 simple_value (float)
 *     2 step          int64           7 session_log   1 status: 1 is START
 *     3 file_version  "brain.Event:2"
 *
 * A reader drops the events of earlier files from a START's step on. */

enum {
    EVENT_FILE_MAX_SCALARS = 4,
    EVENT_FILE_TAG_BYTES = 32,     /* a tag has at most, with the zero byte */
    EVENT_FILE_RECORD_BYTES = 256, /* any record below has at most */
};

typedef struct event_scalar {
    const char *tag; /* "train/loss" */
    double value;
} event_scalar;

/* Writes one record to `out` (EVENT_FILE_RECORD_BYTES) and returns its size. `wall_time`: in
 * seconds since 1970; `n`: 1 to EVENT_FILE_MAX_SCALARS. */
size_t event_file_scalars(double wall_time, int64_t step, const event_scalar *scalars, int n,
                          uint8_t *out);

#endif
