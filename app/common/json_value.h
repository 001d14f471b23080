/* Values of JSON: text that may be no UTF-8, bytes, results, and what a worker or another node
 * sent. */
#ifndef MNIST_DDP_APP_COMMON_JSON_VALUE_H
#define MNIST_DDP_APP_COMMON_JSON_VALUE_H

#include "base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A string; bytes that are no UTF-8 become question marks. NULL if memory is short. */
json_t *json_value_text(const char *text);

/* A number with at most `decimals` of them; null if it is none (NaN) or infinite. NULL if memory
 * is short. */
json_t *json_value_rounded(double value, int decimals);

/* Prints a result as one line on stdout, its numbers with ten digits, and takes the value. A write
 * that fails is reported at the program's end (standard_streams_close). STATUS_NO_MEMORY. */
status json_value_print(json_t *value);

/* Bytes as a string of two hexadecimal digits each; n is JSON_VALUE_HEX_BYTES at most. NULL if
 * memory is short. */
enum { JSON_VALUE_HEX_BYTES = 1024 };
json_t *json_value_hex(const uint8_t *bytes, int n);

/* STATUS_PEER if there is none, or one out of the range. */
status json_value_integer(const json_t *object, const char *key, int low, int high, int *out);

/* Copies a string, cut to fit; "" if it is missing. STATUS_PEER if it is something else. */
status json_value_copy(const json_t *object, const char *key, char *out, size_t size_bytes);

#endif
