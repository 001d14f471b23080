/* TensorBoard's event files, read by their description (app/train/metrics.h). */
#ifndef MNIST_DDP_TESTS_APP_SUPPORT_EVENT_RECORDS_H
#define MNIST_DDP_TESTS_APP_SUPPORT_EVENT_RECORDS_H

#include "app/train/metrics.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* CRC32C, not masked. */
uint32_t event_records_crc(const uint8_t *data, size_t size_bytes);

typedef struct event_reader {
    const uint8_t *at, *end;
} event_reader;

typedef struct event_record {
    double wall_time;
    int64_t step;
    bool is_version, is_start;
    int n; /* scalars */
    char tags[EVENT_FILE_MAX_SCALARS][EVENT_FILE_TAG_BYTES];
    float values[EVENT_FILE_MAX_SCALARS];
} event_record;

/* The next record. Fails the test if it is cut off, a CRC is wrong, or a field is unknown. */
event_record event_records_take(event_reader *in);

#endif
