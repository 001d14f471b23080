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
#ifndef MNIST_DDP_APP_TRAIN_EVENT_FILE_H
#define MNIST_DDP_APP_TRAIN_EVENT_FILE_H

#include <stddef.h>
#include <stdint.h>

enum {
    EVENT_FILE_MAX_SCALARS = 4,
    EVENT_FILE_TAG_BYTES = 32,     /* of a tag, with the zero byte */
    EVENT_FILE_RECORD_BYTES = 256, /* of any record below, at most */
};

typedef struct event_scalar {
    const char *tag; /* "train/loss" */
    double value;
} event_scalar;

/* Each writes one record to `out` (EVENT_FILE_RECORD_BYTES) and returns its size. `wall_time`: in
 * seconds since 1970. */
size_t event_file_version(double wall_time, uint8_t *out); /* the first of every file */
size_t event_file_start(double wall_time, int64_t step, uint8_t *out);

/* `n`: 1 to EVENT_FILE_MAX_SCALARS. */
size_t event_file_scalars(double wall_time, int64_t step, const event_scalar *scalars, int n,
                          uint8_t *out);

#endif
